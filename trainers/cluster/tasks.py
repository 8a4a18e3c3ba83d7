"""Tasks of a cluster: wait for absent ones, exchange values, and name lost ones in error messages.

TensorFlow's coordination service connects the tasks and detects lost ones: the collective operations of the remaining
tasks then raise an error within seconds. It neither names absent tasks nor reacts to signals while it waits for them,
so `wait_for_tasks` waits first.
"""

import contextlib
import json
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from trainers.cli.arguments import RunError, UsageError
from trainers.cluster.description import ClusterDescription

if TYPE_CHECKING:
    import tensorflow as tf

FIRST_NOTICE_SECONDS, NOTICE_SECONDS = 3.0, 30.0
# Time in which other tasks, which try every 0.2 seconds, find this one before TensorFlow takes over its port.
_LINGER_SECONDS = 1.0
# Time without a connection after which the coordinator counts as ended.
_ENDED_SECONDS = 10.0


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
        if self._strategy is None or not self.is_synchronous:
            return [value]
        import tensorflow as tf

        codes = tf.constant([*json.dumps(value).encode(), ord("\n")], tf.int32)
        values = self._strategy.experimental_distribute_values_from_function(lambda _replica: tf.identity(codes))
        lines = bytes(self._strategy.gather(values, axis=0).numpy().tolist()).splitlines()
        # Each replica of a task contributes the same line.
        return [json.loads(line) for line in lines[:: len(lines) // self.workers]]

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


def wait_for_tasks(description: ClusterDescription, timeout: float, say: Callable[[str], object]) -> None:
    """Wait until all tasks have been started, before TensorFlow connects them.

    Args:
        description: tasks of the cluster. Each listens at its own address.
        timeout: number of seconds to wait.
        say: called with the names of absent tasks, after 3 seconds and then every 30 seconds.

    Raises:
        UsageError: the port of this task cannot be used.
        RunError: tasks are still absent after the timeout.
    """
    port = _split(description.tasks[description.task])[1]
    try:
        listener = socket.create_server(("", port))
    except OSError as error:
        raise UsageError(
            f"{description.task} cannot listen on port {port} of this machine: {error.strerror}. End the process that "
            f"uses the port, or name another one in {description.source}."
        ) from error
    absent = {task: address for task, address in description.tasks.items() if task != description.task}
    with listener:
        _connect_to(absent, description.task, timeout, say)
        time.sleep(_LINGER_SECONDS)


def wait_for_chief(description: ClusterDescription, timeout: float, say: Callable[[str], object]) -> None:
    """Wait for the coordinator of an asynchronous cluster, and then until it has ended.

    Raises:
        RunError: the coordinator is absent after the timeout.
    """
    address = description.tasks[description.chief]
    _connect_to({description.chief: address}, description.task, timeout, say)
    seen = time.monotonic()
    while time.monotonic() - seen < _ENDED_SECONDS:
        time.sleep(1.0)
        if _answers(address):
            seen = time.monotonic()


@contextlib.contextmanager
def explain_lost_tasks(description: ClusterDescription | None, advice: Callable[[], str]) -> Iterator[None]:
    """Raise RunError in place of an error of TensorFlow after the loss of another task.

    Args:
        description: tasks of the cluster; None for a single process.
        advice: returns a sentence about the last checkpoint.
    """
    try:
        yield
    except Exception as error:
        errors: Any = getattr(sys.modules.get("tensorflow"), "errors", None)
        if description is None or errors is None or not isinstance(error, errors.OpError):
            raise
        task = _find_task(str(error), description)
        if task is None and not isinstance(error, errors.UnavailableError | errors.AbortedError):
            raise
        lost = "another task" if task is None else f"{task} ({description.tasks[task]})"
        raise RunError(
            f"{lost} was lost: it was killed, its network failed, or it ended with an error message of its own.",
            f"{advice()} To resume, start every task again with the same command.",
        ) from error


def _connect_to(absent, task, timeout, say):
    began = time.monotonic()
    notice = began + FIRST_NOTICE_SECONDS
    while True:
        absent = {other: address for other, address in absent.items() if not _answers(address)}
        if not absent:
            return
        listed = ", ".join(f"{other} ({address})" for other, address in absent.items())
        if time.monotonic() - began > timeout:
            raise RunError(
                f"{task} waited {timeout:g} seconds (--cluster-timeout) for {listed}. Start every task of the "
                f"cluster, and check that its address can be reached from here."
            )
        if time.monotonic() > notice:
            say(f"{task} waits for {listed} (at most {timeout:g} seconds)")
            notice += NOTICE_SECONDS
        time.sleep(0.2)


def _answers(address):
    try:
        socket.create_connection(_split(address), timeout=2).close()
    except OSError:
        return False
    return True


def _split(address):
    host, port = address.rsplit(":", 1)
    return host.strip("[]"), int(port)


def _find_task(message, description):
    """Return the other task that an error message of TensorFlow names, or None."""
    for job, index in re.findall(r"/job:(\w+)/replica:\d+/task:(\d+)", message):
        if f"{job} {index}" in description.tasks and f"{job} {index}" != description.task:
            return f"{job} {index}"
    for task, address in description.tasks.items():
        host, port = _split(address)
        with contextlib.suppress(OSError):
            host = socket.gethostbyname(host)
        if task != description.task and f"{host}:{port}" in message:
            return task
    return None
