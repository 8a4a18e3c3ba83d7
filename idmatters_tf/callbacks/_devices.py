"""Training on several devices of one machine: values of variables on each device, and their number and kind.

Under `tf.distribute.MirroredStrategy` a variable has a part on each device. The parts of weights and slots are equal.
Those of metrics, and of batch normalization's moving averages, differ: they are saved and restored one by one. On JAX a
variable is one array, which `keras.distribution` places on the devices.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import keras

from idmatters_tf._keras_internals import distribution_layouts

ONE = "one device"


def read(variable: Any) -> Any:
    """Return the value of a variable as an array; a list with that of each device where they differ.

    Args:
        variable: a `keras.Variable` or `tf.Variable`.
    """
    values: list[Any] = [keras.ops.convert_to_numpy(part) for part in _parts(variable)]
    # Not ==, which takes NaN for different from itself.
    return values[0] if all(each.tobytes() == values[0].tobytes() for each in values) else values


def assign(variable: Any, value: Any) -> None:
    """Assign what `read` returned, to each device its own value."""
    parts = _parts(variable)
    values = value if isinstance(value, list) else [value] * len(parts)
    for part, each in zip(parts, values, strict=True):
        part.assign(each)


def identities(variable: Any) -> set[int]:
    """Return the identities of the objects that a traced function of TensorFlow may hold for a variable."""
    value = variable.value if isinstance(variable, keras.Variable) else variable
    return {id(value), *map(id, _parts(variable))}


def scope(model: keras.Model) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which variables are created on the devices that the model is trained on."""
    return _strategy(model).scope() if _replicas(model) > 1 else contextlib.nullcontext()


def check_devices(model: keras.Model) -> None:
    """Raise ValueError if a model is distributed otherwise than over the devices of one machine."""
    kind = type(_strategy(model)).__name__
    if _replicas(model) > 1 and kind != "MirroredStrategy":
        raise ValueError(
            f"ExactResume resumes under `tf.distribute.MirroredStrategy`. Received: {kind}, under which the training "
            f"programs of this package resume (docs/howto/clusters.md)."
        )
    distribution = keras.distribution.distribution()
    processes = getattr(distribution, "num_processes", 1)
    if processes > 1:
        raise ValueError(
            f"ExactResume resumes on the devices of one process. Received: {type(distribution).__name__} over "
            f"{processes} processes."
        )


def describe_devices(model: keras.Model) -> str:
    """Return the number and kind of the devices of a training run, and the way in which they share it."""
    distribution = keras.distribution.distribution()
    if _replicas(model) > 1:
        devices = [device.rpartition("device:")[2] for device in _strategy(model).extended.worker_devices]
        return f"{_counted(devices)} ({type(_strategy(model)).__name__})"
    if distribution is None or distribution.device_mesh.devices.size == 1:
        return ONE
    mesh = distribution.device_mesh
    axes = [f"{name} {size}" for name, size in zip(mesh.axis_names, mesh.shape, strict=True)]
    layouts = [f"{path} {axes}" for path, axes in distribution_layouts(distribution).items()]
    shared = ", ".join([type(distribution).__name__, *axes, *layouts])
    return f"{_counted(map(str, mesh.devices.flatten()))} ({shared})"


def _counted(devices: Any) -> str:
    kinds: Sequence[str] = [device.partition(":")[0].upper() for device in devices]
    return " and ".join(f"{kinds.count(kind)} {kind}s" for kind in sorted(set(kinds)))


def _strategy(model: keras.Model) -> Any:
    return getattr(model, "distribute_strategy", None)


def _replicas(model: keras.Model) -> int:
    return getattr(_strategy(model), "num_replicas_in_sync", 1)


def _parts(variable: Any) -> Sequence[Any]:
    value = variable.value if isinstance(variable, keras.Variable) else variable
    return getattr(value, "values", [variable])
