"""Training data in torchdata's `StatefulDataLoader`.

A loader and its sampler draw from generators at the beginning of an epoch. The states of these generators and of
torch's global generator are saved with that of the loader: at the beginning of an epoch before the draw, within an
epoch after it.
"""

from typing import Any

import numpy as np

from idmatters_tf._keras_internals import RunningFit
from idmatters_tf.callbacks._sources.base import choose_steps_per_epoch
from idmatters_tf.callbacks._sources.iterators import SavedIterator

_TENSOR = "torch.Tensor"


class TorchLoader(SavedIterator):
    """Batches of a `StatefulDataLoader` over a dataset with a length.

    Args:
        fit: the running `fit`.

    Raises:
        ValueError: the loader cannot be saved, or an epoch of `fit` is not one pass over it.
    """

    def __init__(self, fit: RunningFit):
        self._fit, self._loader = fit, fit.data
        if not hasattr(self._loader, "load_state_dict"):
            raise ValueError(
                "ExactResume cannot restore the position of a torch DataLoader. Use torchdata's `StatefulDataLoader`, "
                "which takes the same arguments."
            )
        length = fit.adapter.num_batches
        steps = choose_steps_per_epoch(fit, length)
        if steps != length:
            raise ValueError(
                f"An epoch must be one pass over the StatefulDataLoader, which has {length} batches. Received: "
                f"steps_per_epoch={steps}. Remove this argument."
            )
        super().__init__(steps, endless=False)

    def _begin(self) -> Any:
        self._before = self._random_states()
        return self._fit.converted(iter(self._loader))

    def _save(self) -> Any:
        if self._is_fresh:
            return {"random": self._before, "loader": None}
        return {"random": self._random_states(), "loader": _with_arrays(self._loader.state_dict())}

    def _load(self, state: Any) -> None:
        self._set_random_states(state["random"])
        if state["loader"] is not None:
            self._loader.load_state_dict(_with_tensors(state["loader"]))
        self._iterator = self._begin()
        if state["loader"] is not None:
            # The new iterator has repeated the draws at the beginning of the epoch.
            self._set_random_states(state["random"])

    def _generators(self):
        import torch  # pyright: ignore[reportMissingImports]

        own = [self._loader.generator, getattr(self._loader.sampler, "generator", None)]
        return [torch.default_generator, *(each for each in own if each is not None)]

    def _random_states(self):
        return [each.get_state().numpy() for each in self._generators()]

    def _set_random_states(self, states):
        import torch  # pyright: ignore[reportMissingImports]

        for generator, state in zip(self._generators(), states, strict=True):
            generator.set_state(torch.from_numpy(np.array(state)))


def _with_arrays(value):
    """Replace each torch tensor in nested plain data by a marked array."""
    if isinstance(value, dict):
        return {key: _with_arrays(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_with_arrays(each) for each in value)
    return {_TENSOR: value.numpy()} if hasattr(value, "numpy") else value


def _with_tensors(value):
    """Revert `_with_arrays`."""
    import torch  # pyright: ignore[reportMissingImports]

    if isinstance(value, dict):
        if set(value) == {_TENSOR}:
            return torch.from_numpy(np.array(value[_TENSOR]))
        return {key: _with_tensors(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_with_tensors(each) for each in value)
    return value
