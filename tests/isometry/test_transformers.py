"""Tests of the blocks of transformers with padding, and of their influence, against blocks by hand."""

from typing import Any

import keras
import keras_hub
import numpy as np
import pytest
from keras import ops

from idmatters_tf.isometry import block_distances, kernel_norms, layer_influence
from tests.isometry.test_masks import Attach
from tests.support import hub_models

STEP = 5e-3

# Each function returns the model, its inputs, the name of the layer in front of the blocks, the blocks as functions of
# (tensor, inputs) by name, the function after the blocks, and the mask of the positions.


def text(model, argument, end):
    given: Any = hub_models.inputs_for(model)
    inputs = {name: values[:3] for name, values in given.items()}
    blocks = {
        layer.name: lambda x, given, layer=layer: layer(x, **{argument: given["padding_mask"]})
        for layer in model.transformer_layers
    }
    return model, inputs, "embeddings_dropout", blocks, end, inputs["padding_mask"] == 1


def gpt2():
    model = hub_models.gpt2().backbone
    return text(model, "decoder_padding_mask", model.layer_norm)


def bert():
    model = hub_models.bert().backbone
    return text(
        model, "padding_mask", lambda x: {"sequence_output": x, "pooled_output": model.pooled_dense(x[:, 0, :])}
    )


def vit():
    model = hub_models.vit().backbone
    encoder: Any = model.get_layer("vit_encoder")
    images = np.asarray(hub_models.inputs_for(model))[:3]
    blocks = {f"vit_encoder/{layer.name}": lambda x, _, layer=layer: layer(x) for layer in encoder.encoder_layers}
    return model, images, "vit_patching_and_embedding", blocks, encoder.layer_norm, np.ones((3, 5), bool)


def functional():
    """Return a model of KerasHub's layers with an embedding's mask. The decoder also takes the encoder's sequence."""
    tokens, memory = keras.Input((4,), dtype="int32"), keras.Input((3, 4))
    embedding = keras.layers.Embedding(12, 4, mask_zero=True, name="embedding")
    encoder = keras_hub.layers.TransformerEncoder(8, 2, activation="gelu", name="encoder")
    decoder = keras_hub.layers.TransformerDecoder(8, 2, activation="gelu", name="decoder")
    head = keras.layers.Dense(2)
    x = encoder(embedding(tokens))
    model = keras.Model([tokens, memory], head(decoder(encoder_sequence=memory, decoder_sequence=x)))

    def masked(x, inputs):
        return Attach()(x, mask=ops.not_equal(inputs[0], 0))

    blocks = {
        "encoder": lambda x, inputs: encoder(masked(x, inputs)),
        "decoder": lambda x, inputs: decoder(masked(x, inputs), inputs[1]),
    }
    data = np.array([[1, 2, 3, 0], [4, 5, 6, 7], [8, 9, 0, 0]], "int32")
    inputs = [data, np.random.default_rng(0).normal(size=(3, 3, 4)).astype("float32")]
    return hub_models.randomized(model), inputs, "embedding", blocks, head, data != 0


CASES = {part.__name__: part for part in (gpt2, bert, vit, functional)}


def by_hand(case, skipped=None):
    """Return the symbolic inputs of the blocks and the outputs of the model, without one of the blocks."""
    model, _, start, blocks, end, _ = case
    tensors = [model.get_layer(start).output]
    for name, block in blocks.items():
        tensors.append(tensors[-1] if name == skipped else block(tensors[-1], model.input))
    return tensors, end(tensors[-1])


def distances(block, x, inputs):
    """Return ||J - I|| of a block at each example, by central differences."""
    size = x[0].size
    shifts = STEP * np.concatenate([np.eye(size), -np.eye(size)]).reshape(-1, 1, *x[0].shape)
    moved = (x + shifts).reshape(-1, *x[0].shape).astype("float32")
    given = keras.tree.map_structure(lambda part: np.concatenate([part] * len(shifts)), inputs)
    ends = np.asarray(ops.convert_to_numpy(block(ops.convert_to_tensor(moved), given)), np.float64)
    plus, minus = ends.reshape(2, size, len(x), size)
    return np.linalg.norm(np.swapaxes(plus - minus, 0, 1) / (2 * STEP) - np.eye(size), 2, axis=(1, 2))


def evaluated(model, inputs, y, weights):
    """Return the loss of a model by Keras, of all data as one batch."""
    model.compile(loss=keras.tree.map_structure(lambda _: "mse", model.output), run_eagerly=True)
    return model.evaluate(inputs, y, 32, 0, weights, return_dict=True)["loss"]


@pytest.mark.parametrize("name", CASES)
def test_transformers_agree_with_models_by_hand(name):
    case = model, inputs, _, blocks, _, mask = CASES[name]()
    tensors = [np.asarray(ops.convert_to_numpy(x)) for x in keras.Model(model.input, by_hand(case)[0])(inputs)]
    if name == "functional":
        with pytest.raises(ValueError, match="input of the layer 'encoder' in the block 'encoder' has a mask of Keras"):
            block_distances(model, inputs)
    else:
        measured = block_distances(model, inputs)
        assert list(measured) == list(blocks)
        for x, block in zip(tensors[:-1], blocks, strict=True):
            np.testing.assert_allclose(measured[block], distances(blocks[block], x, inputs), rtol=5e-3)

    rng = np.random.default_rng(3)
    y = keras.tree.map_structure(lambda part: rng.normal(size=part.shape).astype("float32"), model(inputs))
    data = inputs, y, None if name in ("bert", "functional") else mask * np.array([[1.0], [0.5], [2.0]])
    loss = evaluated(model, *data)
    result = layer_influence(model, data=data, batch_size=2)
    assert result.loss == pytest.approx(loss, rel=1e-5)
    if name in ("gpt2", "functional"):
        # A given loss is weighted and masked as a compiled one.
        assert layer_influence(model, "mse", data, batch_size=2).loss == pytest.approx(loss, rel=1e-5)
    for x, end, (block, influence) in zip(tensors[:-1], tensors[1:], result.blocks.items(), strict=True):
        x, end = x[mask].astype(np.float64), end[mask].astype(np.float64)
        cosines = np.sum(x * end, -1) / np.linalg.norm(x, axis=-1) / np.linalg.norm(end, axis=-1)
        without = evaluated(keras.Model(model.input, by_hand(case, block)[1]), *data)
        expected = np.linalg.norm(end - x) / np.linalg.norm(x), np.degrees(np.arccos(cosines)).mean(), without
        np.testing.assert_allclose([influence.relative, influence.angle, influence.loss], expected, rtol=1e-4)
        assert influence.loss_change == influence.loss - result.loss
    assert kernel_norms(model) == {}


def test_tasks_and_nested_backbones_have_the_blocks_of_the_backbone():
    task = hub_models.gpt2()
    backbone = task.backbone
    inputs = {name: values[:1] for name, values in hub_models.inputs_for(task).items()}
    nested = keras.Model(backbone.input, keras.layers.Dense(2)(backbone(backbone.input)))
    expected = block_distances(backbone, inputs)
    for model in (task, nested):
        measured = block_distances(model, inputs)
        assert list(measured) == ["transformer_layer_0", "transformer_layer_1"]
        np.testing.assert_allclose(list(measured.values()), list(expected.values()), rtol=1e-5)
