"""Batches for `fit` that are a function of (seed, step), so that training can resume at any batch."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from numpy.typing import NDArray

from idmatters_tf._arguments import positive_integer, seed_number
from idmatters_tf._keras_types import Arrays, Structure

if TYPE_CHECKING:
    from idmatters_tf.data.protocols import TrainBatchSource


class Batches(keras.utils.PyDataset):
    """Base class of training data for `fit` with random access to batches.

    Subclasses implement `batch(step)`. `ExactResume` sets the position at the beginning of each epoch. Without this
    callback, and in `evaluate` and `predict`, every epoch has the batches of the first one, since Keras does not pass
    the number of the epoch to its data.

    Args:
        steps_per_epoch: number of batches in an epoch.
    """

    def __init__(self, steps_per_epoch: int):
        super().__init__()
        self.steps_per_epoch = positive_integer("steps_per_epoch", steps_per_epoch)
        self._epoch = self._offset = 0

    def batch(self, step: int) -> Structure:
        """Return the batch of a step, which is the number of batches before it since the start of training.

        The batch is the same in any order of calls and in any process. Derive random numbers from the step, as in
        `numpy.random.default_rng((seed, step))`.

        Returns:
            `(x,)`, `(x, y)` or `(x, y, sample_weight)`; each an array, or a list, tuple or dict of arrays.
        """
        raise NotImplementedError

    def seek(self, epoch: int, offset: int = 0) -> None:
        """Set the next pass over the batches to the remainder of an epoch.

        Args:
            epoch: number of the epoch, from 0.
            offset: number of batches of the epoch to skip.
        """
        self._epoch, self._offset = epoch, offset

    @property
    def num_batches(self) -> int:
        """Number of batches in the next pass."""
        return self.steps_per_epoch - self._offset

    def __getitem__(self, index: int) -> Structure:
        return self.arrays(self._epoch * self.steps_per_epoch + self._offset + index)

    def arrays(self, step: int) -> Structure:
        """Return the batch of a step as NumPy arrays."""
        return as_arrays(self.batch(step), f"at step {step}")


def as_arrays(batch: Structure, where: str) -> Structure:
    """Return a batch as a tuple of one to three parts of new NumPy arrays.

    Args:
        batch: an array, a dict, or a tuple or list of one to three parts, see `Batches.batch`.
        where: position of the batch in the data, for error messages.

    Raises:
        ValueError: the batch has more parts, or one does not consist of arrays of numbers.
    """
    parts = tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
    if not 1 <= len(parts) <= 3:
        raise ValueError(f"A batch must be (x,), (x, y) or (x, y, sample_weight). Received: {len(parts)} parts {where}")
    # TensorFlow's datasets stack the arrays of a list, hence tuples. The arrays are copies, since TensorFlow uses
    # aligned arrays of a generator in place under MirroredStrategy and would change the data of the caller.
    arrays: Structure = keras.tree.map_structure(np.array, keras.tree.lists_to_tuples(parts))
    if any(array.dtype.kind == "O" for array in keras.tree.flatten(arrays)):
        raise ValueError(
            f"A batch must consist of arrays of numbers. Received {where}: {batch!r:.200}. Pass strings in a "
            f"`tf.data.Dataset`, such as `Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=0).batch(32)`."
        )
    return arrays


class ArrayBatches(Batches):
    """Batches of arrays, in an order that is a function of (seed, epoch).

    `ExactResume` uses this class for arrays in `fit(x, y)`. Pass it to `fit` directly to read memory-mapped arrays
    batch by batch, since Keras copies arrays into memory on TensorFlow. As in `fit(x, y)`, the last batch of an epoch
    is smaller if the batch size does not divide the number of examples, and floating-point arrays are converted to
    `keras.config.floatx()`.

    Args:
        x: an array with the examples along its first axis, or a list, tuple or dict of such arrays.
        y: targets in the same form, or None.
        sample_weight: array of shape `(examples,)`, or in the form of `y`, or None.
        batch_size: number of examples in a batch.
        seed: seed of the order, a non-negative integer.
        shuffle: if False, every epoch has the order of the arrays.

    Raises:
        ValueError: the arrays have different lengths or no examples.
    """

    def __init__(
        self,
        x: Arrays,
        y: Arrays | None = None,
        sample_weight: Arrays | None = None,
        batch_size: int = 32,
        seed: int = 0,
        shuffle: bool = True,
    ):
        given = (x,) if y is None else (x, y) if sample_weight is None else (x, y, sample_weight)
        if y is None and sample_weight is not None:
            raise ValueError("Argument `sample_weight` requires targets. Received: y=None")
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
        """Return the indices of the examples in the order of an epoch, of shape (examples,)."""
        # The attribute is read once: a thread that loads ahead may set that of the next epoch.
        known = self._order
        if known is None or known[0] != epoch:
            order = np.arange(self.examples)
            if self.shuffle:
                order = np.random.default_rng((self.seed, epoch)).permutation(self.examples)
            known = self._order = (epoch, order)
        return known[1]

    def batch(self, step: int) -> Structure:
        epoch, index = divmod(step, self.steps_per_epoch)
        rows = self.order(epoch)[index * self.batch_size : (index + 1) * self.batch_size]
        return keras.tree.map_structure(lambda array: _cast_to_floatx(array[rows]), self._arrays)


class FunctionBatches(Batches):
    """Batches returned by a function of the step.

    Args:
        function: `step -> batch`, see `Batches.batch`, with the step as an `int`; or an object with such a method
            `batch`, as a `TrainBatches` or `StreamTrainBatches` of this package. With `ExactResume` on TensorFlow,
            `fit` reads its `dataset` in place of single batches.
        steps_per_epoch: number of batches in an epoch, after which metrics are recorded and validation runs. The steps
            that are passed to the function continue over all epochs.
    """

    def __init__(self, function: "Callable[[int], Structure] | TrainBatchSource", steps_per_epoch: int):
        super().__init__(steps_per_epoch)
        # Object whose `dataset(first_step, steps, share)` begins at any step, see `TrainBatchSource`.
        self.source: Any = function if hasattr(function, "dataset") else None
        self._function: Any = getattr(function, "batch", function)
        if not callable(self._function):
            raise ValueError(
                f"Argument `function` must be a function of the step, or an object with such a method `batch`. "
                f"Received: function={function!r}"
            )

    def batch(self, step: int) -> Structure:
        return self._function(step)


def _cast_to_floatx(array):
    return array.astype(keras.config.floatx()) if array.dtype.kind == "f" else array
