"""Interface between `ExactResume` and a kind of training data."""

from typing import Any

from idmatters_tf._keras_internals import RunningFit


class Source:
    """Training data of a running `fit`, with a position that can be saved and restored.

    `ExactResume` calls, in this order: `digest` and `first_batch`; `attach`; `restore` if there is a checkpoint; `seek`
    before each epoch; `state` for each checkpoint; `close`.

    Attributes:
        steps_per_epoch: number of batches in an epoch.
    """

    steps_per_epoch: int

    def first_batch(self) -> Any:
        """Return the first batch of the data as NumPy arrays: (x,), (x, y) or (x, y, sample_weight).

        The position is unchanged.
        """
        raise NotImplementedError

    def digest(self) -> str:
        """Return a checksum of the first batch.

        Raises:
            ValueError: the data are not deterministic.
        """
        raise NotImplementedError

    def attach(self, fit: RunningFit) -> None:
        """Make the running `fit` take its batches from this source."""
        raise NotImplementedError

    def seek(self, epoch: int, offset: int = 0) -> None:
        """Begin the next pass of `fit` at a batch. After `restore`, it is the batch that was restored.

        Args:
            epoch: number of the epoch, from 0.
            offset: number of batches of the epoch that are left out.
        """
        raise NotImplementedError

    def state(self, epoch: int, offset: int) -> Any:
        """Return the state for a checkpoint: plain data and arrays. None if the position alone is sufficient.

        Args:
            epoch, offset: position of the next batch to train on. Data that are loaded ahead are further.
        """
        return None

    def restore(self, state: Any, epoch: int, offset: int) -> None:
        """Restore the state of a checkpoint.

        Args:
            state: as `state` returned it; None also for a checkpoint of an earlier version.
            epoch, offset: position of the next batch to train on.

        Raises:
            ValueError: the data are not those of the checkpoint.
        """

    def close(self) -> None:
        """Release the data after the last epoch."""


def choose_steps_per_epoch(fit: RunningFit, length: int | None) -> int:
    """Return the number of batches in an epoch of `fit`.

    Args:
        fit: the running `fit`.
        length: number of batches in the data; None if it is infinite or unknown.

    Raises:
        ValueError: there is neither a length nor `steps_per_epoch` in `fit`.
    """
    steps = fit.steps_per_epoch or length
    if steps is None:
        raise ValueError(
            f"The length of the training data, {fit.kind}, is infinite or unknown. Give `fit` `steps_per_epoch`."
        )
    return steps
