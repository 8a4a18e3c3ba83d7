"""Keras layers with identity parameterization, in pure Keras, for every backend.

ResidualConv2D           x + C2(relu(C1 x)), the block of Hardt & Ma's all-convolutional networks
PadShortcut2D            average pooling and zero channels: the shortcut without parameters for changes of shape
BasicBlock2D             He et al.'s block with batch normalization, plain or pre-activated, for comparison
ScaledConv2D             a convolution with a trained gain for each channel
ScaledResidualConv2D     the residual block with trained gains, for fast training without normalization
RandomProjection         a frozen random matrix in place of a trained last layer
ResidualDense            h + V relu(U h + s), the block of the expressivity theorem
LinearResidual           h + A h, the block of the landscape theorem
ShortcutUnit             h + post(W_n mid(... mid(W_1 pre(h)))), Li et al.'s n-shortcut unit
PerImageStandardization  (x - mean) / std of each image, for models that take raw pixels
ClassNames               names of the classes, saved with a model
"""

from idmatters_tf.layers.basic_block import BasicBlock2D
from idmatters_tf.layers.convolutional import PadShortcut2D, ResidualConv2D
from idmatters_tf.layers.dense import LinearResidual, RandomProjection, ResidualDense, ShortcutUnit
from idmatters_tf.layers.preprocessing import ClassNames, PerImageStandardization
from idmatters_tf.layers.scaled import ScaledConv2D, ScaledResidualConv2D

__all__ = [
    "BasicBlock2D",
    "ClassNames",
    "LinearResidual",
    "PadShortcut2D",
    "PerImageStandardization",
    "RandomProjection",
    "ResidualConv2D",
    "ResidualDense",
    "ScaledConv2D",
    "ScaledResidualConv2D",
    "ShortcutUnit",
]
