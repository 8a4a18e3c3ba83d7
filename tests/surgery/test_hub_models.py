"""`deepen` for the kinds of KerasHub models, and its choice of layers."""

import importlib.util

import keras
import numpy as np
import pytest
from keras import ops

pytest.importorskip("keras_hub")

from idmatters_tf.autodiff import gradient
from idmatters_tf.surgery import deepen
from tests.surgery import hub_models as cases

LAYER = "transformer_layer_"
VIT = "vit_encoder/transformer_block_"
# Model, `after`, beginning of the names of layers, place of the old layer of each layer, zeros of new layers.
CASES = {
    "GPT-2": (cases.gpt2, [0], LAYER, [0, 0, 1], cases.OUTPUTS),
    "Gemma 3": (cases.gemma3, 1, "decoder_block_", [0, 1, 1], {"attention/attention_output", "ffw_linear"}),
    "ViT": (cases.vit, f"{VIT}1", VIT, [0, 0, 1], {"mha/attention_output", "mlp/dense_2"}),
}


@pytest.mark.parametrize("name", CASES)
def test_new_layers_are_the_identity_with_gradients(name):
    build, after, prefix, sources, zeros = CASES[name]
    model = build()
    deeper = deepen(model, after)
    assert type(deeper) is type(model)
    assert deeper.backbone.num_layers == 3
    x = keras.tree.map_structure(ops.convert_to_tensor, cases.inputs_for(model))
    np.testing.assert_array_equal(model(x), deeper(x))
    cases.check_layers(model, deeper, prefix, sources, zeros, first=int(name == "ViT"))
    variables = [weight for weight in deeper.trainable_weights if not np.any(weight)]
    assert len(variables) >= len(zeros)
    for variable, slope in zip(variables, gradient(lambda _: ops.sum(deeper(x) ** 2), variables), strict=True):
        assert np.any(slope), variable.path


@pytest.mark.parametrize("pre", [True, False])
def test_residual_networks_for_images(pre):
    """A block can follow the first block of a stage, which is of another kind, and a copy of it cannot."""
    model = cases.resnet(pre)
    deeper = deepen(model, [1, 2])
    assert deeper.backbone.stackwise_num_blocks == [3, 3]
    x = cases.inputs_for(model)
    np.testing.assert_array_equal(model(x), deeper(x))
    expected, found = cases.arrays(model), cases.arrays(deeper)
    moved = {path.replace("stack1_block1", "stack1_block2"): value for path, value in expected.items()}
    assert all(np.array_equal(found[path], value) for path, value in moved.items())
    zeros = {path for path in found if not np.any(found[path])}
    last = "_2_conv/kernel" if pre else "_2_bn/gamma"
    assert zeros >= {f"stack0_block2{last}"}, zeros
    with pytest.raises(ValueError, match="`init` must be 'zero' after stack1_block0"):
        deepen(model, [2], init="copy")


def test_backbones_keep_their_class():
    backbone = cases.gpt2().backbone
    deeper = deepen(backbone, [1], count=2)
    assert type(deeper) is type(backbone)
    assert deeper.num_layers == 4
    assert not deeper.compiled
    np.testing.assert_array_equal(backbone(cases.inputs_for(backbone)), deeper(cases.inputs_for(backbone)))


@pytest.mark.parametrize(
    ("after", "sources"),
    [
        ([0, np.int64(3)], [0, 0, 1, 2, 3, 3]),
        ("every 2nd", [0, 1, 1, 2, 3, 3]),
        ("every 3", [0, 1, 2, 2, 3]),
        ("interleaved", [0, 0, 1, 1, 2, 2, 3, 3]),
        ("transformer_layer_2", [0, 1, 2, 2, 3]),
        (["transformer_layer_1", 0], [0, 0, 1, 1, 2, 3]),
    ],
)
def test_copies_after_chosen_layers(after, sources):
    model = cases.gpt2(layers=4)
    deeper = deepen(model, after, init="copy")
    assert deeper.backbone.num_layers == len(sources)
    cases.check_layers(model, deeper, LAYER, sources)


def test_arguments_that_do_not_fit_raise():
    model = cases.gpt2()
    for after in (2, -1, [], "every 0th", "every 3rd", "transformer", [0, None], ["transformer_layer_2"]):
        with pytest.raises(ValueError, match="`after` must be numbers or names of the 2 layers") as caught:
            deepen(model, after)
        assert len(str(caught.value)) < 220
    with pytest.raises(ValueError, match="`block` and `tolerance` must be left out"):
        deepen(model, 0, tolerance=0.1)


def test_normalization_after_the_sum_requires_copies():
    model = cases.bert()
    with pytest.raises(ValueError, match="normalization after the sum. Pass init='copy'"):
        deepen(model, "interleaved")
    deeper = deepen(model, "interleaved", init="copy")
    assert type(deeper) is type(model)
    cases.check_layers(model, deeper, LAYER, [0, 0, 1, 1])
    assert np.isfinite(deeper(cases.inputs_for(deeper))).all()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_hub_models_on_jax(program):
    env = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    done = program("tests.surgery.hub_models", env=env, timeout=500)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "jax"
