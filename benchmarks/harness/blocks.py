"""Types of residual blocks in networks of one width, and their data: built-in images for convolutions, text for others.

near-identity    two convolutions, initialized near zero (Hardt & Ma)
standard         the same with standard initialization
pre-activation   two convolutions, each after batch normalization and ReLU (He et al., 2016)
convnext         depthwise convolution, layer normalization and two dense layers (Liu et al., 2022), without layer scale
mlp, mixer       two dense layers after layer normalization; such layers on patches and on channels
pre-norm         attention and two dense layers, each after layer normalization
gated            causal convolution and gated linear unit after RMS normalization
"""

import dataclasses
import pydoc_data.topics
from typing import Any

import keras
import numpy as np
from keras import layers

from idmatters_tf.data import shapes
from idmatters_tf.initializers import IdentityNormal, StandardNormal
from idmatters_tf.layers import PerImageStandardization, ResidualConv2D
from idmatters_tf.optimizers import Muon

CONVOLUTIONS = ("near-identity", "standard", "convnext", "pre-activation")
IMAGES = (*CONVOLUTIONS, "mlp", "mixer")
BLOCKS = (*IMAGES, "pre-norm", "gated")
CHARACTERS, HEADS = 256, 4
# Number of images or sequences.
TRAINING = 2048
# Functions of the learning rate.
OPTIMIZERS = {
    "momentum": lambda rate: keras.optimizers.SGD(rate, momentum=0.9),
    "adamw": lambda rate: keras.optimizers.AdamW(rate, weight_decay=0.1, beta_2=0.95),
    "muon": lambda rate: Muon(rate, 0.95, norm="free"),
}


@dataclasses.dataclass(frozen=True)
class Problem:
    """Block type with its data."""

    block: str
    width: int
    train_x: np.ndarray  # standardized images of float32, (n, rows, cols, channels), or bytes, (n, length)
    train_y: np.ndarray  # labels, (n,), or next bytes, (n, length)

    @property
    def loss(self) -> keras.losses.Loss:
        """Cross-entropy of logits."""
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def build(self, depth: int) -> keras.Model:
        """Return the network with this number of blocks, whose weights depend on Keras' random seed.

        The weights of a network are those of the first layers, the first blocks and the head of a deeper one. The
        outputs of the layers "block0" to "blockN" are the ends of the blocks.
        """
        kernels: Any = IdentityNormal() if self.block == "near-identity" else None
        if kernels is None and self.block in CONVOLUTIONS:
            kernels = StandardNormal()
        inputs = keras.Input(self.train_x.shape[1:], dtype="float32" if self.block in IMAGES else "int32")
        hidden, width = self._stem(inputs), self.width
        head = layers.Dense(10 if self.block in IMAGES else CHARACTERS)
        for number in range(1, depth + 1):
            hidden = self._block(hidden, f"block{number}", kernels)
        if self.block in CONVOLUTIONS:
            return keras.Model(inputs, head(layers.GlobalAveragePooling2D()(hidden)))
        hidden = layers.LayerNormalization()(hidden)
        assert hidden.shape[-1] == width
        return keras.Model(inputs, head(layers.GlobalAveragePooling1D()(hidden) if self.block == "mixer" else hidden))

    def _stem(self, inputs: Any) -> Any:
        if self.block in CONVOLUTIONS:
            kernel: Any = StandardNormal()
            stem = layers.Conv2D(self.width, 8, 8, use_bias=False, kernel_initializer=kernel)(inputs)
            return layers.Activation("linear", name="block0")(stem)
        if self.block == "mlp":
            return layers.Dense(self.width, name="block0")(layers.Flatten()(inputs))
        if self.block == "mixer":
            return layers.Reshape((-1, self.width), name="block0")(layers.Conv2D(self.width, 8, 8)(inputs))
        # Causal masks and convolutions take the place of position embeddings.
        normal = keras.initializers.RandomNormal(stddev=1.0)
        return layers.Embedding(CHARACTERS, self.width, embeddings_initializer=normal, name="block0")(inputs)

    def _block(self, hidden: Any, name: str, kernels: Any) -> Any:
        width = self.width
        if self.block in ("near-identity", "standard"):
            return ResidualConv2D(width, name=name, kernel_initializer=kernels)(hidden)
        branch = hidden
        if self.block == "convnext":
            branch = layers.LayerNormalization()(layers.DepthwiseConv2D(3, padding="same")(branch))
            branch = layers.Dense(4 * width, activation="gelu")(branch)
            branch = layers.Dense(width)(branch)
        elif self.block == "pre-activation":
            for _ in range(2):
                branch = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(branch))
                branch = layers.Conv2D(width, 3, padding="same", use_bias=False)(branch)
        elif self.block == "gated":
            branch = layers.RMSNormalization()(branch)
            branch = layers.Conv1D(width, 4, padding="causal", groups=width)(branch)
            gate = layers.Dense(2 * width, activation="silu")(branch)
            branch = layers.Multiply()([gate, layers.Dense(2 * width)(branch)])
            branch = layers.Dense(width)(branch)
        else:
            if self.block == "mixer":
                branch = layers.Permute((2, 1))(layers.LayerNormalization()(hidden))
                branch = layers.Dense(hidden.shape[1])(layers.Dense(2 * hidden.shape[1], activation="gelu")(branch))
                hidden = layers.Add()([hidden, layers.Permute((2, 1))(branch)])
            elif self.block == "pre-norm":
                branch = layers.LayerNormalization()(hidden)
                branch = layers.MultiHeadAttention(HEADS, width // HEADS)(branch, branch, use_causal_mask=True)
                hidden = layers.Add()([hidden, branch])
            wide = 4 * width if self.block == "pre-norm" else 2 * width
            branch = layers.Dense(wide, activation="gelu")(layers.LayerNormalization()(hidden))
            branch = layers.Dense(width)(branch)
        return layers.Add(name=name)([hidden, branch])


def load(block: str, width: int, length: int, count: int = TRAINING) -> Problem:
    """Return a block type with its data: built-in images, or random sequences of bytes of a text.

    The text is the language reference in Python's standard library, `pydoc_data`. It differs between versions.
    """
    if block not in IMAGES:
        text = "\n".join(pydoc_data.topics.topics.values()).encode()
        starts = np.random.default_rng(0).integers(0, len(text) - length, count)
        sequences = np.frombuffer(text, np.uint8)[starts[:, None] + np.arange(length + 1)].astype(np.int32)
        return Problem(block, width, sequences[:, :-1], sequences[:, 1:])
    loaded = shapes.load(count, 10)
    images = np.asarray(PerImageStandardization()(loaded.train_images[:count]))
    return Problem(block, width, images, loaded.train_labels[: len(images)])
