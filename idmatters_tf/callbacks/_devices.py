"""Training on several devices of one machine: values of variables on each device, and descriptions of the devices.

Under `tf.distribute.MirroredStrategy` a variable has a part on each device. The parts of weights and slots are equal.
The parts of metrics and of the moving averages of batch normalization differ and are saved and restored individually.
On JAX a variable is one array, which `keras.distribution` places on the devices.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import keras

from idmatters_tf._keras_internals import distribution_layouts


def read(variable: Any) -> Any:
    """Return the value of a variable as an array, or a list of the values on each device if they differ.

    Args:
        variable: a `keras.Variable` or `tf.Variable`.
    """
    values: list[Any] = [keras.ops.convert_to_numpy(part) for part in _parts(variable)]
    for value in values:
        # `Snapshot` copies only views, which change with the variable.
        value.flags.writeable = False
    # Bytes, since NaN is not equal to itself.
    return values[0] if all(value.tobytes() == values[0].tobytes() for value in values) else values


def assign(variable: Any, value: Any) -> None:
    """Assign a value that `read` returned to a variable on each device."""
    parts = _parts(variable)
    values = value if isinstance(value, list) else [value] * len(parts)
    for part, part_value in zip(parts, values, strict=True):
        part.assign(part_value)


def identities(variable: Any) -> set[int]:
    """Return the `id`s of the objects that a traced function of TensorFlow may contain for a variable."""
    value = variable.value if isinstance(variable, keras.Variable) else variable
    return {id(value), *map(id, _parts(variable))}


def scope(model: keras.Model) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which variables are created on the training devices of a model."""
    return _strategy(model).scope() if _replicas(model) > 1 else contextlib.nullcontext()


def check_devices(model: keras.Model) -> None:
    """Raise ValueError unless a model is trained on one device or on the devices of one machine."""
    kind = type(_strategy(model)).__name__
    if _replicas(model) > 1 and kind != "MirroredStrategy":
        raise ValueError(
            f"ExactResume supports one strategy, `tf.distribute.MirroredStrategy`. Received: {kind}. Use the training "
            f"programs of this package (docs/howto/clusters.md)."
        )
    distribution = keras.distribution.distribution()
    processes = getattr(distribution, "num_processes", 1)
    if processes > 1:
        raise ValueError(
            f"ExactResume supports the devices of one process. Received: {type(distribution).__name__} over "
            f"{processes} processes"
        )


def describe_devices(model: keras.Model) -> str:
    """Return the number and kind of the devices of a training run, and the distribution over them."""
    distribution = keras.distribution.distribution()
    if _replicas(model) > 1:
        devices = [device.rpartition("device:")[2] for device in _strategy(model).extended.worker_devices]
        shared = type(_strategy(model)).__name__
    elif distribution is None or distribution.device_mesh.devices.size == 1:
        return "one device"
    else:
        mesh = distribution.device_mesh
        devices = [str(device) for device in mesh.devices.flatten()]
        axes = [f"{name} {size}" for name, size in zip(mesh.axis_names, mesh.shape, strict=True)]
        layouts = [f"{path} {axes}" for path, axes in distribution_layouts(distribution).items()]
        shared = ", ".join([type(distribution).__name__, *axes, *layouts])
    kinds = sorted({device.partition(":")[0].upper() for device in devices})
    return f"{len(devices)} {' and '.join(kinds)}s ({shared})"


def _strategy(model: keras.Model) -> Any:
    return getattr(model, "distribute_strategy", None)


def _replicas(model: keras.Model) -> int:
    return getattr(_strategy(model), "num_replicas_in_sync", 1)


def _parts(variable: Any) -> Sequence[Any]:
    value = variable.value if isinstance(variable, keras.Variable) else variable
    return getattr(value, "values", [variable])
