"""Strategies of tf.distribute, and servers of asynchronous training."""

import os
from typing import TYPE_CHECKING

from idmatters_tf.distribute import ClusterDescription, mirrored_strategy, multi_worker_strategy
from idmatters_tf.distribute.tasks import wait_for_chief
from trainers.backends import runs_on_tensorflow
from trainers.cli.arguments import UsageError
from trainers.cli.startup import print_message
from trainers.run.signals import SignalHandler

if TYPE_CHECKING:
    import tensorflow as tf

# Number of seconds to wait for absent tasks of a cluster.
PATIENCE = 600.0


def make_strategy(cluster: ClusterDescription | None = None) -> "tf.distribute.Strategy | None":
    """Return the strategy of a cluster or of all GPUs of this machine; None on JAX, which has one device.

    Raises:
        UsageError: there is a cluster on JAX.
    """
    if not runs_on_tensorflow():
        if cluster is not None:
            raise UsageError("on JAX the programs train on one device. Use TensorFlow for a cluster.")
        return None
    import tensorflow as tf

    if cluster is not None:
        asynchronous = tf.distribute.ParameterServerStrategy
        return asynchronous(cluster.resolver()) if cluster.asynchronous else multi_worker_strategy(cluster=cluster)
    # Tests split the CPU into several logical devices.
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    return mirrored_strategy([device.name for device in devices]) if len(devices) > 1 else tf.distribute.get_strategy()


def replicas_of(strategy: "tf.distribute.Strategy | None") -> int:
    """Return the number of parts of a batch."""
    return 1 if strategy is None else strategy.num_replicas_in_sync


def serve(cluster: ClusterDescription) -> int:
    """Run a parameter server or a worker of asynchronous training until the coordinator has ended.

    SIGTERM and Ctrl-C are recorded only: a scheduler sends them to the coordinator as well, which needs the weights to
    save a checkpoint. A second signal ends the process at once. Returns the exit code.
    """
    import tensorflow as tf

    # At least as many threads as in TensorFlow's example of a worker; with fewer, its operations can deadlock.
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=max(4, os.cpu_count() or 1))
    with SignalHandler() as handler:
        jobs = tf.train.ClusterSpec(cluster.jobs)
        _server = tf.distribute.Server(jobs, cluster.job, cluster.index, protocol="grpc", config=config, start=True)
        print_message(f"{cluster.task} serves at {cluster.tasks[cluster.task]}")
        wait_for_chief(cluster, PATIENCE, print_message)
        print_message(f"{cluster.chief} ({cluster.tasks[cluster.chief]}) has ended")
    return 128 + handler.received if handler.received else 0
