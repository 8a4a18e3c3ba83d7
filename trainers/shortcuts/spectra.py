"""Summaries of the Hessian's spectrum, of many matrices at once."""

import concurrent.futures

import joblib
import numpy as np
from numpy.typing import NDArray

from idmatters_tf.curvature.spectrum import Summary, summarize


def summary_of(H: NDArray[np.float64]) -> Summary:
    """The summary of a Hessian's eigenvalues, nothing taken for zero."""
    return summarize(np.linalg.eigvalsh(H), tolerance=0.0)


def eigenvalue_pool() -> concurrent.futures.ThreadPoolExecutor:
    """Threads for eigenvalues, which NumPy computes without Python's lock.

    Each on one core: that beats one matrix after another on all cores, by far where other programs use these too. So
    the BLAS has to be limited to one thread, see `trainers.shortcuts.__main__`.
    """
    return concurrent.futures.ThreadPoolExecutor(joblib.cpu_count())


def deviation(values: NDArray[np.float64]) -> float:
    """The standard deviation over runs; 0 for a single one."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
