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

from idmatters_tf.distribute.description import ClusterDescription, ClusterError

if TYPE_CHECKING:
    import tensorflow as tf

FIRST_NOTICE_SECONDS, NOTICE_SECONDS = 3.0, 30.0
# Time in which other tasks, which try every 0.2 seconds, find this one before TensorFlow takes over its port.
_LINGER_SECONDS = 1.0
# Time without a connection after which the coordinator counts as ended.
_ENDED_SECONDS = 10.0


class TaskLost(RuntimeError):
    """Another task of the cluster is absent or was lost. The message names it."""


def gather(strategy: "tf.distribute.Strategy", value: Any) -> list[Any]:
    """Return the JSON values of all workers of a strategy, the chief's first.

    All workers must call this function. The values of a strategy of one process are `[value]`.
    """
    import tensorflow as tf

    workers = count_workers(strategy)
    if workers == 1:
        return [value]
    codes = tf.constant([*json.dumps(value).encode(), ord("\n")], tf.int32)
    values = strategy.experimental_distribute_values_from_function(lambda _replica: tf.identity(codes))
    lines = bytes(strategy.gather(values, axis=0).numpy().tolist()).splitlines()
    # Each replica of a worker contributes the same line.
    return [json.loads(line) for line in lines[:: len(lines) // workers]]


def count_workers(strategy: "tf.distribute.Strategy") -> int:
    """Return the number of processes of a strategy that make each update together."""
    import tensorflow as tf

    several = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    jobs = strategy.cluster_resolver.cluster_spec().as_dict() if several else {}
    return max(1, sum(len(jobs.get(job, ())) for job in ("chief", "worker")))


def wait_for_tasks(
    description: ClusterDescription, timeout: float, say: Callable[[str], object], option: str = "timeout"
) -> None:
    """Wait until all tasks have been started, before TensorFlow connects them.

    Args:
        description: tasks of the cluster. Each listens at its own address.
        timeout: number of seconds to wait.
        say: called with the names of absent tasks, after 3 seconds and then every 30 seconds.
        option: name of the user's option for `timeout`, for messages.

    Raises:
        ClusterError: the port of this task cannot be used.
        TaskLost: tasks are still absent after the timeout.
    """
    port = _split(description.tasks[description.task])[1]
    try:
        listener = _listen(port)
    except OSError as error:
        raise ClusterError(
            f"{description.task} cannot listen on port {port} of this machine: {error.strerror}. End the process that "
            f"uses the port, or name another one in {description.source}."
        ) from error
    absent = {task: address for task, address in description.tasks.items() if task != description.task}
    with listener:
        _connect_to(absent, description.task, timeout, say, option)
        time.sleep(_LINGER_SECONDS)


def wait_for_chief(
    description: ClusterDescription, timeout: float, say: Callable[[str], object], option: str = "timeout"
) -> None:
    """Wait for the coordinator of an asynchronous cluster, and then until it has ended.

    Raises:
        TaskLost: the coordinator is absent after the timeout.
    """
    address = description.tasks[description.chief]
    _connect_to({description.chief: address}, description.task, timeout, say, option)
    seen = time.monotonic()
    while time.monotonic() - seen < _ENDED_SECONDS:
        time.sleep(1.0)
        if _answers(address):
            seen = time.monotonic()


@contextlib.contextmanager
def explain_lost_tasks(description: ClusterDescription | None, advice: Callable[[], str] = str) -> Iterator[None]:
    """Raise TaskLost in place of an error of TensorFlow after the loss of another task.

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
        raise TaskLost(
            f"{lost} was lost: it was killed, its network failed, or it ended with an error message of its own. "
            f"{advice()} To resume, start every task again with the same command.".replace("  ", " ")
        ) from error


def _listen(port):
    """Return a socket that listens at a port, on IPv6 too if this machine has it."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _connect_to(absent, task, timeout, say, option):
    began = time.monotonic()
    notice = began + FIRST_NOTICE_SECONDS
    while True:
        absent = {other: address for other, address in absent.items() if not _answers(address)}
        if not absent:
            return
        listed = ", ".join(f"{other} ({address})" for other, address in absent.items())
        if time.monotonic() - began > timeout:
            raise TaskLost(
                f"{task} waited {timeout:g} seconds ({option}) for {listed}. Start every task of the cluster, and "
                f"check that its address can be reached from here."
            )
        if time.monotonic() > notice:
            say(f"{task} waits for {listed} (at most {timeout:g} seconds)")
            notice += NOTICE_SECONDS
        time.sleep(0.2)


def _answers(address):
    try:
        socket.create_connection(_split(address), timeout=2).close()
    except (OSError, UnicodeError):
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
        if task != description.task and (f"{host}:{port}" in message or f"[{host}]:{port}" in message):
            return task
    return None
