"""The layout that builders, costs, plans and command lines share."""

import inspect

import pytest

from idmatters_tf.models.cifar import identity_resnet
from idmatters_tf.models.imagenet import identity_resnet34
from idmatters_tf.models.layout import CIFAR, IMAGENET, Layout, cifar_layout


@pytest.mark.parametrize(("builder", "layout"), [(identity_resnet, CIFAR), (identity_resnet34, IMAGENET)])
def test_the_papers_layouts_are_the_defaults_of_the_builders(builder, layout):
    defaults = {name: parameter.default for name, parameter in inspect.signature(builder).parameters.items()}
    blocks = (defaults["blocks"],) * 3 if builder is identity_resnet else defaults["blocks"]
    assert (layout.blocks, layout.widths) == (blocks, defaults["widths"])
    for name in ("stem", "bias", "shortcut", "head", "norm", "initializer", "branch_scale"):
        assert getattr(layout, name) == defaults[name], name


def test_strides():
    assert cifar_layout(2, (8, 16, 32), 4).strides == (1, 2, 2)
    assert IMAGENET.strides == (2, 2, 2, 2)
    assert (IMAGENET.stem_size, IMAGENET.stem_strides) == (7, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"widths": (), "blocks": (), "strides": ()}, "`widths` must name at least one stage"),
        (
            {"blocks": (1,)},
            "`blocks` and `widths` must name as many stages. Received: blocks=\\(1,\\), widths=\\(4, 8\\)",
        ),
        ({"strides": (1, 2, 2)}, "`strides` and `widths` must name as many stages"),
        ({"stem": 0}, "`stem` must be a positive integer"),
        ({"widths": (4, 0)}, "`widths\\[1\\]` must be a positive integer"),
        ({"head": "frozen"}, "`head` must be one of 'random', 'trained'"),
        ({"initializer": "he"}, "`initializer` must be one of"),
    ],
)
def test_wrong_layouts(changes, message):
    with pytest.raises(ValueError, match=message):
        Layout(**{"blocks": (1, 1), "widths": (4, 8), "strides": (1, 2), "stem": 4, **changes})
