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
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from idmatters_tf._arguments import describe_differences
from idmatters_tf._tensorflow_internals.runtime import report_error, wait_for_all_tasks
from idmatters_tf.checkpointing import FolderInUse, FolderLost
from idmatters_tf.distribute.description import ClusterDescription, ClusterError

if TYPE_CHECKING:
    import tensorflow as tf

# Kinds of errors that are raised on all workers, the most general last.
_ERRORS: tuple[type[Exception], ...] = (ValueError, OSError, FolderInUse, FolderLost, RuntimeError, Exception)
FIRST_NOTICE_SECONDS = 3.0
NOTICE_SECONDS = 30.0
# Time in which other tasks, which try every 0.2 seconds, find this one before TensorFlow takes over its port.
_LINGER_SECONDS = 1.0
# Parts of error messages: of a task that has detected a loss, and of TensorFlow.
_REPORT = "lost task: "
_HEARTBEATS = "stopped sending heartbeats"
_MISMATCH = "The workers do not compute the same operations"
# Number of differences between workers in an error message.
_LISTED = 3
# Time without a connection after which the coordinator counts as ended.
_ENDED_SECONDS = 10.0


class TaskLost(RuntimeError):
    """Another task of the cluster is absent or was lost. The message names it.

    Attributes:
        exit_code: exit code of a program that ends with this error.
    """

    exit_code = 1


T = TypeVar("T")
# Cluster of the last strategy of this process.
_known: list[ClusterDescription] = []


def remember_cluster(cluster: ClusterDescription) -> None:
    """Store the cluster of a strategy."""
    _known[:] = [cluster]


def known_cluster() -> ClusterDescription | None:
    """Return the cluster of the last strategy of this process, or None."""
    return _known[-1] if _known else None


def gather(strategy: "tf.distribute.Strategy | None", value: object) -> list[Any]:
    """Return the JSON values of all workers of a strategy, the chief's first.

    All workers must call this function. The values of a single process are `[value]`.
    """
    cluster = describe_cluster(strategy)
    if cluster is None:
        return [value]
    names = list(cluster.tasks)
    index = names.index(cluster.task)
    text = json.dumps(value).encode()
    lengths = np.zeros(len(names), np.int32)
    lengths[index] = len(text)
    lengths = add_over_workers(strategy, lengths)
    ends = np.cumsum(lengths)
    codes = np.zeros(ends[-1], np.int32)
    codes[ends[index] - len(text) : ends[index]] = np.frombuffer(text, np.uint8)
    codes = add_over_workers(strategy, codes).astype(np.uint8).tobytes()
    return [json.loads(codes[end - length : end]) for end, length in zip(ends, lengths, strict=True)]


def run_on_all(strategy: "tf.distribute.Strategy | None", function: Callable[[], T]) -> list[T]:
    """Call a function without collective operations on all workers. Return their JSON results, the chief's first.

    Raises:
        Exception: the function fails on a worker. The message on the others begins with the name of that worker.
    """
    cluster = describe_cluster(strategy)
    if cluster is None:
        return [function()]
    try:
        outcome = [function()]
    except Exception as error:
        kind = next((kind for kind, known in enumerate(_ERRORS) if isinstance(error, known)))
        gather(strategy, [kind, " ".join([str(error), *getattr(error, "__notes__", ())])])
        wait_for_all_tasks()
        raise
    outcomes = gather(strategy, outcome)
    for name, (first, *text) in zip(cluster.tasks, outcomes, strict=True):
        if text:
            wait_for_all_tasks()
            raise _ERRORS[first](f"{name}: {text[0]}")
    return [result for (result,) in outcomes]


def add_over_workers(strategy: "tf.distribute.Strategy", vector: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the sum of the vectors of all workers, of equal lengths and with numbers below 2^24.

    All workers must call this function.
    """
    import tensorflow as tf

    from idmatters_tf._keras_types import Tensor

    if strategy not in _sums:
        # Collective operations on GPUs support few other types than float32.
        def add(vector: Tensor) -> Tensor:
            replica = tf.distribute.get_replica_context()
            is_first = replica.replica_id_in_sync_group % len(strategy.extended.worker_devices) == 0
            return replica.all_reduce(tf.distribute.ReduceOp.SUM, vector * tf.cast(is_first, tf.float32))

        signature = [tf.TensorSpec([None], tf.float32)]
        _sums[strategy] = tf.function(lambda vector: strategy.run(add, (vector,)), signature, autograph=False)
    result = strategy.experimental_local_results(_sums[strategy](tf.constant(vector, tf.float32)))
    return result[0].numpy().astype(np.int32)


# Compiled functions by strategy.
_sums: weakref.WeakKeyDictionary["tf.distribute.Strategy", Callable[..., object]] = weakref.WeakKeyDictionary()


def check_equal(names: Sequence[str], values: Sequence[Mapping[str, object]]) -> None:
    """Raise ValueError on all workers if the values of one, such as its arguments of `fit`, differ from the chief's.

    Args:
        names: names of the workers, the chief's first.
        values: values of each worker by name, as `gather` returns them.
    """
    for name, own in zip(names, values, strict=True):
        differences = describe_differences(values[0], own)
        if differences:
            wait_for_all_tasks()
            more = len(differences) - _LISTED
            listed = [*differences[:_LISTED], *([f"and {more} more"] if more > 0 else [])]
            raise ValueError(
                f"{name} does not train as {names[0]}: {'; '.join(listed)}. Start every worker with the same script "
                f"and data."
            )


def describe_cluster(strategy: "tf.distribute.Strategy | None") -> ClusterDescription | None:
    """Return the tasks of a strategy that make each update together, or None for a single process."""
    if strategy is None:
        return None
    import tensorflow as tf

    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return None
    resolver = strategy.cluster_resolver
    jobs = {job: tasks for job, tasks in resolver.cluster_spec().as_dict().items() if job in ("chief", "worker")}
    cluster = ClusterDescription(jobs, resolver.task_type, resolver.task_id, "TF_CONFIG")
    return cluster if sum(map(len, jobs.values())) > 1 else None


def wait_for_tasks(description: ClusterDescription, timeout: float, say: Callable[[str], object]) -> None:
    """Wait until all tasks have been started, before TensorFlow connects them.

    Args:
        description: tasks of the cluster. Each listens at its own address.
        timeout: number of seconds to wait.
        say: called with the names of absent tasks, after 3 seconds and then every 30 seconds.

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
        _connect_to(absent, description.task, timeout, say)
        time.sleep(_LINGER_SECONDS)


def wait_for_chief(description: ClusterDescription, timeout: float, say: Callable[[str], object]) -> None:
    """Wait for the coordinator of an asynchronous cluster, and then until it has ended.

    Raises:
        TaskLost: the coordinator is absent after the timeout.
    """
    address = description.tasks[description.chief]
    _connect_to({description.chief: address}, description.task, timeout, say)
    seen = time.monotonic()
    while time.monotonic() - seen < _ENDED_SECONDS:
        time.sleep(1.0)
        if _answers(address):
            seen = time.monotonic()


@contextlib.contextmanager
def explain_lost_tasks(description: ClusterDescription | None, advice: Callable[[], str] = str) -> Iterator[None]:
    """Raise TaskLost in place of an error of TensorFlow after the loss of another task.

    The first task that detects the loss informs the others, which otherwise detect the end of this one.

    Args:
        description: tasks of the cluster; None for a single process.
        advice: returns a sentence about the last checkpoint.
    """
    try:
        yield
    except Exception as error:
        if description is not None and _is_mismatch(error):
            # The others may wait for this one.
            with contextlib.suppress(Exception):
                report_error(_MISMATCH)
            raise RuntimeError(
                f"{_MISMATCH}. Call `fit`, `evaluate` and `predict` on all workers, with the same data."
            ) from error
        if description is None or not _is_loss(error):
            raise
        task = _find_lost_task(str(error), description)
        if task is None:
            lost = "another task"
        else:
            lost = f"{task} ({description.tasks[task]})"
            if len(description.tasks) > 2:
                # The service of TensorFlow may have ended as well.
                with contextlib.suppress(Exception):
                    report_error(f"{_REPORT}{task}.")
        reason = f"{lost} was lost: it was killed, its network failed, or it ended with an error message of its own."
        remedy = "To resume, start every task again with the same command."
        raise TaskLost(" ".join(filter(None, (reason, advice(), remedy)))) from error


def _is_loss(error: Exception) -> bool:
    # Errors of other kinds, such as collective operations of different shapes, name tasks as well.
    return _is_of_tensorflow(error, "UnavailableError", "AbortedError") or (
        _HEARTBEATS in str(error) and _is_of_tensorflow(error, "OpError")
    )


def _is_mismatch(error: Exception) -> bool:
    """Return True for the error of a worker whose collective operation is not that of the others."""
    return _is_of_tensorflow(error, "OpError") and ("ollective instance" in str(error) or _MISMATCH in str(error))


def _is_of_tensorflow(error: Exception, *kinds: str) -> bool:
    errors = getattr(sys.modules.get("tensorflow"), "errors", None)
    return errors is not None and isinstance(error, tuple(getattr(errors, kind) for kind in kinds))


def _find_lost_task(message: str, description: ClusterDescription) -> str | None:
    """Return the task whose loss an error message of TensorFlow describes, or None if it is unknown.

    A task that has detected the loss ends as well. The message on the third one may name it instead.
    """
    others = [task for task in description.tasks if task != description.task]
    if len(others) == 1:
        return others[0]
    if reported := re.search(f"{_REPORT}({'|'.join(others)})", message):
        return reported[1]
    if _HEARTBEATS in message:
        named = re.findall(r"/job:(\w+)/replica:\d+/task:(\d+)", message.partition(_HEARTBEATS)[2])
        named = [task for task in others if tuple(task.split()) in named]
    else:
        named = [task for task in others if not _answers(description.tasks[task])]
    if not named and (broken := re.search(r"remote target /job:(\w+)/replica:\d+/task:(\d+)", message)):
        named = [task for task in others if task == " ".join(broken.groups())]
    return named[0] if len(named) == 1 else None


def _listen(port: int) -> socket.socket:
    """Return a socket that listens at a port, on IPv6 too if this machine has it."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _connect_to(absent: dict[str, str], task: str, timeout: float, say: Callable[[str], object]) -> None:
    began = time.monotonic()
    notice = began + FIRST_NOTICE_SECONDS
    while True:
        absent = {other: address for other, address in absent.items() if not _answers(address)}
        if not absent:
            return
        listed = ", ".join(f"{other} ({address})" for other, address in absent.items())
        if time.monotonic() - began > timeout:
            raise TaskLost(
                f"{task} waited {timeout:g} seconds (timeout) for {listed}. Start every task of the cluster, and "
                f"check that its address can be reached from here."
            )
        if time.monotonic() > notice:
            say(f"{task} waits for {listed} (at most {timeout:g} seconds)")
            notice += NOTICE_SECONDS
        time.sleep(0.2)


def _answers(address: str) -> bool:
    try:
        socket.create_connection(_split(address), timeout=2).close()
    except (OSError, UnicodeError):
        return False
    return True


def _split(address: str) -> tuple[str, int]:
    host, port = address.rsplit(":", 1)
    return host.strip("[]"), int(port)
