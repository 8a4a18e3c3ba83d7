"""Workers and parameter servers of asynchronous training."""

import os
from collections.abc import Callable

import tensorflow as tf

from idmatters_tf.distribute import ClusterDescription
from idmatters_tf.distribute.tasks import wait_for_chief
from trainers.run.signals import SignalHandler


def serve(cluster: ClusterDescription, timeout: float, say: Callable[[str], object]) -> int:
    """Run a parameter server or a worker until the coordinator has ended. Returns the exit code.

    SIGTERM and Ctrl-C are recorded only: a scheduler sends them to the coordinator as well, which needs the weights to
    save a checkpoint. A second signal ends the process at once.

    Args:
        cluster: tasks of the cluster.
        timeout: number of seconds to wait for the coordinator.
        say: called with messages for the user.
    """
    # At least as many threads as in TensorFlow's example of a worker; with fewer, its operations can deadlock.
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=max(4, os.cpu_count() or 1))
    with SignalHandler() as handler:
        _server = tf.distribute.Server(
            tf.train.ClusterSpec(cluster.jobs),
            job_name=cluster.job,
            task_index=cluster.index,
            protocol="grpc",
            config=config,
            start=True,
        )
        say(f"{cluster.task} serves at {cluster.tasks[cluster.task]}")
        wait_for_chief(cluster, timeout, say, "--cluster-timeout")
        say(f"{cluster.chief} ({cluster.tasks[cluster.chief]}) has ended")
    return 128 + handler.received if handler.received else 0
