"""Layouts of networks, shared by builders, costs, plans and command lines."""

import inspect

import pytest

from idmatters_tf.models.cifar import identity_resnet
from idmatters_tf.models.imagenet import identity_resnet34
from idmatters_tf.models.layout import CIFAR, IMAGENET, Layout, cifar_layout


@pytest.mark.parametrize(("builder", "layout"), [(identity_resnet, CIFAR), (identity_resnet34, IMAGENET)])
def test_the_papers_layouts_are_the_defaults_of_the_builders(builder, layout):
    defaults = {name: parameter.default for name, parameter in inspect.signature(builder).parameters.items()}
    blocks = (defaults["blocks"],) * 3 if builder is identity_resnet else defaults["blocks"]
    assert (layout.blocks, layout.widths, layout.stem) == (blocks, defaults["widths"], defaults["stem"])


@pytest.mark.parametrize("builder", [identity_resnet, identity_resnet34])
def test_builders_accept_a_layout_and_its_fields(builder):
    layout = cifar_layout(1, (4, 8), 4, stem_size=5, head="trained")
    model = builder((16, 16, 3), 7, layout=layout, bias=True, norm="batch")
    assert model.get_layer("stem").kernel.shape == (5, 5, 3, 4)
    assert model.get_layer("head").bias.shape == (7,)
    block = model.get_layer("stage2_block1")
    assert (block.use_bias, block.norm, block.strides) == (True, "batch", 2)
    with pytest.raises(TypeError, match="flavour"):
        builder(flavour=3)


def test_wrong_layouts():
    for changes, message in (
        ({"widths": (), "blocks": (), "strides": ()}, "`widths` must have at least one stage"),
        ({"blocks": (1,)}, r"`blocks` and `widths` must have the same length. Received: blocks=\(1,\), widths="),
        ({"blocks": (1, 0)}, r"`blocks\[1\]` must be a positive integer"),
        ({"strides": (1, 2, 2)}, "`strides` and `widths` must have the same length"),
        ({"stem": 0}, "`stem` must be a positive integer"),
        ({"widths": (4, 0)}, "`widths\\[1\\]` must be a positive integer"),
        ({"head": "frozen"}, "`head` must be one of 'random', 'trained'"),
        ({"shortcut": "1x1"}, "`shortcut` must be one of 'pad', 'projection', 'none'"),
        ({"initializer": "he"}, "`initializer` must be one of"),
    ):
        with pytest.raises(ValueError, match=message):
            Layout(**{"blocks": (1, 1), "widths": (4, 8), "strides": (1, 2), "stem": 4, **changes})
