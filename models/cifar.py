"""The all-convolutional residual network for CIFAR: Hardt & Ma, *Identity Matters in Deep Learning*, Table 1."""

from collections.abc import Sequence

import keras

from idmatters_tf.models.identity import identity_network
from idmatters_tf.models.layout import Head, Initializer, Norm, Shortcut, cifar_layout


def identity_resnet(
    input_shape: Sequence[int | None] = (32, 32, 3),
    classes: int = 10,
    blocks: int = 9,
    widths: Sequence[int] = (64, 128, 256),
    stem: int = 16,
    bias: bool = False,
    shortcut: Shortcut = "pad",
    head: Head = "random",
    norm: Norm | None = None,
    norm_first: bool = False,
    norm_momentum: float = 0.99,
    initializer: Initializer = "identity",
    branch_scale: float | None = None,
    negative_slope: float = 0.0,
    weight_decay: float = 1e-4,
    seed: int = 0,
    name: str = "identity_resnet",
) -> keras.Model:
    """The network of Table 1: a 3x3 stem, stages of residual blocks, an average over space and a frozen random head.

    With the defaults it has 55 convolutions and 13,538,736 trainable parameters (the paper's "13.5M"). Its text also
    says 13.59 million: that is 13,588,800, reached with `bias=True, shortcut="projection"`.

    Args:
        input_shape: `(rows, cols, channels)`; rows and cols may be None. Images are expected standardised, see
            `idmatters_tf.layers.PerImageStandardization`.
        classes: the number of classes.
        blocks: residual blocks per stage.
        widths: channels of each stage. Each stage but the first starts with stride 2.
        stem: channels of the first convolution, which has no activation.
        bias: whether the 3x3 convolutions have biases.
        shortcut: "pad", "projection", or "none" for the standard parameterisation without skips.
        head: "random" for the paper's frozen N(0, 1/fan_in) matrix, "trained" for a trained one (with a bias) that
            starts uniform with the same variance, as that of the paper's base code, "zero" for a trained one that
            starts at zero: with blocks near the identity the zero-asymmetric start of Wu, Wang & Ma (arXiv 1911.00645).
        norm: None, or "batch" for batch normalisation after every 3x3 convolution; "synchronized" takes its statistics
            over all replicas of a `tf.distribute` strategy.
        norm_first: batch normalisation before each convolution of a branch and before the average over space, as in
            the paper's base code, rather than behind each convolution.
        norm_momentum: of batch normalisation's moving averages; 0.9 in the paper's base code.
        initializer: of the residual convolutions: "identity" for N(0, (1/(k^2 c))^2), "standard" for
            N(0, (1/(k sqrt c))^2), or "fixup" (Zhang et al., 2019): He's divided by sqrt(branches) for the first
            convolution of a branch, zeros for the second and for a trained head. The method's multipliers are
            `branch_scale=1.0`, its biases (one each there, one a channel here) `bias=True`.
        branch_scale: None, or where a trained factor on each branch starts: 0.0 with `initializer="standard"` is
            SkipInit (De & Smith, 2020) and ReZero (Bachlechner et al., 2020).
        negative_slope: of the ReLUs, 0.1 in the paper's base code; the paper says ReLU, which is 0.
        weight_decay: the rate as the paper's TensorFlow code meant it, `rate * sum(w^2) / 2` over the kernels of the
            convolutions (and of a trained head): half of it goes to `keras.regularizers.L2`, which has no 1/2. Biases
            and normalisation parameters are not decayed.
        seed: a non-negative integer; every kernel's values follow from it.
        name: the model's name.

    Returns:
        A `keras.Model` from images to logits, float32 also under a 16-bit dtype policy.
    """
    layout = cifar_layout(
        blocks,
        tuple(widths),
        stem,
        bias=bias,
        shortcut=shortcut,
        head=head,
        norm=norm,
        norm_first=norm_first,
        norm_momentum=norm_momentum,
        initializer=initializer,
        branch_scale=branch_scale,
        negative_slope=negative_slope,
    )
    return identity_network(layout, input_shape, classes, weight_decay, seed, name)
