"""Small random models of KerasHub, their inputs, and tasks with data for runs of `fit` that are killed.

Each task in `TASKS` is a function that returns the compiled task, the quantity that `fit` monitors, and the data of
`fit`: 8 batches of 8 sentences or images, the last one smaller.
"""

from typing import Any

import keras
import numpy as np
from keras_hub import layers, models

BATCH, STEPS = 8, 8
SIZES = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8}
TEXT = {**SIZES, "intermediate_dim": 16, "max_sequence_length": 12}
WORDS = ("a", "b", "c", "d")
# GPT-2 writes "Ġ" for a blank.
TOKENS = ("!", "<|endoftext|>", *WORDS, "Ġ", *(f"Ġ{word}" for word in WORDS))


def randomized(model) -> Any:
    """Return a model with random weights everywhere, also where initial weights are zeros or ones."""
    rng = np.random.default_rng(0)
    for weight in model.weights:
        values = rng.normal(0, 0.3, weight.shape)
        weight.assign(np.abs(values) if weight.name.endswith("variance") else values)
    return model


def gpt2(**options):
    tokenizer = models.GPT2Tokenizer({token: place for place, token in enumerate(TOKENS)}, [f"Ġ {w}" for w in WORDS])
    preprocessor = models.GPT2CausalLMPreprocessor(tokenizer, sequence_length=12)
    return randomized(models.GPT2CausalLM(models.GPT2Backbone(len(TOKENS), **TEXT | options), preprocessor))


def gemma3():
    options: dict[str, Any] = {"use_post_ffw_norm": True, "use_post_attention_norm": True, "dtype": "float32"}
    backbone = models.Gemma3Backbone(20, 16, 2, 2, 1, 8, 16, 4, **options)
    return randomized(models.Gemma3CausalLM(preprocessor=None, backbone=backbone))


def gemma(window=4):
    """Return a backbone with alternating local and global attention, which depends on the layer's number."""
    options: dict[str, Any] = {"use_sliding_window_attention": True, "sliding_window_size": window}
    return randomized(models.GemmaBackbone(20, 2, 2, 1, 8, 16, 4, **options))


def smollm3():
    """Return a backbone with a list of kinds of layers: with and without position embeddings."""
    arguments: list[Any] = [20, 8, 16, 2, 2, 1, False, 0.0, [True, False], ["attention"] * 2, False, 1e-6, 16, 1e4, 1.0]
    return randomized(models.SmolLM3Backbone(*arguments))


def bert(**options):
    tokenizer = models.BertTokenizer(["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", *WORDS])
    preprocessor = models.BertTextClassifierPreprocessor(tokenizer, sequence_length=12)
    backbone = models.BertBackbone(5 + len(WORDS), **TEXT | options)
    return randomized(models.BertTextClassifier(backbone, num_classes=2, preprocessor=preprocessor))


def vit(**options):
    preprocessor = models.ViTImageClassifierPreprocessor(layers.ViTImageConverter(image_size=(8, 8), scale=1 / 255))
    backbone = models.ViTBackbone((8, 8, 3), (4, 4), mlp_dim=16, **SIZES, **options)
    return randomized(models.ViTImageClassifier(backbone, 2, preprocessor))


def resnet(pre=True):
    backbone = models.ResNetBackbone([64], [3], [64, 8], [2, 2], [1, 2], "basic_block", pre, image_shape=(16, 16, 3))
    return randomized(models.ResNetImageClassifier(backbone, 3))


def inputs_for(model):
    """Return random images, or tokens with padding at the end, nowhere and, in the last example, at the start."""
    rng = np.random.default_rng(1)
    if not isinstance(model.input, dict):
        return rng.normal(size=(4, *model.input.shape[1:])).astype("float32")
    mask = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 1, 1]])
    inputs = {"token_ids": mask * rng.integers(1, 9, mask.shape), "padding_mask": mask}
    return inputs | ({"segment_ids": 0 * mask} if "segment_ids" in model.input else {})


def sentences():
    """Return sentences of one to nine words, and the class of each, 0 or 1."""
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, len(WORDS), rng.integers(1, 10)) for _ in range(STEPS * BATCH - 2)]
    return np.array([" ".join(WORDS[word] for word in row) for row in rows]), np.array([row[0] % 2 for row in rows])


def shuffled(*arrays):
    """Return batches in another random order in each epoch."""
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(arrays if len(arrays) > 1 else arrays[0]).shuffle(32, seed=1).batch(BATCH)


def compiled(task, optimizer):
    """Compile a task with its own loss and metrics. Return it and the monitored quantity."""
    task.compile(optimizer)
    return task, "loss"


def causal_lm_on_strings():
    task = compiled(gpt2(), keras.optimizers.AdamW(0.01))
    return *task, {"x": sentences()[0].tolist(), "batch_size": BATCH}


def causal_lm_with_pipeline():
    task, monitored = compiled(gpt2(), keras.optimizers.AdamW(0.01))
    preprocessor, task.preprocessor = task.preprocessor, None
    return task, monitored, {"x": shuffled(sentences()[0]).map(preprocessor).prefetch(2)}


def text_classifier_with_lora():
    task = bert(dtype="mixed_float16")
    task.backbone.enable_lora(2)
    return *compiled(task, keras.optimizers.Adam(0.01)), {"x": shuffled(*sentences())}


def image_classifier():
    images = np.random.default_rng(0).integers(0, 256, (STEPS * BATCH - 2, 10, 10, 3)).astype("uint8")
    task = compiled(vit(dropout_rate=0.1), keras.optimizers.Adam(0.01, use_ema=True))
    return *task, {"x": shuffled(images, sentences()[1])}


TASKS = {
    "GPT-2, `tf.data` mapped with the preprocessor": causal_lm_with_pipeline,
    "GPT-2, strings": causal_lm_on_strings,
    "BERT with LoRA in `mixed_float16`, `tf.data` of strings": text_classifier_with_lora,
    "ViT, `tf.data` of images": image_classifier,
}
