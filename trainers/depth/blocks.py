"""Built-in block types in networks of one width, and their data: images for convolutions, text for transformers."""

import dataclasses
import pydoc_data.topics
from typing import Any

import keras
import numpy as np

from idmatters_tf.initializers import IdentityNormal, StandardNormal
from idmatters_tf.layers import BasicBlock2D, PerImageStandardization, ResidualConv2D
from idmatters_tf.optimizers import Muon
from trainers.experiments.program import DataSettings

CONVOLUTIONS = ("near-identity", "standard", "batch-norm", "zero-branch", "convnext", "pre-activation")
IMAGES = (*CONVOLUTIONS, "mlp", "mixer")
CHARACTERS, HEADS = 256, 4
# Number of images or sequences of short trainings.
TRAINING = 2048
# Functions of the learning rate.
OPTIMIZERS = {
    "momentum": lambda rate: keras.optimizers.SGD(rate, momentum=0.9),
    "adamw": lambda rate: keras.optimizers.AdamW(rate, weight_decay=0.1, beta_2=0.95),
    "muon": lambda rate: Muon(rate, 0.95, norm="free"),
}


@dataclasses.dataclass(frozen=True)
class Problem:
    """Block type with a batch of examples."""

    block: str
    width: int
    train_x: np.ndarray  # standardized images of float32, (n, rows, cols, channels), or bytes, (n, length)
    train_y: np.ndarray  # labels, (n,), or next bytes, (n, length)
    examples: int  # number of the first examples that profiles use
    origin: str

    @property
    def x(self) -> np.ndarray:
        """Examples of profiles."""
        return self.train_x[: self.examples]

    @property
    def y(self) -> np.ndarray:
        """Labels of the examples of profiles."""
        return self.train_y[: self.examples]

    @property
    def loss(self) -> keras.losses.Loss:
        """Cross-entropy of logits."""
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def build(self, depth: int) -> keras.Model:
        """Return the network with this number of blocks, whose weights depend on Keras' random seed.

        The weights of a network are those of the first layers, the first blocks and the head of a deeper one.
        """
        if self.block in CONVOLUTIONS:
            return self._convolutional(depth)
        return self._perceptron(depth) if self.block in IMAGES else self._transformer(depth)

    def block_names(self, depth: int) -> dict[str, tuple[str, str]]:
        """Return the layers at both ends of each block of `build(depth)`."""
        return {f"block{number}": (f"block{number - 1}", f"block{number}") for number in range(1, depth + 1)}

    def _convolutional(self, depth: int) -> keras.Model:
        """Return a network of blocks of two convolutions on patches of 8x8 pixels."""
        has_norm, width = self.block == "batch-norm", self.width
        initializer = IdentityNormal() if self.block == "near-identity" else StandardNormal()
        options: dict[str, Any] = {"kernel_initializer": initializer}
        options |= {"last_kernel_initializer": "zeros"} if self.block == "zero-branch" else {}
        inputs = keras.Input(self.x.shape[1:])
        standard: Any = StandardNormal()
        stem = keras.layers.Conv2D(width, 8, 8, use_bias=False, kernel_initializer=standard)(inputs)
        stem = keras.layers.BatchNormalization()(stem) if has_norm else stem
        hidden = keras.layers.Activation("relu" if has_norm else "linear", name="block0")(stem)
        head = keras.layers.Dense(10)
        for number in range(1, depth + 1):
            if self.block in ("convnext", "pre-activation"):
                block = _convnext if self.block == "convnext" else _preactivated
                hidden = block(hidden, f"block{number}")
                continue
            kind, arguments = (BasicBlock2D, {}) if has_norm else (ResidualConv2D, options)
            hidden = kind(width, name=f"block{number}", **arguments)(hidden)
        return keras.Model(inputs, head(keras.layers.GlobalAveragePooling2D()(hidden)))

    def _perceptron(self, depth: int) -> keras.Model:
        """Return a network of blocks of dense layers, on whole images or on patches of 8x8 pixels."""
        layers, width = keras.layers, self.width
        inputs = keras.Input(self.x.shape[1:])
        if self.block == "mlp":
            hidden = layers.Dense(width, name="block0")(layers.Flatten()(inputs))
        else:
            patches = layers.Conv2D(width, 8, 8)(inputs)
            hidden = layers.Reshape((-1, width), name="block0")(patches)
        head = layers.Dense(10)
        for number in range(1, depth + 1):
            if self.block == "mixer":
                branch = layers.Permute((2, 1))(layers.LayerNormalization()(hidden))
                branch = layers.Dense(hidden.shape[1])(layers.Dense(2 * hidden.shape[1], activation="gelu")(branch))
                hidden = layers.Add()([hidden, layers.Permute((2, 1))(branch)])
            branch = layers.Dense(2 * width, activation="gelu")(layers.LayerNormalization()(hidden))
            hidden = layers.Add(name=f"block{number}")([hidden, layers.Dense(width)(branch)])
        hidden = layers.LayerNormalization()(hidden)
        hidden = layers.GlobalAveragePooling1D()(hidden) if self.block == "mixer" else hidden
        return keras.Model(inputs, head(hidden))

    def _transformer(self, depth: int) -> keras.Model:
        """Return a causal language model. Causal masks and convolutions take the place of position embeddings."""
        layers, width = keras.layers, self.width
        is_pre = self.block == "pre-norm"
        inputs = keras.Input(self.x.shape[1:], dtype="int32")
        normal = keras.initializers.RandomNormal(stddev=1.0)
        hidden = layers.Embedding(CHARACTERS, width, embeddings_initializer=normal, name="block0")(inputs)
        head = layers.Dense(CHARACTERS)
        for number in range(1, depth + 1):
            if self.block == "gated":
                hidden = _gated(hidden, f"block{number}")
                continue
            for name in (None, f"block{number}"):
                branch = layers.LayerNormalization()(hidden) if is_pre else hidden
                if name is None:
                    branch = layers.MultiHeadAttention(HEADS, width // HEADS)(branch, branch, use_causal_mask=True)
                else:
                    branch = layers.Dense(4 * width, activation="gelu")(branch)
                    branch = layers.Dense(width, name=f"{name}_mlp_output")(branch)
                hidden = layers.Add(name=name if is_pre else None)([hidden, branch])
                hidden = hidden if is_pre else layers.LayerNormalization(name=name)(hidden)
        return keras.Model(inputs, head(layers.LayerNormalization()(hidden)))


def _convnext(hidden: Any, name: str) -> Any:
    """Return x + f(x) of Liu et al. (2022), *A ConvNet for the 2020s*, with a kernel of 3x3 and without layer scale."""
    width = hidden.shape[-1]
    branch = keras.layers.DepthwiseConv2D(3, padding="same")(hidden)
    branch = keras.layers.LayerNormalization()(branch)
    branch = keras.layers.Dense(4 * width, activation="gelu")(branch)
    return keras.layers.Add(name=name)([hidden, keras.layers.Dense(width)(branch)])


def _preactivated(hidden: Any, name: str) -> Any:
    """Return x + f(x) of He et al. (2016), *Identity Mappings in Deep Residual Networks*."""
    branch = hidden
    for _ in range(2):
        branch = keras.layers.ReLU()(keras.layers.BatchNormalization(momentum=0.9)(branch))
        branch = keras.layers.Conv2D(hidden.shape[-1], 3, padding="same", use_bias=False)(branch)
    return keras.layers.Add(name=name)([hidden, branch])


def _gated(hidden: Any, name: str) -> Any:
    """Return x + f(x) with a causal depthwise convolution and a gated linear unit after RMS normalization."""
    layers, width = keras.layers, hidden.shape[-1]
    branch = layers.RMSNormalization()(hidden)
    branch = layers.Conv1D(width, 4, padding="causal", groups=width)(branch)
    gate = layers.Dense(2 * width, activation="silu")(branch)
    product = layers.Multiply()([gate, layers.Dense(2 * width)(branch)])
    return layers.Add(name=name)([hidden, layers.Dense(width)(product)])


def load(block: str, width: int, data: DataSettings, examples: int, length: int) -> Problem:
    """Return a block type with its data: the first images of a data set, or random sequences of bytes of the text.

    The text is the language reference in Python's standard library, `pydoc_data`. It differs between versions.
    """
    count = max(examples, TRAINING)
    if block not in IMAGES:
        text = "\n".join(pydoc_data.topics.topics.values()).encode()
        starts = np.random.default_rng(0).integers(0, len(text) - length, count)
        sequences = np.frombuffer(text, np.uint8)[starts[:, None] + np.arange(length + 1)].astype(np.int32)
        return Problem(block, width, sequences[:, :-1], sequences[:, 1:], examples, "pydoc_data.topics")
    loaded = data.load(count, 10)
    images = np.asarray(PerImageStandardization()(loaded.train_images[:count]))
    return Problem(block, width, images, loaded.train_labels[: len(images)], examples, loaded.origin)
