"""Strategies of tf.distribute."""

import tensorflow as tf

from idmatters_tf.distribute import ClusterDescription, mirrored_strategy, multi_worker_strategy


def make(name: str, cluster: ClusterDescription | None = None) -> tf.distribute.Strategy:
    """Return a `tf.distribute.Strategy`.

    Args:
        name: strategy returned by `trainers.training.settings.resolve_strategy`.
        cluster: description of the cluster, for the strategies of several processes.
    """
    if name == "multi-worker" and cluster is not None:
        return multi_worker_strategy(cluster=cluster)
    if name == "parameter-server" and cluster is not None:
        return tf.distribute.ParameterServerStrategy(cluster.resolver())
    # Tests split the CPU into several logical devices.
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    if name == "mirrored" or (name == "auto" and len(devices) > 1):
        return mirrored_strategy([device.name for device in devices])
    return tf.distribute.get_strategy()
