"""Strategies of tf.distribute."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from idmatters_tf.data.protocols import Share
from idmatters_tf.distribute import ClusterDescription


def make(name: str, cluster: ClusterDescription | None = None) -> tf.distribute.Strategy:
    """Return a `tf.distribute.Strategy`.

    Args:
        name: strategy returned by `trainers.training.settings.resolve_strategy`.
        cluster: description of the cluster, for the strategies of several processes.
    """
    if name == "multi-worker" and cluster is not None:
        return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=cluster.resolver())
    if name == "parameter-server" and cluster is not None:
        return tf.distribute.ParameterServerStrategy(cluster.resolver())
    # Tests split the CPU into several logical devices.
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    if name == "mirrored" or (name == "auto" and len(devices) > 1):
        return tf.distribute.MirroredStrategy([device.name for device in devices])
    return tf.distribute.get_strategy()


def distribute(strategy: tf.distribute.Strategy, make_dataset: Callable[[Share], tf.data.Dataset]) -> Any:
    """Return a distributed data set; `make_dataset(share)` builds the data set of one input pipeline."""

    def for_pipeline(context):
        count = context.num_replicas_in_sync // context.num_input_pipelines
        return make_dataset(Share(context.num_replicas_in_sync, context.input_pipeline_id * count, count))

    return strategy.distribute_datasets_from_function(for_pipeline)
