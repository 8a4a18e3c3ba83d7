"""What fits into the machine's memory, said before it is filled."""

import os

import numpy as np
from numpy.typing import DTypeLike

SHARE = 0.5


def check_fits(rows: int, columns: float, dtype: DTypeLike, what: str, instead: str | None = None) -> None:
    """Raises ValueError where an array would take more than half of the machine's memory.

    Args:
        rows, columns: of the array; the columns may be a mean over rows of different lengths.
        dtype: of its entries.
        what: it is, in words.
        instead: what to do instead; the estimators by default.
    """
    needed = rows * columns * np.dtype(dtype).itemsize
    available = SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > available:
        instead = instead or (
            "Restrict it to some layers with `variables`, or use top_eigenpairs, spectral_density, trace and diagonal, "
            "which need products alone."
        )
        raise ValueError(
            f"{what[0].upper()}{what[1:]} takes {needed / 2**30:.1f} GiB, more than half of this machine's memory "
            f"({available / 2**30:.1f} GiB). {instead}"
        )
