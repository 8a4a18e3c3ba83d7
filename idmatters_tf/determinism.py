"""All switches for reproducible training in one call, and what they cannot promise.

`make_deterministic(seed)` makes two runs of the same script, on the same machine with the same packages, give the same
bits. It cannot make bits independent of

- the number of threads that share an operation: sums are rounded in the order in which they are made. By default
  TensorFlow and XLA take as many as the process may use cores; `threads=` fixes TensorFlow's;
- the processor's instructions, oneDNN (`TF_ENABLE_ONEDNN_OPTS`), the kind of GPU, and the versions of the packages:
  `idmatters_tf._environment` records them;
- the order in which Python goes through a set of strings, unless PYTHONHASHSEED was set before Python started;
- anything that draws its own entropy, such as `numpy.random.default_rng()` without a seed, or that depends on time, on
  the order of files in a folder, or on which of several threads of your own comes first.

Nor does a seed make a run resumable: a restarted process begins its generators anew. `callbacks.ExactResume` is for
that.
"""

import os
import sys
from typing import Any

import keras

from idmatters_tf._arguments import positive_integer

_XLA_FLAG = "--xla_gpu_deterministic_ops=true"


def make_deterministic(seed: int, threads: int | None = None) -> dict[str, Any]:
    """Seeds all generators and has the backend use deterministic algorithms.

    Call it first thing, before any model, data set or tensor is made. Seeded are Python's `random`, NumPy's global
    generator, Keras' and the backend's. TensorFlow then uses deterministic kernels, raises an error where there is
    none (`tf.config.experimental.enable_op_determinism`), and runs a `tf.data` map that keeps state on one core. JAX's
    kernels on the CPU are deterministic as they are; for those on GPUs a flag is added to XLA_FLAGS, which JAX reads
    when its first array is made: to be sure, set XLA_FLAGS=--xla_gpu_deterministic_ops=true in the environment.

    Args:
        seed: an integer from 0 to 2^32 - 1.
        threads: how many share one of TensorFlow's operations. A fixed number gives the same bits on machines with more
            or fewer cores; 1 is the most portable and the slowest. None leaves it as it is.

    Returns:
        What was set, by name, to be kept with the results.

    Raises:
        ValueError: a seed out of range, or `threads` on a backend that has no such switch.
        RuntimeError: it was called too late for `threads` to have an effect.
    """
    if isinstance(seed, bool) or not hasattr(seed, "__index__") or not 0 <= seed < 2**32:
        raise ValueError(f"Argument `seed` must be an integer from 0 to 2^32 - 1. Received: seed={seed!r}")
    backend = keras.backend.backend()
    done: dict[str, Any] = {"backend": backend, "seed": int(seed)}
    if threads is not None:
        done["threads"] = positive_integer("threads", threads)
        _fix_threads(backend, done["threads"])
    if backend == "jax":
        done["XLA_FLAGS"] = _add_xla_flag()
    keras.utils.set_random_seed(int(seed))
    # Also on JAX, where the input pipeline may be TensorFlow's.
    if backend == "tensorflow" or "tensorflow" in sys.modules:
        import tensorflow as tf

        tf.random.set_seed(int(seed))
        tf.config.experimental.enable_op_determinism()
        done["op determinism"] = True
    done["PYTHONHASHSEED"] = os.environ.get("PYTHONHASHSEED", "random")
    return done


def _fix_threads(backend, threads):
    if backend != "tensorflow":
        raise ValueError(
            f"Argument `threads` sets TensorFlow's threads; on {backend} limit the cores of the process instead, for "
            f"example with taskset. Received: threads={threads}"
        )
    import tensorflow as tf

    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
    except RuntimeError as error:
        raise RuntimeError(
            f"threads={threads} comes too late: TensorFlow has started its threads. Call `make_deterministic` before "
            f"any tensor is made, or set TF_NUM_INTRAOP_THREADS={threads} in the environment."
        ) from error


def _add_xla_flag():
    """XLA_FLAGS with the flag for GPUs."""
    flags = os.environ.get("XLA_FLAGS", "").split()
    if not any(flag.startswith(_XLA_FLAG.partition("=")[0]) for flag in flags):
        os.environ["XLA_FLAGS"] = " ".join([*flags, _XLA_FLAG])
    return os.environ["XLA_FLAGS"]
