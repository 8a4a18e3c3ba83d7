"""Strategies of tf.distribute with which Keras' `fit`, `evaluate` and `predict` work."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from idmatters_tf._presentation.progress import Progress
from idmatters_tf._tensorflow_internals.pipelines import Share
from idmatters_tf.distribute.description import ClusterDescription, ClusterError, find_cluster
from idmatters_tf.distribute.tasks import (
    explain_lost_tasks,
    remember_cluster,
    wait_for_tasks,
)

if TYPE_CHECKING:
    import tensorflow as tf

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
    timeout: float = 600.0, cluster: ClusterDescription | None = None
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

    Weights and history are those of one process up to rounding. Keras itself fails here (keras issue 20585), so
    this function corrects Keras until the process ends. The corrections have no effect on models of one replica:

    - means over workers, and models built without a batch of the data;
    - losses and metrics: divisors, masks and weights are those of the global batch, and functions and classes of your
      own are computed on the gathered global batch. Layers' additional losses and metrics, and a `train_step` or
      `test_step` of your own, are tried on two examples of each replica before the first step;
    - batches of which a part is None;
    - `steps_per_execution` greater than 1;
    - clipping, gradient accumulation, loss scaling and `ema_overwrite_frequency` use the gradient of the global batch;
    - dropout and augmentation draw different numbers on each replica, as functions of seed, step and replica;
    - arrays of a generator or `PyDataset`, which TensorFlow would overwrite;
    - the order of the data, which is the chief's on all workers. Arrays and a `PyDataset` that `fit` shuffles need no
      seed, nor do pipelines of `tf.data` that are created after this call. This call gives the global generators of
      Python and NumPy on all workers the state of the chief's.

    `fit` raises a ValueError for arguments that fail or differ between the workers, and where results would differ from
    those of one process: see `idmatters_tf.distribute.checks`.

    Without a cluster, or in one of a single task, the strategy uses the devices of this process.

    Args:
        timeout: number of seconds to wait for other tasks. Absent ones are named on standard error. If a task ends
            before TensorFlow has connected it, this process ends after the same time, with a message on standard error.
        cluster: description of the cluster. By default it is read from `TF_CONFIG` or Slurm's variables.

    Raises:
        ClusterError: the description of the cluster is invalid or contains parameter servers, or the port of this task
            is in use.
        TaskLost: tasks are still absent after the timeout.
    """
    import tensorflow as tf

    cluster = cluster or find_cluster()
    _correct_keras()
    from idmatters_tf.distribute.order import share_seeds, synchronize_generators

    if cluster is None:
        return tf.distribute.MultiWorkerMirroredStrategy()
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


def mirrored_strategy(devices: Sequence[str] | None = None) -> "tf.distribute.MirroredStrategy":
    """Return a `MirroredStrategy`, with Keras corrected as by `multi_worker_strategy`.

    Args:
        devices: names of the devices, such as ["GPU:0", "GPU:1"]. By default all GPUs of this machine.
    """
    import tensorflow as tf

    _correct_keras()
    return tf.distribute.MirroredStrategy(devices)


def distribute_dataset(strategy: "tf.distribute.Strategy | None", make_dataset: Callable[[Share], Any]) -> Any:
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
    from idmatters_tf._keras_internals.distribution import correct_fit
    from idmatters_tf.distribute.checks import check_fit

    correct_fit(check_fit)
