"""Small random KerasHub tasks and their training data, for runs of `fit` that are killed and started again.

Each task in `TASKS` is a function that returns the compiled task, the quantity that `fit` monitors, and the data of
`fit`: 8 batches of 8 sentences or images, the last one smaller. KerasHub is imported on use.
"""

import keras
import numpy as np

BATCH, STEPS, TIME = 8, 8, 12
WORDS = ("the", "quick", "brown", "fox", "reads", "a", "long", "letter")
SIZES = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8}


def sentences():
    """Return sentences of one to nine words, and the class of each, 0 or 1."""
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, len(WORDS), rng.integers(1, 10)) for _ in range(STEPS * BATCH - 2)]
    return np.array([" ".join(WORDS[word] for word in row) for row in rows]), np.array([row[0] % 2 for row in rows])


def shuffled(*arrays):
    """Return batches in another random order in each epoch."""
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(arrays if len(arrays) > 1 else arrays[0]).shuffle(32, seed=1).batch(BATCH)


def language_model(dtype="float32"):
    from keras_hub import models

    letters = sorted({letter for word in WORDS for letter in word})
    # GPT-2 writes "Ġ" for a blank.
    tokens = {token: number for number, token in enumerate(["<|endoftext|>", "Ġ", "th", *letters])}
    preprocessor = models.GPT2CausalLMPreprocessor(models.GPT2Tokenizer(tokens, merges=["t h"]), sequence_length=TIME)
    sizes = {"intermediate_dim": 16, "max_sequence_length": TIME, **SIZES}
    backbone = models.GPT2Backbone(len(tokens), dropout=0.1, dtype=dtype, **sizes)
    task = models.GPT2CausalLM(backbone, preprocessor)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    task.compile(keras.optimizers.AdamW(0.01), loss, weighted_metrics=["accuracy"])
    return task


def causal_lm_with_pipeline():
    task = language_model()
    preprocessor, task.preprocessor = task.preprocessor, None
    return task, "loss", {"x": shuffled(sentences()[0]).map(preprocessor).prefetch(2)}


def causal_lm_on_strings():
    return language_model(), "loss", {"x": sentences()[0].tolist(), "batch_size": BATCH}


def text_classifier_with_lora():
    from keras_hub import models

    tokenizer = models.BertTokenizer(["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", *WORDS])
    preprocessor = models.BertTextClassifierPreprocessor(tokenizer, sequence_length=TIME)
    sizes = {"intermediate_dim": 16, "max_sequence_length": TIME, **SIZES}
    backbone = models.BertBackbone(len(WORDS) + 5, dropout=0.1, dtype="mixed_float16", **sizes)
    backbone.enable_lora(rank=2)
    task = models.BertTextClassifier(backbone, num_classes=2, preprocessor=preprocessor)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    task.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    assert type(task.optimizer) is keras.optimizers.LossScaleOptimizer
    return task, "loss", {"x": shuffled(*sentences())}


def image_classifier():
    from keras_hub import layers, models

    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (STEPS * BATCH - 2, 10, 10, 3)).astype("uint8"), sentences()[1]
    converter = layers.ViTImageConverter(image_size=(8, 8), scale=1 / 255)
    backbone = models.ViTBackbone((8, 8, 3), (4, 4), mlp_dim=16, dropout_rate=0.1, **SIZES)
    preprocessor = models.ViTImageClassifierPreprocessor(converter)
    task = models.ViTImageClassifier(backbone, 2, preprocessor, dropout=0.1)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    task.compile(keras.optimizers.Adam(0.01, use_ema=True), loss, metrics=["accuracy"])
    return task, "loss", {"x": shuffled(images, labels)}


TASKS = {
    "GPT-2, `tf.data` mapped with the preprocessor": causal_lm_with_pipeline,
    "GPT-2, strings": causal_lm_on_strings,
    "BERT with LoRA in `mixed_float16`, `tf.data` of strings": text_classifier_with_lora,
    "ViT, `tf.data` of images": image_classifier,
}
