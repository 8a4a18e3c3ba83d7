"""Summaries of Hessian spectra, computed for many matrices in parallel."""

import concurrent.futures

import joblib
import numpy as np
from numpy.typing import NDArray

from idmatters_tf.curvature.spectrum import Summary, summarize


def summarize_hessian(H: NDArray[np.float64]) -> Summary:
    """Return the summary of a Hessian's eigenvalues, without a tolerance for zero."""
    return summarize(np.linalg.eigvalsh(H), tolerance=0.0)


def eigenvalue_pool() -> concurrent.futures.ThreadPoolExecutor:
    """Return a pool of threads for eigenvalues, which NumPy computes without Python's global lock.

    One matrix per core is faster than one matrix after another on all cores, in particular on a busy machine. The BLAS
    must therefore be limited to one thread, see `trainers.shortcuts.__main__`.
    """
    return concurrent.futures.ThreadPoolExecutor(joblib.cpu_count())


def deviation(values: NDArray[np.float64]) -> float:
    """Return the standard deviation over runs, 0 for a single run."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
