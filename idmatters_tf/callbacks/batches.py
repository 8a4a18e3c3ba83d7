"""Batches for `fit` that are a function of (seed, step), so that training can go on with the very next one."""

import hashlib
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from numpy.typing import NDArray

from idmatters_tf._arguments import positive_integer, seed_number

if TYPE_CHECKING:
    from idmatters_tf.data.protocols import TrainBatchSource


class Batches(keras.utils.PyDataset):
    """Training data for `fit` that `ExactResume` can enter at any batch.

    A sub-class gives `batch(step)`. `ExactResume` tells it where an epoch begins; without that callback, and in
    `evaluate` and `predict`, each epoch has the batches of the first one, since Keras does not tell its data which
    epoch it is.

    Args:
        steps_per_epoch: batches in an epoch.
    """

    def __init__(self, steps_per_epoch: int):
        super().__init__()
        self.steps_per_epoch = positive_integer("steps_per_epoch", steps_per_epoch)
        self._epoch = self._offset = 0

    def batch(self, step: int) -> Any:
        """The batch of a step, see `idmatters_tf.data.protocols.BatchSource`.

        Returns:
            `(x,)`, `(x, y)` or `(x, y, sample_weight)`; each an array, or a list, tuple or dict of arrays.
        """
        raise NotImplementedError

    def seek(self, epoch: int, offset: int = 0) -> None:
        """Has the next pass over the batches be the rest of an epoch.

        Args:
            epoch: its number, from 0.
            offset: how many of its batches are left out.
        """
        self._epoch, self._offset = epoch, offset

    @property
    def num_batches(self) -> int:
        """How many batches the next pass has."""
        return self.steps_per_epoch - self._offset

    def __getitem__(self, index: int) -> Any:
        return self.arrays(self._epoch * self.steps_per_epoch + self._offset + index)

    def arrays(self, step: int) -> Any:
        """The batch of a step as NumPy's arrays."""
        return as_arrays(self.batch(step), f"at step {step}")

    def digest(self, step: int) -> str:
        """A checksum of the batch of a step."""
        return checksum(self.arrays(step))


def as_arrays(batch: Any, where: str) -> Any:
    """Return a batch as a tuple of one to three parts, which consist of new NumPy arrays.

    Args:
        batch: an array or a dict; or a tuple or list of one to three parts, see `Batches.batch`.
        where: place of the batch in the data, for error messages.

    Raises:
        ValueError: there are more parts, or one does not consist of arrays of numbers.
    """
    parts = tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
    if not 1 <= len(parts) <= 3:
        raise ValueError(f"A batch must be (x,), (x, y) or (x, y, sample_weight). Received: {len(parts)} parts {where}")
    # TensorFlow's data sets would stack the arrays of a list. Copies, since under MirroredStrategy TensorFlow takes
    # aligned arrays of a generator without copying them, and computes in place: it would change the caller's data.
    arrays: Any = keras.tree.map_structure(np.array, keras.tree.lists_to_tuples(parts))
    if any(array.dtype.kind == "O" for array in keras.tree.flatten(arrays)):
        raise ValueError(f"A batch must consist of arrays of numbers. Received {where}: {batch!r:.200}")
    return arrays


def checksum(arrays: Any) -> str:
    """Return the SHA-256 sum of nested NumPy arrays: of their places, types, shapes and values."""
    found = hashlib.sha256()
    for path, array in keras.tree.flatten_with_path(arrays):
        found.update(f"{path} {array.dtype} {array.shape} ".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


class ArrayBatches(Batches):
    """Batches of arrays, in an order that is a function of (seed, epoch).

    `ExactResume` uses them for arrays in `fit(x, y)`. Give them to `fit` directly for memory-mapped arrays, which are
    then read batch by batch; Keras copies arrays into memory on TensorFlow. As in `fit(x, y)`, the last batch of an
    epoch is a smaller one where the batch size does not divide the number of examples, and floating-point arrays become
    `keras.config.floatx()`.

    Args:
        x: an array with the examples along its first axis, or a list, tuple or dict of such arrays.
        y: the targets, in the same form; None: there are none.
        sample_weight: `(examples,)`, or in the form of `y`; None: there are none.
        batch_size: examples in a batch.
        seed: of the order, a non-negative integer.
        shuffle: False leaves the examples in the order of the arrays, in every epoch.

    Raises:
        ValueError: arrays of different lengths or without examples.
    """

    def __init__(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        batch_size: int = 32,
        seed: int = 0,
        shuffle: bool = True,
    ):
        given = (x,) if y is None else (x, y) if sample_weight is None else (x, y, sample_weight)
        if y is None and sample_weight is not None:
            raise ValueError("Argument `sample_weight` needs targets. Received: y=None")
        self._arrays = keras.tree.map_structure(np.asanyarray, given)
        lengths = sorted({len(array) if array.ndim else 0 for array in keras.tree.flatten(self._arrays)})
        if len(lengths) != 1 or not lengths[0]:
            raise ValueError(
                f"The arrays must have the same number of examples, at least one, along their first axis. Received "
                f"arrays of lengths {lengths}"
            )
        self.examples = lengths[0]
        self.batch_size = positive_integer("batch_size", batch_size)
        self.seed, self.shuffle = seed_number(seed), shuffle
        self._order: tuple[int, NDArray[np.int64]] | None = None
        super().__init__(-(-self.examples // self.batch_size))

    def order(self, epoch: int) -> NDArray[np.int64]:
        """The examples of an epoch in their order, (examples,)."""
        # One look at the attribute: a thread that fetches ahead may be at the next epoch already.
        known = self._order
        if known is None or known[0] != epoch:
            order = np.arange(self.examples)
            if self.shuffle:
                order = np.random.default_rng((self.seed, epoch)).permutation(self.examples)
            known = self._order = (epoch, order)
        return known[1]

    def batch(self, step: int) -> Any:
        epoch, index = divmod(step, self.steps_per_epoch)
        rows = self.order(epoch)[index * self.batch_size : (index + 1) * self.batch_size]
        return keras.tree.map_structure(lambda array: _as_fit_takes_them(array[rows]), self._arrays)


class FunctionBatches(Batches):
    """Batches that a function of the step gives.

    Args:
        function: `step -> batch`, see `Batches.batch`, with the step as an `int`. Or one of this package's
            `TrainBatches` and `StreamTrainBatches`, whose `batch` is then compiled by TensorFlow.
        steps_per_epoch: batches in an epoch, after which metrics are recorded and the validation runs; the function
            sees one endless sequence of steps.
    """

    def __init__(self, function: "Callable[[int], Any] | TrainBatchSource", steps_per_epoch: int):
        super().__init__(steps_per_epoch)
        source = getattr(function, "batch", None)
        if source is not None and not inspect.isfunction(function):
            self._function = _compiled(source)
        elif callable(function):
            self._function = function
        else:
            raise ValueError(
                f"Argument `function` must be a function of the step, or have a method `batch` that is one. Received: "
                f"function={function!r}"
            )

    def batch(self, step: int) -> Any:
        return self._function(step)


def _compiled(batch):
    import tensorflow as tf

    signature = [tf.TensorSpec([], tf.int64)]
    compiled = tf.function(lambda step: batch(step), input_signature=signature, autograph=False)
    return lambda step: compiled(tf.constant(step, tf.int64))


def _as_fit_takes_them(array):
    return array.astype(keras.config.floatx()) if array.dtype.kind == "f" else array
