"""Differences between the supported versions of Keras, 3.13 to 3.16.

Each name ends in the versions that it is for. It is deleted when support for these versions ends.
"""

from types import ModuleType

import keras


def _existing(module: ModuleType, name: str) -> tuple[type, ...]:
    """Return a tuple of the class with a name, for `isinstance`; an empty one without the class."""
    return (getattr(module, name),) if hasattr(module, name) else ()


# Keras 3.13 has no `OrbaxCheckpoint`; 3.13 and 3.14 have one optimizer for all variables.
ORBAX_CHECKPOINTS_SINCE_3_14 = _existing(keras.callbacks, "OrbaxCheckpoint")
OPTIMIZER_MAPS_SINCE_3_15 = _existing(keras.optimizers, "OptimizerMap")
SCHEDULE_FREE_SINCE_3_14 = _existing(keras.optimizers, "ScheduleFreeAdamW")
# Since 3.14 the loss of an activity regularizer is divided by the number of examples.
ACTIVITY_LOSSES_SINCE_3_14 = "sum" if keras.__version__.startswith("3.13.") else "mean"


def epoch_of_order_since_3_16(adapter: object) -> int | None:
    """Return the number by which a data adapter shuffles; None in versions that use the global generator of Python."""
    return getattr(adapter, "_epoch", None)
