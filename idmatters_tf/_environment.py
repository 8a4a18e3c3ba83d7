"""Environment of a run, which affects the rounding of its results: versions, threads, oneDNN, the processor.

Floating-point sums depend on the order of their terms. This order depends on the number of threads of an operation and
on the instruction set.
"""

import os
import pathlib
import platform
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from idmatters_tf._arguments import describe_differences

# Values of each part of an environment, "versions" and "numerics".
Environment: TypeAlias = Mapping[str, Mapping[str, object]]
# Version of this package.
VERSION = "0.1.0"
# Pre-releases of Keras are a separate package, which TensorFlow's release candidates require.
PACKAGES = ("idmatters-tf", "tensorflow", "tensorflow-cpu", "keras", "keras-nightly", "numpy", "tensorflow-datasets")
# Packages that affect the results.
COMPUTING = ("tensorflow", "tensorflow-cpu", "jax", "jaxlib", "keras", "keras-nightly", "numpy")
# Instruction sets with separate kernels in TensorFlow, Eigen and oneDNN.
_INSTRUCTIONS = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "asimd", "sve")


def collect_versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Return the versions of Python and of the installed packages, and the machine type."""
    versions = {"python": platform.python_version(), "machine": platform.machine()}
    return versions | {package: version for package in packages if (version := _installed(package)) is not None}


def get_version(package: str) -> str | None:
    """Return the version of a package or of its variant without GPU support, or None if neither is installed."""
    return _installed(package) or _installed(f"{package}-cpu")


def describe_numerics(backend: str = "tensorflow") -> dict[str, object]:
    """Return the threads, libraries and devices of this process as JSON values. Imports the backend."""
    if backend == "jax":
        import jax

        # XLA on the CPU uses one thread per core.
        return {
            "cores": cores(),
            "XLA_FLAGS": os.environ.get("XLA_FLAGS", "default"),
            "processor's instructions": _instructions(),
            "devices": sorted({device.device_kind for device in jax.devices()}),
        }
    import tensorflow as tf

    from idmatters_tf._tensorflow_internals.runtime import onednn_is_enabled

    described = [tf.config.experimental.get_device_details(gpu) for gpu in tf.config.list_physical_devices("GPU")]
    return {
        "threads per operation": tf.config.threading.get_intra_op_parallelism_threads() or _default_threads(),
        "oneDNN": "on" if onednn_is_enabled() else "off",
        "oneDNN's instructions": os.environ.get("ONEDNN_MAX_CPU_ISA", "default"),
        "processor's instructions": _instructions(),
        "GPUs": [gpu.get("device_name", "unknown") for gpu in described],
    }


def cores() -> int:
    """Return the number of CPU cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _installed(distribution: str) -> str | None:
    # The import takes longer than that of this package.
    import importlib.metadata

    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _default_threads() -> int:
    """Return TensorFlow's default number of threads per operation."""
    asked = os.environ.get("TF_NUM_INTRAOP_THREADS", "")
    if asked.isdecimal() and int(asked):
        return int(asked)
    return cores()


def _instructions():
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "unknown"
    flags = next((line.split() for line in lines if line.startswith(("flags", "Features"))), [])
    return " ".join(name for name in _INSTRUCTIONS if name in flags)


def describe_environment_change(saved: Environment, now: Environment) -> str | None:
    """Return a warning with the differences of two environments with the keys "versions" and "numerics", or None.

    Parts that were not saved are not compared.
    """
    differences = []
    for part, names in (("versions", COMPUTING), ("numerics", now.get("numerics", ()))):
        if isinstance(saved.get(part), dict):
            differences += describe_differences(saved[part], now.get(part, {}), names)
    if not differences:
        return None
    return f"{'; '.join(differences)}: results will differ by rounding from those of an uninterrupted run."
