"""Strategies of tf.distribute, agreement of the tasks of a cluster, and servers of asynchronous training."""

import os
from typing import TYPE_CHECKING, Any

from idmatters_tf.distribute import ClusterDescription, mirrored_strategy, multi_worker_strategy
from idmatters_tf.distribute import tasks as library
from trainers.cli.arguments import UsageError
from trainers.cli.startup import print_message
from trainers.run.signals import SignalHandler

if TYPE_CHECKING:
    import tensorflow as tf


def make_strategy(name: str, cluster: ClusterDescription | None = None) -> "tf.distribute.Strategy":
    """Return the `tf.distribute.Strategy` of a name from `trainers.training.settings.resolve_strategy`."""
    import tensorflow as tf

    if name == "multi-worker" and cluster is not None:
        return multi_worker_strategy(cluster=cluster)
    if name == "parameter-server" and cluster is not None:
        return tf.distribute.ParameterServerStrategy(cluster.resolver())
    # Tests split the CPU into several logical devices.
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    if name == "mirrored" or (name == "auto" and len(devices) > 1):
        return mirrored_strategy([device.name for device in devices])
    return tf.distribute.get_strategy()


def gather(strategy: "tf.distribute.Strategy | None", value: Any) -> list[Any]:
    """Return the JSON values of all tasks that make updates together, the chief's first."""
    return [value] if strategy is None else library.gather(strategy, value)


def check_agreement(
    cluster: ClusterDescription | None, strategy: "tf.distribute.Strategy | None", values: dict[str, Any]
) -> None:
    """Raise the same UsageError on all tasks if one has other JSON values, such as settings, than the chief."""
    chief, *others = gather(strategy, values)
    names = [] if cluster is None else list(cluster.tasks)
    for task, theirs in zip(names[1:], others, strict=False):
        differing = sorted(name for name in {*chief, *theirs} if chief.get(name) != theirs.get(name))
        if differing:
            listed = "; ".join(
                f"{name} is {theirs.get(name)!r} at {task}, {chief.get(name)!r} at {names[0]}" for name in differing
            )
            raise UsageError(
                f"the tasks of the cluster differ: {listed}. Start every task with the same command on the same data."
            )


def serve(cluster: ClusterDescription, timeout: float) -> int:
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
        library.wait_for_chief(cluster, timeout, print_message, "--cluster-timeout")
        print_message(f"{cluster.chief} ({cluster.tasks[cluster.chief]}) has ended")
    return 128 + handler.received if handler.received else 0
