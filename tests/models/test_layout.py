"""Layouts of networks, shared by builders and command lines."""

import inspect

import pytest

from idmatters_tf.models.cifar import identity_resnet
from idmatters_tf.models.imagenet import identity_resnet34
from idmatters_tf.models.layout import CIFAR, IMAGENET, Layout


@pytest.mark.parametrize(("builder", "layout"), [(identity_resnet, CIFAR), (identity_resnet34, IMAGENET)])
def test_the_papers_layouts_are_the_defaults_of_the_builders(builder, layout):
    defaults = {name: parameter.default for name, parameter in inspect.signature(builder).parameters.items()}
    blocks = (defaults["blocks"],) * 3 if builder is identity_resnet else defaults["blocks"]
    assert (layout.blocks, layout.widths, layout.stem) == (blocks, defaults["widths"], defaults["stem"])


def test_wrong_layouts():
    for changes, message in (
        ({"widths": (), "blocks": (), "strides": ()}, "`widths` must have at least one stage"),
        ({"blocks": (1,)}, r"`blocks` and `widths` must have the same length. Received: blocks=\(1,\), widths="),
        ({"blocks": (1, 0)}, r"`blocks\[1\]` must be a positive integer"),
        ({"shortcut": "1x1"}, "`shortcut` must be one of 'pad', 'projection', 'none'"),
    ):
        with pytest.raises(ValueError, match=message):
            Layout(**{"blocks": (1, 1), "widths": (4, 8), "strides": (1, 2), "stem": 4, **changes})
