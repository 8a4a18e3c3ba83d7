"""Built-in block types in networks of one width, and their data: images for convolutions, text for transformers."""

import dataclasses
import hashlib
import pydoc_data.topics

import keras
import numpy as np

from idmatters_tf.data import cifar, shapes
from idmatters_tf.initializers import IdentityNormal, StandardNormal
from idmatters_tf.layers import BasicBlock2D, ResidualConv2D

CONVOLUTIONS = ("near-identity", "standard", "batch-norm", "zero-branch")
CHARACTERS, HEADS = 256, 4


@dataclasses.dataclass(frozen=True)
class Problem:
    """Block type with a batch of examples."""

    block: str
    width: int
    x: np.ndarray  # standardized images of float32, (examples, rows, cols, channels), or bytes, (examples, length)
    y: np.ndarray  # labels, (examples,), or next bytes, (examples, length)
    origin: str

    @property
    def digest(self) -> str:
        """Checksum of the data."""
        return hashlib.sha256(self.x.tobytes() + self.y.tobytes()).hexdigest()

    @property
    def loss(self) -> keras.losses.Loss:
        """Cross-entropy of logits."""
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def build(self, depth: int) -> keras.Model:
        """Return the network with this number of blocks, whose weights depend on Keras' random seed."""
        return self._convolutional(depth) if self.block in CONVOLUTIONS else self._transformer(depth)

    def block_names(self, depth: int) -> dict[str, tuple[str, str]]:
        """Return the layers at both ends of each block of `build(depth)`."""
        return {f"block{number}": (f"block{number - 1}", f"block{number}") for number in range(1, depth + 1)}

    def _convolutional(self, depth: int) -> keras.Model:
        """Return a network of blocks of two convolutions on patches of 4x4 pixels."""
        has_norm = self.block == "batch-norm"
        inputs = hidden = keras.Input(self.x.shape[1:])
        initializer = "he_normal" if has_norm else StandardNormal()
        stem = "stem" if has_norm else "block0"
        hidden = keras.layers.Conv2D(self.width, 4, 4, use_bias=False, kernel_initializer=initializer, name=stem)(
            hidden
        )
        if has_norm:
            hidden = keras.layers.ReLU(name="block0")(keras.layers.BatchNormalization()(hidden))
        for number in range(1, depth + 1):
            hidden = self._convolutional_block(f"block{number}")(hidden)
        return keras.Model(inputs, keras.layers.Dense(10)(keras.layers.GlobalAveragePooling2D()(hidden)))

    def _convolutional_block(self, name: str) -> keras.layers.Layer:
        if self.block == "batch-norm":
            return BasicBlock2D(self.width, name=name)
        initializer = IdentityNormal() if self.block == "near-identity" else StandardNormal()
        last = "zeros" if self.block == "zero-branch" else None
        return ResidualConv2D(self.width, kernel_initializer=initializer, last_kernel_initializer=last, name=name)

    def _transformer(self, depth: int) -> keras.Model:
        """Return a causal language model without position embeddings: the causal mask breaks the symmetry."""
        pre = self.block == "pre-norm"
        inputs = keras.Input(self.x.shape[1:], dtype="int32")
        normal = keras.initializers.RandomNormal(stddev=1.0)
        hidden = keras.layers.Embedding(CHARACTERS, self.width, embeddings_initializer=normal, name="block0")(inputs)
        for number in range(1, depth + 1):
            for part in ("attention", "mlp"):
                name = f"block{number}" if part == "mlp" else None
                branch = keras.layers.LayerNormalization()(hidden) if pre else hidden
                if part == "attention":
                    attention = keras.layers.MultiHeadAttention(HEADS, self.width // HEADS)
                    branch = attention(branch, branch, use_causal_mask=True)
                else:
                    branch = keras.layers.Dense(4 * self.width, activation="gelu")(branch)
                    branch = keras.layers.Dense(self.width)(branch)
                hidden = keras.layers.Add(name=name if pre else None)([hidden, branch])
                hidden = hidden if pre else keras.layers.LayerNormalization(name=name)(hidden)
        hidden = keras.layers.LayerNormalization()(hidden) if pre else hidden
        return keras.Model(inputs, keras.layers.Dense(CHARACTERS)(hidden))


def load(
    block: str, width: int, dataset: str, data_dir: str | None, download: bool, examples: int, length: int
) -> Problem:
    """Return a block type with its data: the first images of a data set, or random sequences of the text.

    The text is the language reference in Python's standard library, `pydoc_data`. It differs between versions.
    """
    if block not in CONVOLUTIONS:
        text = "\n".join(pydoc_data.topics.topics.values()).encode()
        starts = np.random.default_rng(0).integers(0, len(text) - length, examples)
        sequences = np.frombuffer(text, np.uint8)[starts[:, None] + np.arange(length + 1)].astype(np.int32)
        return Problem(block, width, sequences[:, :-1], sequences[:, 1:], "pydoc_data.topics")
    data = shapes.load(examples, 10) if dataset == "shapes" else cifar.load(dataset, data_dir, download)
    images = data.train_images[:examples].astype(np.float32)
    axes = (1, 2, 3)
    images = (images - images.mean(axes, keepdims=True)) / images.std(axes, keepdims=True)
    return Problem(block, width, images, data.train_labels[:examples], data.origin)
