"""Many residual blocks as one layer. Thousands of Keras layers take minutes to build, save and load."""

from collections.abc import Sequence
from typing import Unpack

import keras
from keras import ops

from idmatters_tf._arguments import positive_integer
from idmatters_tf._keras_types import Initializer, LayerOptions, Shape, Tensor
from idmatters_tf._seeds import reseed
from idmatters_tf.layers.dense import ResidualDense, last_dimension
from idmatters_tf.layers.wide import WideLayer


@keras.saving.register_keras_serializable(package="idmatters_tf")
class ResidualDenseStack(WideLayer):
    """Chain of `ResidualDense` blocks: `h <- h + V_j relu(U_j h + s_j)` for j = 1, ..., blocks.

    The weights of all blocks are stacked in three variables and the layer scans over them. Memory grows with the batch,
    not with the number of blocks; only gradients need the activations of every block.

    Outside training the layer multiplies h by the U of `lookahead` blocks at once. If none of their units is active for
    any row of the batch, it skips these blocks, which are the identity on such inputs. In the memorizers of
    `idmatters_tf.expressivity` each training row activates one block of thousands.

    Source: Hardt & Ma, *Identity Matters in Deep Learning*, Eq. 3.1 and Theorem 3.2.

    Args:
        blocks: number of blocks. `U` has shape (blocks, dim, units), `s` (blocks, units) and `V` (blocks, units, dim).
            Their slices are the weights of a `ResidualDense`.
        units: hidden width k of each block.
        lookahead: number of blocks that are tested at once outside training; 1 for no test.
        kernel_initializer: initializer of U and V, called with their stacked shapes; N(0, 0.01^2) if None. Initializers
            that depend on the shape, such as Glorot's, interpret the number of blocks as a receptive field.
        bias_initializer: initializer of s.

    Input shape:
        `(batch, ..., dim)`.

    Output shape:
        The same as the input shape; float32 under a 16-bit dtype policy.

    Example:

    >>> stack = ResidualDenseStack(blocks=1000, units=8)
    >>> tuple(stack(keras.ops.ones((2, 5))).shape), len(stack.weights), stack.count_params()
    ((2, 5), 3, 88000)
    >>> stack.block(999)(keras.ops.ones((2, 5))).shape == (2, 5)
    True
    """

    def __init__(
        self,
        blocks: int,
        units: int,
        lookahead: int = 1,
        kernel_initializer: Initializer = None,
        bias_initializer: Initializer = "zeros",
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self.blocks = positive_integer("blocks", blocks, self)
        self.units = positive_integer("units", units, self)
        self.lookahead = positive_integer("lookahead", lookahead, self)
        small = keras.initializers.RandomNormal(stddev=0.01)
        self.kernel_initializer: Initializer = keras.initializers.get(kernel_initializer) or small
        self.bias_initializer: Initializer = keras.initializers.get(bias_initializer)
        # XLA cannot differentiate loops of a length unknown at tracing time, and is not faster here.
        self.supports_jit = keras.backend.backend() != "tensorflow"

    def build(self, input_shape: Shape) -> None:
        dim = last_dimension(input_shape, self)
        first, second = (reseed(self.kernel_initializer, number) for number in range(2))
        self.U = self.add_weight(name="U", shape=(self.blocks, dim, self.units), initializer=first)
        self.s = self.add_weight(name="s", shape=(self.blocks, self.units), initializer=self.bias_initializer)
        self.V = self.add_weight(name="V", shape=(self.blocks, self.units, dim), initializer=second)

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        weights: list[Tensor] = [self.narrow(ops.convert_to_tensor(weight)) for weight in (self.U, self.s, self.V)]
        inputs = self.wide(inputs)
        if training or self.lookahead == 1:
            return _chain(inputs, weights)
        groups = self.blocks // self.lookahead
        whole = groups * self.lookahead
        grouped = [ops.reshape(w[:whole], (groups, self.lookahead, *w.shape[1:])) for w in weights]
        scanned: Tensor = ops.scan(_skip_inactive, inputs, tuple(grouped), length=groups) if groups else (inputs, None)
        outputs = scanned[0]
        return _chain(outputs, [w[whole:] for w in weights]) if whole < self.blocks else outputs

    def block(self, number: int) -> ResidualDense:
        """Return block `number` (0 is applied first) as a `ResidualDense` with a copy of the weights."""
        if not self.built:
            raise ValueError(f"Layer {self.name} has no weights yet. Call the layer on data first.")
        if not 0 <= number < self.blocks:
            raise ValueError(f"Argument `number` must be in 0..{self.blocks - 1}. Received: number={number}")
        block = ResidualDense(self.units, dtype=self.dtype_policy, name=f"{self.name}_block{number}")
        block.build((None, self.U.shape[1]))
        for name in ("U", "s", "V"):
            getattr(block, name).assign(getattr(self, name)[number])
        return block


def _chain(h: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Apply blocks one after the other. The weights are U, s and V, stacked along the first axis."""

    def block(h: Tensor, weights: Sequence[Tensor]) -> tuple[Tensor, None]:
        U, s, V = weights
        hidden: Tensor = ops.matmul(ops.cast(h, U.dtype), U)
        return h + ops.cast(ops.matmul(ops.relu(hidden + s), V), h.dtype), None

    scanned: Tensor = ops.scan(block, h, tuple(weights), length=weights[0].shape[0])
    return scanned[0]


def _skip_inactive(h: Tensor, weights: Sequence[Tensor]) -> tuple[Tensor, None]:
    """Apply a group of blocks, or return h if none of their units is active: then each block is the identity."""
    U, s, _ = weights
    wide: Tensor = ops.reshape(ops.transpose(U, (1, 0, 2)), (U.shape[1], -1))
    hidden: Tensor = ops.matmul(ops.cast(h, wide.dtype), wide)
    # A comparison needs one array of batch times units less than a sum. A sum rounds to 0 only if it is 0.
    thresholds: Tensor = ops.negative(ops.reshape(s, (-1,)))
    active = ops.any(hidden > thresholds)
    return ops.cond(active, lambda: _chain(h, weights), lambda: h), None
