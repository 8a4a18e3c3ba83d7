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
# Model, arguments, beginning of the names of layers, place of the old layer of each layer, zeros of new layers.
CASES = {
    "backbone": (lambda: cases.gpt2().backbone, {"after": 1}, LAYER, [0, 1, 1], cases.OUTPUTS),
    "GPT-2": (cases.gpt2, {"after": [0]}, LAYER, [0, 0, 1], cases.OUTPUTS),
    "Gemma 3": (cases.gemma3, {"after": 0, "count": 2}, "decoder_block_", [0, 0, 0, 1], cases.GEMMA_OUTPUTS),
    "ViT": (cases.vit, {"after": f"{VIT}1"}, VIT, [0, 0, 1], {"mha/attention_output", "mlp/dense_2"}),
}


@pytest.mark.parametrize("name", CASES)
def test_new_layers_are_the_identity_with_gradients(name):
    build, arguments, prefix, sources, zeros = CASES[name]
    model = build()
    deeper = deepen(model, **arguments)
    assert type(deeper) is type(model)
    assert getattr(deeper, "backbone", deeper).num_layers == len(sources)
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
    found = cases.arrays(deeper)
    for path, value in cases.arrays(model).items():
        np.testing.assert_array_equal(found[path.replace("stack1_block1", "stack1_block2")], value)
    assert not np.any(found["stack0_block2_2_conv/kernel" if pre else "stack0_block2_2_bn/gamma"])
    with pytest.raises(ValueError, match="`init` must be 'zero' after stack1_block0"):
        deepen(model, [2], init="copy")


@pytest.mark.parametrize(
    ("after", "sources"),
    [
        ([0, np.int64(3)], [0, 0, 1, 2, 3, 3]),
        ("every 2nd", [0, 1, 1, 2, 3, 3]),
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


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_hub_models_on_jax(program):
    env = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    done = program("tests.surgery.hub_models", env=env, timeout=500)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "jax"
