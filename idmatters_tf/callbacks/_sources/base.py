"""Interface between `ExactResume` and a kind of training data."""

from typing import Any

from idmatters_tf._keras_internals import RunningFit


class Source:
    """Training data of a running `fit`, with a position that can be saved and restored.

    `ExactResume` calls, in this order: `attach`; `restore` if there is a checkpoint; `seek` before each epoch; `state`
    for each checkpoint; `close`. Constructors raise ValueError for data that are not deterministic.

    Attributes:
        steps_per_epoch: number of batches in an epoch.
        first_batch: first batch of the data as NumPy arrays: (x,), (x, y) or (x, y, sample_weight).
        digest: checksum of the first batch.
    """

    steps_per_epoch: int
    first_batch: Any
    digest: str

    def attach(self, fit: RunningFit) -> None:
        """Make the running `fit` take its batches from this source."""
        raise NotImplementedError

    def seek(self, epoch: int, offset: int = 0) -> None:
        """Begin the next pass of `fit` at a batch of an epoch. After `restore`, it is the batch that was restored."""
        raise NotImplementedError

    def state(self, epoch: int, offset: int) -> Any:
        """Return the state for a checkpoint as plain data and arrays, or None if the position is sufficient.

        Args:
            epoch: epoch of the next training batch. The data may be loaded further ahead.
            offset: index of the next training batch in the epoch.
        """
        return None

    def restore(self, state: Any) -> None:
        """Restore the result of `state`. Raise ValueError if the data differ from those of the checkpoint."""

    def close(self) -> None:
        """Release the data after the last epoch."""


def choose_steps_per_epoch(fit: RunningFit, length: int | None) -> int:
    """Return the number of batches in an epoch of `fit`.

    Args:
        fit: the running `fit`.
        length: number of batches in the data; None if it is infinite or unknown.

    Raises:
        ValueError: the length is unknown and `fit` has no `steps_per_epoch`.
    """
    steps = fit.steps_per_epoch or length
    if steps is None:
        raise ValueError(
            f"The length of the training data, {fit.kind}, is infinite or unknown. Pass `steps_per_epoch` to `fit`."
        )
    return steps
