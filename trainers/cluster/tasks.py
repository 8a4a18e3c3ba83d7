"""Agreement of the tasks of a cluster on settings and data."""

from typing import TYPE_CHECKING, Any

from idmatters_tf.distribute import ClusterDescription
from idmatters_tf.distribute.tasks import gather
from trainers.cli.arguments import UsageError

if TYPE_CHECKING:
    import tensorflow as tf


class Cluster:
    """Tasks that train together, or a single process.

    Args:
        description: tasks of the cluster; None for a single process.
        strategy: the `tf.distribute.Strategy` of this task.

    Attributes:
        description: the argument.
        asynchronous: True if there are parameter servers.
        is_synchronous: True if several tasks make each update together.
        workers: number of tasks that compute gradients.
    """

    def __init__(self, description: ClusterDescription | None = None, strategy: "tf.distribute.Strategy | None" = None):
        self.description, self._strategy = description, strategy
        self.asynchronous = description is not None and description.asynchronous
        self.is_synchronous = description is not None and not description.asynchronous
        self.workers = 1 if description is None else description.workers

    def gather(self, value: Any) -> list[Any]:
        """Return the JSON values of all tasks that make updates together, the chief's first."""
        return [value] if self._strategy is None else gather(self._strategy, value)

    def agree(self, values: dict[str, Any], failure: type[Exception] = UsageError) -> None:
        """Raise the same error on all tasks if one has other values than the chief.

        Args:
            values: JSON values by name, such as settings.
            failure: class of the error.
        """
        chief, *others = self.gather(values)
        names = [] if self.description is None else list(self.description.tasks)
        for task, theirs in zip(names[1:], others, strict=False):
            differing = sorted(name for name in {*chief, *theirs} if chief.get(name) != theirs.get(name))
            if differing:
                listed = "; ".join(
                    f"{name} is {theirs.get(name)!r} at {task}, {chief.get(name)!r} at {names[0]}" for name in differing
                )
                raise failure(
                    f"the tasks of the cluster differ: {listed}. Start every task with the same command on the same "
                    f"data."
                )
