"""Seeds of the parts of a layer or model, as hashes of one seed."""

import keras
import numpy as np

from idmatters_tf._keras_types import Initializer


def reseed(initializer: Initializer, *salt: int) -> Initializer:
    """Return the initializer of one of several kernels: a copy with its integer seed, if any, mixed with `salt`.

    An initializer with an integer seed, or with none, returns the same numbers at each call. One with a
    `keras.random.SeedGenerator`, and a function of shape and dtype, are returned as they are.

    Args:
        initializer: a `keras.initializers.Initializer` or a function.
        salt: non-negative integers.
    """
    config = initializer.get_config() if isinstance(initializer, keras.initializers.Initializer) else {}
    seed = config.get("seed", initializer)
    if isinstance(seed, int):
        config["seed"] = mix_seed(seed, *salt)
    elif seed is not None:
        return initializer
    return type(initializer).from_config(config)


def mix_seed(seed: int, *salt: int) -> int:
    """Return a seed in [0, 2^31), a hash of non-negative integers."""
    return int(np.random.SeedSequence([seed, *salt]).generate_state(1)[0] >> 1)
