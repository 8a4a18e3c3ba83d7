"""Strategies of tf.distribute."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from idmatters_tf.data.protocols import Share
from trainers.cli.arguments import UsageError
from trainers.cluster.description import ClusterDescription


def make(name: str, logical_cpus: int = 1, cluster: ClusterDescription | None = None) -> tf.distribute.Strategy:
    """Return a `tf.distribute.Strategy`.

    Args:
        name: strategy returned by `trainers.training.settings.resolve_strategy`.
        logical_cpus: number of logical devices of the CPU, to test several replicas without several GPUs.
        cluster: description of the cluster, for the strategies of several processes.

    Raises:
        UsageError: TensorFlow has already initialized its devices with another number of logical CPUs.
    """
    if logical_cpus > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        try:
            tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * logical_cpus)
        except RuntimeError as error:
            raise UsageError(
                f"--logical-cpus {logical_cpus} cannot be set after the start of TensorFlow: {error}"
            ) from error
    if name == "multi-worker" and cluster is not None:
        return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=cluster.resolver())
    if name == "parameter-server" and cluster is not None:
        return tf.distribute.ParameterServerStrategy(cluster.resolver())
    devices = tf.config.list_logical_devices("GPU")
    if len(devices) < 2 and logical_cpus > 1:
        devices = tf.config.list_logical_devices("CPU")
    if name == "mirrored" or (name == "auto" and len(devices) > 1):
        return tf.distribute.MirroredStrategy([device.name for device in devices] or ["CPU:0"])
    return tf.distribute.get_strategy()


def distribute(strategy: tf.distribute.Strategy, make_dataset: Callable[[Share], tf.data.Dataset]) -> Any:
    """Return a distributed data set; `make_dataset(share)` builds the data set of one input pipeline."""

    def for_pipeline(context):
        count = context.num_replicas_in_sync // context.num_input_pipelines
        return make_dataset(Share(context.num_replicas_in_sync, context.input_pipeline_id * count, count))

    return strategy.distribute_datasets_from_function(for_pipeline)
