"""Time limit for TensorFlow's connection of the workers."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

from idmatters_tf.distribute.description import ClusterDescription

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


@contextlib.contextmanager
def limit_connection(cluster: ClusterDescription, timeout: float) -> Iterator[None]:
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
