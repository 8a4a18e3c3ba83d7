"""Training on several devices and machines: values of variables on each device, and descriptions of the devices.

Under a strategy of `tf.distribute` a variable has a part on each device. The parts of metrics and moving averages may
differ and are saved individually. For another number of devices they are combined. On JAX a variable is one array.
"""

import contextlib
from collections.abc import Sequence
from typing import TypeAlias

import keras
import numpy as np
from numpy.typing import NDArray

from idmatters_tf._keras_internals import distribution_layouts
from idmatters_tf._keras_types import Strategy, Tensor

# Value of a variable, or its values on each device if they differ.
Value: TypeAlias = NDArray[np.generic] | list[NDArray[np.generic]]

_PROPERTIES = "synchronization", "aggregation"
# Names of the supported strategies by class.
_STRATEGIES = {"CollectiveAllReduceStrategy": "MultiWorkerMirroredStrategy", "MirroredStrategy": "MirroredStrategy"}


class Reader:
    """Copies of variables in host memory, in arrays that the next copy overwrites."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[int, int], NDArray[np.generic]] = {}
        # Parts of TensorFlow's variables, which stay the same.
        self._parts: dict[int, Sequence[Tensor]] = {}

    def read(self, variable: object) -> Value:
        """Return the value of a variable as an array, or a list of the values on each device if they differ."""
        parts = self._parts.get(id(variable))
        if parts is None:
            parts = [part.value if isinstance(part, keras.Variable) else part for part in _parts(variable)]
            if hasattr(parts[0], "read_value"):
                self._parts[id(variable)] = parts
        values = [self._copy((id(variable), index), part) for index, part in enumerate(parts)]
        # As bytes, since NaN is not equal to itself.
        first = values[0].reshape(-1).view(np.uint8)
        equal = all(np.array_equal(first, value.reshape(-1).view(np.uint8)) for value in values[1:])
        return values[0] if equal else values

    def _copy(self, key: tuple[int, int], part: Tensor) -> NDArray[np.generic]:
        # A view of the memory of the backend, which copies it when the variable changes.
        value = np.asarray(part.read_value() if hasattr(part, "read_value") else part)
        buffer = self._buffers.get(key)
        if buffer is None or (buffer.shape, buffer.dtype) != (value.shape, value.dtype):
            buffer = self._buffers[key] = np.empty(value.shape, value.dtype)
        # `Snapshot` copies only arrays that are writeable.
        buffer.flags.writeable = True
        np.copyto(buffer, value)
        buffer.flags.writeable = False
        return buffer


def read(variable: object) -> Value:
    """Return a copy of the value of a variable, see `Reader`."""
    return Reader().read(variable)


def assign(variable: object, value: Value, devices: tuple[int, int, int] | None = None) -> None:
    """Assign a value that `read` returned to a variable on each device of this process.

    `devices` are the number of devices to which the value belongs, the number of devices now, and the index of the
    first device of this process. By default, they are those of this process.
    """
    parts = _parts(variable)
    before, now, first = devices or (len(parts), len(parts), 0)
    values = _combine(variable, split(value, before), now)
    for part, part_value in zip(parts, values[first:], strict=False):
        part.assign(part_value)


def split(value: Value, count: int) -> list[NDArray[np.generic]]:
    """Return the values on a number of devices."""
    return value if isinstance(value, list) else [value] * count


def _combine(variable, values, count):
    """Return values on `count` devices. For another number than before, they are combined by their aggregation."""
    if len(values) == count:
        return values
    first = values[0]
    total = np.sum([np.asarray(value, "float64") for value in values], axis=0)
    # Enumerations of TensorFlow or texts of Keras.
    kind = [getattr(getattr(variable, name, ""), "name", getattr(variable, name, "")).lower() for name in _PROPERTIES]
    if kind == ["on_read", "sum"]:
        return [total.astype(first.dtype), *[np.zeros_like(first)] * (count - 1)]
    return [(total / len(values)).astype(first.dtype) if kind == ["on_read", "mean"] else first] * count


def count_parts(model: keras.Model) -> int:
    """Return the number of parts of a variable in this process."""
    return len(_strategy(model).extended.worker_devices) if count_replicas(model) > 1 else 1


def identities(variable: object) -> set[int]:
    """Return the `id`s of the objects that a traced function of TensorFlow may contain for a variable."""
    value = variable.value if isinstance(variable, keras.Variable) else variable
    return {id(value), *map(id, _parts(variable))}


def scope(model: keras.Model) -> contextlib.AbstractContextManager[object]:
    """Return a context in which variables are created on the training devices of a model."""
    return _strategy(model).scope() if count_replicas(model) > 1 else contextlib.nullcontext()


def check_devices(model: keras.Model) -> None:
    """Raise ValueError unless the devices of a model are supported."""
    kind = type(_strategy(model)).__name__
    if count_replicas(model) > 1 and kind not in _STRATEGIES:
        raise ValueError(
            f"ExactResume supports the strategies of `idmatters_tf.distribute`, MirroredStrategy and "
            f"MultiWorkerMirroredStrategy. Received: {kind}"
        )
    if keras.backend.backend() == "jax":
        import jax

        if jax.process_count() > 1:
            raise ValueError(
                f"ExactResume supports one process on JAX, with any number of devices. Received: "
                f"{jax.process_count()} processes of `jax.distributed`"
            )


def describe_devices(model: keras.Model) -> str:
    """Return the number and kind of the devices of a training run, and the distribution over them."""
    distribution = keras.distribution.distribution()
    if count_replicas(model) > 1:
        devices = [device.rpartition("device:")[2] for device in _strategy(model).extended.worker_devices]
        shared = _STRATEGIES[type(_strategy(model)).__name__]
        devices *= count_replicas(model) // len(devices)
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


def _strategy(model: keras.Model) -> Strategy:
    return getattr(model, "distribute_strategy", None)


def count_replicas(model: keras.Model) -> int:
    """Return the number of parts of a variable in all processes."""
    return getattr(_strategy(model), "num_replicas_in_sync", 1)


def _parts(variable: object) -> Sequence[Tensor]:
    value = variable.value if isinstance(variable, keras.Variable) else variable
    return getattr(value, "values", [variable])
