"""Small transformers with padding, and their blocks by hand, on the backend of KERAS_BACKEND.

`python -m tests.support.transformer_cases NAME...` compares the named cases and prints their names.
"""

import sys

import keras
import keras_hub
import numpy as np
from keras import ops

from tests.support.mask_cases import Attach

WIDTH, TIME, STEP = 4, 4, 5e-3
TOKENS = np.array([[1, 2, 3, 0], [4, 5, 6, 7], [8, 9, 0, 0]], "int32")
SIZES = {"num_layers": 2, "num_heads": 2, "hidden_dim": WIDTH}
TEXT = {**SIZES, "vocabulary_size": 12, "intermediate_dim": 8, "max_sequence_length": 6}

# Each function returns the model, its inputs, the name of the layer in front of the blocks, the blocks as functions of
# (tensor, inputs) by name, the function after the blocks, and the mask of the positions.


def text(model, mask, end, **inputs):
    inputs |= {"token_ids": TOKENS, "padding_mask": (TOKENS != 0).astype("int32")}
    blocks = {
        layer.name: lambda x, given, layer=layer: layer(x, **{mask: given["padding_mask"]})
        for layer in model.transformer_layers
    }
    return model, inputs, "embeddings_dropout", blocks, end, TOKENS != 0


def gpt2():
    model = keras_hub.models.GPT2Backbone(**TEXT)
    return text(model, "decoder_padding_mask", model.layer_norm)


def bert():
    model = keras_hub.models.BertBackbone(**TEXT)

    def end(x):
        return {"sequence_output": x, "pooled_output": model.pooled_dense(x[:, 0, :])}

    return text(model, "padding_mask", end, segment_ids=0 * TOKENS)


def vit():
    model = keras_hub.models.ViTBackbone(image_shape=(8, 8, 3), patch_size=4, mlp_dim=8, **SIZES)
    images = np.random.default_rng(0).normal(size=(3, 8, 8, 3)).astype("float32")
    encoder = model.get_layer("vit_encoder")
    blocks = {f"vit_encoder/{layer.name}": lambda x, _, layer=layer: layer(x) for layer in encoder.encoder_layers}
    return model, images, "vit_patching_and_embedding", blocks, encoder.layer_norm, np.ones((3, 5), bool)


def functional():
    """Return a model of layers of KerasHub with the mask of the embedding."""
    tokens = keras.Input((TIME,), dtype="int32")
    embedding = keras.layers.Embedding(12, WIDTH, mask_zero=True, name="embedding")
    encoders = [keras_hub.layers.TransformerEncoder(8, 2, activation="gelu", name=name) for name in ("first", "second")]
    head = keras.layers.Dense(2)
    model = keras.Model(tokens, head(encoders[1](encoders[0](embedding(tokens)))))
    blocks = {
        layer.name: lambda x, tokens, layer=layer: layer(Attach()(x, mask=ops.not_equal(tokens, 0)))
        for layer in encoders
    }
    return model, TOKENS, "embedding", blocks, head, TOKENS != 0


def decoder():
    """Return a model with a decoder that also takes the sequence of an encoder, by keywords."""
    real, memory = keras.Input((TIME, WIDTH)), keras.Input((3, WIDTH))
    x = keras.layers.Activation("tanh", name="start")(real)
    layer, head = keras_hub.layers.TransformerDecoder(8, 2, activation="gelu", name="decoder"), keras.layers.Dense(2)
    model = keras.Model([real, memory], head(layer(encoder_sequence=memory, decoder_sequence=x)))
    inputs = [np.random.default_rng(time).normal(size=(3, time, WIDTH)).astype("float32") for time in (TIME, 3)]
    return model, inputs, "start", {"decoder": lambda x, given: layer(x, given[1])}, head, np.ones((3, TIME), bool)


CASES = {part.__name__: part for part in (gpt2, bert, vit, functional, decoder)}


def build(name):
    """Return a case with large weights and biases."""
    keras.utils.set_random_seed(0)
    case = CASES[name]()
    rng = np.random.default_rng(2)
    case[0].set_weights([weight + 0.3 * rng.normal(size=weight.shape) for weight in case[0].get_weights()])
    return case


def activations(case):
    """Return (x, y) of each block as NumPy arrays."""
    model, inputs, start, blocks, *_ = case
    pairs = {}
    x = ops.convert_to_numpy(keras.Model(model.input, model.get_layer(start).output)(inputs))
    for name, block in blocks.items():
        y = ops.convert_to_numpy(block(ops.convert_to_tensor(x), inputs))
        pairs[name], x = (x, y), y
    return pairs


def distances(case):
    """Return ||J - I|| of each block at each example, by central differences of the block by hand."""
    _, inputs, _, blocks, *_ = case
    results = {}
    for name, (x, _) in activations(case).items():
        results[name] = []
        directions = STEP * np.eye(x[0].size, dtype="float32").reshape(-1, *x[0].shape)
        shifts = np.concatenate([directions, -directions])
        for place in range(len(x)):
            rows = np.full(len(shifts), place)
            given = keras.tree.map_structure(lambda part, rows=rows: part[rows], inputs)
            ends = ops.convert_to_numpy(blocks[name](ops.convert_to_tensor(x[place] + shifts), given))
            plus, minus = ends.astype(np.float64).reshape(2, len(directions), -1)
            results[name].append(np.linalg.norm((plus - minus).T / (2 * STEP) - np.eye(x[0].size), 2))
    return results


def without(case, block):
    """Return the model without a block, built by hand."""
    model, _, start, blocks, end, _ = case
    x = model.get_layer(start).output
    for name, function in blocks.items():
        x = x if name == block else function(x, model.input)
    return keras.Model(model.input, end(x))


def compare(name):
    """Compare the distances of a case's blocks with differences by hand, and their sizes, angles and losses."""
    from idmatters_tf.isometry import block_distances, layer_influence

    case = build(name)
    model, inputs, *_, mask = case
    measured, expected = block_distances(model, inputs), distances(case)
    assert list(measured) == list(expected)
    np.testing.assert_allclose(list(measured.values()), list(expected.values()), rtol=5e-3)

    rng = np.random.default_rng(3)
    y = keras.tree.map_structure(lambda part: rng.normal(size=part.shape).astype("float32"), model(inputs))
    weights = None if name in ("bert", "functional") else mask * np.array([[1.0], [0.5], [2.0]])
    model.compile(loss=keras.tree.map_structure(lambda _: "mse", model.output), run_eagerly=True)
    result = layer_influence(model, (inputs, y, weights), batch_size=2)
    for block, (x, end) in activations(case).items():
        x, end = x[mask].astype(np.float64), end[mask].astype(np.float64)
        cosines = np.sum(x * end, -1) / np.linalg.norm(x, axis=-1) / np.linalg.norm(end, axis=-1)
        shorter = without(case, block)
        shorter.compile(loss=keras.tree.map_structure(lambda _: "mse", model.output), run_eagerly=True)
        loss, whole = (part.evaluate(inputs, y, 2, 0, weights, return_dict=True)["loss"] for part in (shorter, model))
        influence = result.blocks[block]
        np.testing.assert_allclose(influence.relative, np.linalg.norm(end - x) / np.linalg.norm(x), rtol=1e-4)
        np.testing.assert_allclose(influence.angle, np.degrees(np.arccos(cosines)).mean(), rtol=1e-4)
        np.testing.assert_allclose([influence.loss, result.loss], [loss, whole], rtol=1e-5)
        assert influence.loss_change == influence.loss - result.loss
    return case, (inputs, y, weights), result


if __name__ == "__main__":
    for case_name in sys.argv[1:]:
        compare(case_name)
        print(case_name)
