"""Internals of Keras: state that trainings of a model change outside of its variables."""

import contextlib
import random
from collections.abc import Callable, Iterator

import keras
import numpy as np

from idmatters_tf._keras_internals.keras_source import global_state, seed_generator
from idmatters_tf._keras_internals.variables import make_global_seed_state, recurrent_states


@contextlib.contextmanager
def kept_outer_state(model: keras.Model) -> Iterator[Callable[[], None]]:
    """Restore states of recurrent layers, and the generators of Keras, NumPy and Python, at the end.

    Yields:
        A function that restores the states of recurrent layers and the generator of Keras.
    """
    name = seed_generator.GLOBAL_SEED_GENERATOR
    existed = global_state.get_global_attribute(name) is not None
    variables = [make_global_seed_state(), *recurrent_states(model)]
    values = [keras.ops.convert_to_numpy(variable) for variable in variables]

    def restore() -> None:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)

    with seeded():
        try:
            yield restore
        finally:
            restore()
            if not existed:
                global_state.set_global_attribute(name, None)


@contextlib.contextmanager
def seeded(seed: int | None = None) -> Iterator[None]:
    """Seed the generators of NumPy and Python in the context, if there is a seed, and restore them at the end."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - the global generator
    if seed is not None:
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
