"""The all-convolutional residual network for CIFAR: Hardt & Ma, *Identity Matters in Deep Learning*, Table 1."""

from collections.abc import Sequence
from typing import Any

import keras

from idmatters_tf.models.identity import identity_network
from idmatters_tf.models.layout import cifar_layout


def identity_resnet(
    input_shape: Sequence[int | None] = (32, 32, 3),
    classes: int = 10,
    blocks: int = 9,
    widths: Sequence[int] = (64, 128, 256),
    stem: int = 16,
    *,
    weight_decay: float = 1e-4,
    seed: int = 0,
    name: str = "identity_resnet",
    **ablations: Any,
) -> keras.Model:
    """Build the network of Table 1: a 3x3 stem, stages of residual blocks, an average over space, a frozen random head.

    With the defaults it has 55 convolutions and 13,538,736 trainable parameters (the paper's "13.5M"). With `bias=True,
    shortcut="projection"` it has 13,588,800, the 13.59 million in the text of the paper.

    Args:
        input_shape: `(rows, cols, channels)`; rows and cols may be None. Images must be standardized, see
            `idmatters_tf.layers.PerImageStandardization`.
        classes: number of classes.
        blocks: number of residual blocks per stage.
        widths: channels of each stage. Each stage but the first starts with stride 2.
        stem: channels of the first convolution.
        weight_decay: rate in `rate * sum(w^2) / 2`, as in the paper's TensorFlow code, summed over the kernels of the
            convolutions and of a trained head, without biases and normalization parameters. `keras.regularizers.L2`,
            which has no factor 1/2, receives half of it.
        seed: non-negative integer that determines all kernels.
        name: name of the model.
        ablations: other fields of `idmatters_tf.models.layout.Layout` by name: `bias`, `shortcut`, `head`, `norm`,
            `norm_first`, `norm_momentum`, `initializer`, `branch_scale`, `negative_slope`.

    Returns:
        A `keras.Model` from images to logits, float32 also under a 16-bit dtype policy.
    """
    layout = cifar_layout(blocks, widths, stem, **ablations)
    return identity_network(input_shape, classes, layout, weight_decay=weight_decay, seed=seed, name=name)
