"""Strategies of tf.distribute for the devices and tasks of a run, and agreement of the tasks on its settings."""

from typing import TYPE_CHECKING, Any

from idmatters_tf.distribute import ClusterDescription, mirrored_strategy, multi_worker_strategy
from idmatters_tf.distribute import tasks as library
from trainers.cli.arguments import UsageError

if TYPE_CHECKING:
    import tensorflow as tf


def make_strategy(name: str, cluster: ClusterDescription | None = None) -> "tf.distribute.Strategy":
    """Return a `tf.distribute.Strategy`.

    Args:
        name: strategy returned by `trainers.training.settings.resolve_strategy`.
        cluster: description of the cluster, for the strategies of several processes.
    """
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
    """Raise the same UsageError on all tasks if one has other values than the chief.

    Args:
        cluster: tasks of the cluster; None for a single process.
        strategy: strategy of this task.
        values: JSON values by name, such as settings.
    """
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
