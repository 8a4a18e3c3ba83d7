"""Two logical devices of the CPU, created before a backend starts if an environment variable is set."""

import functools
import os

import keras
import numpy as np

VARIABLE = "IDMATTERS_TEST_DEVICES"
ARE_MADE = os.environ.get(VARIABLE) == "2"

if ARE_MADE and keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    logical = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], logical)
elif ARE_MADE:
    import jax

    jax.config.update("jax_num_cpu_devices", 2)


def scope():
    """Return a context for creating a model, and on JAX training it, on both devices with a part of each batch."""
    if keras.backend.backend() == "tensorflow":
        return _strategy().scope()
    return keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"]).scope()


@functools.cache
def _strategy():
    """Return the only strategy of the process. Two strategies would use the same numbers for collective operations."""
    import tensorflow as tf

    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def split():
    """Return a context on JAX in which the kernels of dense layers are split over the devices."""
    mesh = keras.distribution.DeviceMesh((1, 2), ["batch", "model"], ["cpu:0", "cpu:1"])
    layouts = keras.distribution.LayoutMap(mesh)
    layouts[".*dense.*kernel"] = (None, "model")
    return keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch").scope()


def parts(variables):
    """Return the values of each variable on each of its devices."""
    found = []
    for variable in variables:
        value = variable.value if isinstance(variable, keras.Variable) else variable
        if keras.backend.backend() == "jax":
            found.append([np.asarray(shard.data) for shard in value.addressable_shards])
        else:
            found.append([keras.ops.convert_to_numpy(part) for part in getattr(value, "values", [value])])
    return found
