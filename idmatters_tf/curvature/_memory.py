"""Checks of array sizes against the machine's memory."""

import os

import numpy as np
from numpy.typing import DTypeLike

SHARE = 0.5


def check_fits(rows: int, columns: float, dtype: DTypeLike, what: str, instead: str | None = None) -> None:
    """Raise ValueError if an array would exceed half of the machine's memory.

    Args:
        rows: number of rows.
        columns: number of columns; a mean for rows of different lengths.
        dtype: dtype of the entries.
        what: description of the array for the message.
        instead: remedy for the message; the estimators by default.
    """
    needed = rows * columns * np.dtype(dtype).itemsize
    available = SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > available:
        instead = instead or (
            "Restrict it to some layers with `variables`, or use top_eigenpairs, spectral_density and trace, which need "
            "only products."
        )
        raise ValueError(
            f"{what[0].upper()}{what[1:]} takes {needed / 2**30:.1f} GiB, more than half of this machine's memory "
            f"({available / 2**30:.1f} GiB). {instead}"
        )
