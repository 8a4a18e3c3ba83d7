"""Strategies of tf.distribute with which Keras' `fit`, `evaluate` and `predict` work."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from idmatters_tf._presentation.progress import Progress
from idmatters_tf.data.protocols import Share
from idmatters_tf.distribute.description import ClusterDescription, ClusterError, find_cluster
from idmatters_tf.distribute.tasks import (
    explain_lost_tasks,
    remember_cluster,
    wait_for_tasks,
)

if TYPE_CHECKING:
    import tensorflow as tf

    from idmatters_tf._keras_types import Dataset, Structure

# Ends its parent after some seconds. TensorFlow holds Python's lock while it waits, so that no thread can do this.
_PROGRAM = """
import os, signal, sys, time
parent, end = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
while os.getppid() == parent and time.monotonic() < end:
    time.sleep(0.2)
if os.getppid() == parent:
    print(sys.argv[3], file=sys.stderr, flush=True)
    os.kill(parent, signal.SIGKILL)
"""


def multi_worker_strategy(
    timeout: float = 600.0,
    cluster: ClusterDescription | None = None,
    added_losses: Literal["mean", "sum"] | None = None,
    own_steps: bool = False,
) -> "tf.distribute.MultiWorkerMirroredStrategy":
    """Return a `MultiWorkerMirroredStrategy` with which Keras' `fit`, `evaluate` and `predict` work.

    Every process of the cluster runs the same script, which calls this function before TensorFlow computes anything and
    builds and compiles the model in `strategy.scope()`. The batch size of `fit` is that of the global batch, and each
    worker is given the same data::

        strategy = multi_worker_strategy()
        with strategy.scope():
            model = keras.Sequential([...])
            model.compile("adam", "mse")
        model.fit(x, y, batch_size=256, callbacks=[*chief_only(keras.callbacks.CSVLogger("log.csv"))])

    Weights, history and the logs of batches are those of one process with the global batch, up to rounding. Keras
    itself fails here (keras issue 20585), so this function replaces functions of Keras until the process ends. They
    have no effect on models of one replica. Dropout and augmentation draw different numbers on each replica, as
    functions of seed, step and replica.

    The order of the data is the chief's on all workers. This call gives the global generators of Python and NumPy the
    state of the chief's. The workers compare weights, optimizer, arguments and data when `fit` begins, and the batches
    in each step.

    Without a cluster, or in one of a single task, the strategy uses the devices of this process.

    Args:
        timeout: number of seconds to wait for other tasks. Absent ones are named on standard error. If a task ends
            before TensorFlow has connected it, this process ends after the same time, with a message on standard error.
        cluster: description of the cluster. By default it is read from `TF_CONFIG` or Slurm's variables.
        added_losses: "mean" or "sum" over the examples, for the losses that layers of models add by `add_loss`. Not
            required for activity regularizers of Keras and penalties of weights.
        own_steps: True if models have a `train_step`, `test_step` or `compute_metrics` of their own, and its own
            means over examples are computed by `global_mean`.

    Raises:
        ClusterError: the description of the cluster is invalid or contains parameter servers, or the port of this task
            is in use.
        TaskLost: tasks are still absent after the timeout.
    """
    import tensorflow as tf

    cluster = cluster or find_cluster()
    _correct_keras()
    key = () if cluster is None else tuple(cluster.tasks.values())
    if key not in _strategies:
        make: Any = tf.distribute.MultiWorkerMirroredStrategy
        _strategies[key] = make() if cluster is None else _connect(cluster, timeout)
    return _declare(_strategies[key], added_losses, own_steps)


def _connect(cluster: ClusterDescription, timeout: float) -> "tf.distribute.Strategy":
    """Return the strategy of a cluster when all tasks have been connected."""
    import tensorflow as tf

    from idmatters_tf._tensorflow_internals.collectives import broadcast_all_types
    from idmatters_tf.distribute.order import share_seeds, synchronize_generators

    if cluster.asynchronous:
        raise ClusterError(
            f"{cluster.source} describes a cluster with parameter servers, on which `fit` does not work. Remove the "
            f"job ps."
        )
    with Progress(None, "waiting", delay=timeout) as progress:
        wait_for_tasks(cluster, timeout, progress.say)
    # TensorFlow installs a handler that ignores SIGTERM.
    handler = signal.getsignal(signal.SIGTERM)
    with _limit_connection(cluster, timeout), explain_lost_tasks(cluster):
        broadcast_all_types()
        strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=cluster.resolver())
        share_seeds(strategy)
        synchronize_generators(strategy)
    remember_cluster(cluster)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler or signal.SIG_DFL)
    return strategy


@contextlib.contextmanager
def _limit_connection(cluster: ClusterDescription, timeout: float) -> Iterator[None]:
    """Return a context whose process ends with a message on standard error if it takes longer than a timeout.

    TensorFlow waits an hour for a worker that has ended after it was found, and ignores SIGTERM.
    """
    others = ", ".join(f"{task} ({address})" for task, address in cluster.tasks.items() if task != cluster.task)
    message = (
        f"{cluster.task} was not connected to {others} within {timeout:g} seconds (timeout): a worker has ended. Start "
        f"every task of the cluster again."
    )
    words = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(os.getpid()), str(timeout), message]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


def mirrored_strategy(
    devices: Sequence[str] | None = None,
    added_losses: Literal["mean", "sum"] | None = None,
    own_steps: bool = False,
) -> "tf.distribute.MirroredStrategy":
    """Return a `MirroredStrategy` with which Keras' `fit` has the results of one device.

    A process has one strategy for each set of devices. A later call returns it, with new statements about models.

    Args:
        devices: names of the devices, such as ["GPU:0", "GPU:1"]. By default all GPUs of this machine.
        added_losses: see `multi_worker_strategy`.
        own_steps: see `multi_worker_strategy`.

    Raises:
        ValueError: another strategy of this process uses some of the devices.
    """
    import tensorflow as tf

    _correct_keras()
    made = tf.distribute.MirroredStrategy(devices)
    names = made.extended.worker_devices
    strategy = _strategies.setdefault(names, made)
    shared = [other for other in _strategies if other != names and set(other) & set(names) and len(other) > 1]
    if shared and len(names) > 1:
        del _strategies[names]
        raise ValueError(
            f"`devices` must be those of the first strategy of this process, {list(shared[0])}, or others. Received: "
            f"{list(names)}. Start a new process."
        )
    return _declare(strategy, added_losses, own_steps)


# Strategies of this process by their devices.
_strategies: dict[tuple[str, ...], "tf.distribute.Strategy"] = {}


def _declare(
    strategy: "tf.distribute.Strategy", added_losses: Literal["mean", "sum"] | None, own_steps: bool
) -> "tf.distribute.Strategy":
    from idmatters_tf._keras_internals.replicas.parts import Declarations, declare

    if added_losses not in (None, "mean", "sum"):
        raise ValueError(f"`added_losses` must be 'mean', 'sum' or None. Received: {added_losses!r}.")
    declare(strategy, Declarations(added_losses, own_steps))
    return strategy


def distribute_dataset(
    strategy: "tf.distribute.Strategy | None", make_dataset: Callable[[Share], "Dataset"]
) -> "Iterable[Structure]":
    """Return a distributed data set; `make_dataset(share)` builds the data set of one input pipeline.

    On one replica it is the data set itself.
    """
    if strategy is None or strategy.num_replicas_in_sync == 1:
        return make_dataset(Share())
    return strategy.distribute_datasets_from_function(lambda context: make_dataset(share_of(context)))


def share_of(context: "tf.distribute.InputContext") -> Share:
    """Return the replicas that an input pipeline feeds."""
    count = context.num_replicas_in_sync // context.num_input_pipelines
    return Share(context.num_replicas_in_sync, context.input_pipeline_id * count, count)


def _correct_keras():
    import keras

    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"tf.distribute requires Keras' backend tensorflow. Received: {keras.backend.backend()}. On JAX use "
            f"keras.distribution."
        )
    from idmatters_tf._keras_internals.replicas.steps import correct_fit
    from idmatters_tf.distribute.checks import check_call, check_fit

    correct_fit(check_fit, check_call)
