"""Summaries of arrays and plain values: digests, and a few entries that show the size of a difference."""

import functools
import json
import math
import zlib
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

# Summary as JSON values: `digest`, and for arrays `shape`, `dtype` and `sample`.
Summary: TypeAlias = dict[str, Any]
SAMPLE = 64
# Of the words of a digest.
_COLUMNS = 1024
# Largest relative difference that a sum in another order explains, by the bytes of a number.
ROUNDING = {2: 2e-2, 4: 1e-4, 8: 1e-10}


def summarize(array: NDArray[np.generic]) -> Summary:
    """Return the summary of an array: a digest of its bytes, and up to 64 entries at equal distances."""
    array = np.asarray(array)
    if array.dtype.hasobject or array.dtype.kind in "US":
        return {"digest": digest(repr(array.tolist()).encode()), "shape": list(array.shape), "dtype": "text"}
    flat = np.ravel(array)
    entries = flat[_sampled(len(flat))]
    kind = str(array.dtype)
    # Types of ml_dtypes, such as bfloat16, have no buffers.
    data = np.ascontiguousarray(array).view(np.uint8) if array.ndim and array.size else array.tobytes()
    return {
        "digest": digest(data),
        "shape": list(array.shape),
        "dtype": kind,
        "sample": entries.astype(np.float64).tolist() if array.dtype.kind not in "cSU" else [],
    }


@functools.cache
def _sampled(size: int) -> NDArray[np.intp]:
    return np.unique(np.linspace(0, size - 1, SAMPLE).astype(np.intp)) if size else np.empty(0, np.intp)


def summarize_value(value: object) -> Summary:
    """Return the summary of plain data, which are compared by their text."""
    text = write_plainly(value)
    shown = text if len(text) <= 80 else text[:77] + "..."
    return {"digest": digest(text.encode()), "value": shown}


def write_plainly(value: object) -> str:
    """Return plain data, which may contain arrays, as a text that shows all entries."""
    return json.dumps(value, sort_keys=True, default=lambda x: x.tolist() if isinstance(x, np.ndarray) else repr(x))


def summarize_rows(array: NDArray[np.generic]) -> str:
    """Return a digest of the rows of an array that does not depend on their order."""
    rows = np.asarray(array)
    if not rows.ndim:
        return digest(rows.tobytes())
    return digest("".join(sorted(digest(np.ascontiguousarray(row).tobytes()) for row in rows)).encode())


def digest(data: bytes | NDArray[np.uint8]) -> str:
    """Return 32 bits of bytes: the CRC-32 of the sums of rows and columns of 64-bit words, and of the remaining bytes.

    A change, also of the order, is missed by chance in one of 4e9 cases. It takes a third of the time of the CRC-32 of
    a large array.
    """
    flat = np.frombuffer(data, np.uint8)
    count = flat.size - flat.size % (8 * _COLUMNS)
    words = flat[:count].view(np.uint64).reshape(-1, _COLUMNS)
    checksum = zlib.crc32(flat[count:].tobytes())
    for sums in (words.sum(0), words.sum(1)) if count else ():
        checksum = zlib.crc32(sums.tobytes(), checksum)
    return f"{checksum:08x}"


def differ(first: Summary | None, second: Summary | None) -> bool:
    """Return True if two summaries are of different values, or if one is missing."""
    return (first or {}).get("digest") != (second or {}).get("digest")


def relative_size(first: Summary, second: Summary) -> float:
    """Return the largest difference of the sampled entries, relative to the largest entry; inf if they do not fit."""
    pairs = _pairs(first, second)
    if pairs is None:
        return math.inf
    a, b = pairs
    scale = max(np.abs(a).max(initial=0.0), np.abs(b).max(initial=0.0))
    difference = np.abs(a - b).max(initial=0.0)
    return float(difference / scale) if scale else 0.0


def constant_ratio(first: Summary, second: Summary) -> float | None:
    """Return the ratio second / first if it is the same for all sampled entries, to four digits, and not 1.

    For a single entry it must be an integer below 1000 or one divided by such an integer; for integers, such as states
    of generators, there is none.
    """
    pairs = _pairs(first, second)
    if pairs is None or "float" not in str(first.get("dtype")):
        return None
    a, b = pairs
    chosen = np.abs(a) > 1e-3 * np.abs(a).max(initial=0.0)
    if not chosen.any():
        return None
    ratios = b[chosen] / a[chosen]
    ratio = float(np.median(ratios))
    is_constant = bool(np.all(np.abs(ratios - ratio) <= 2e-4 * abs(ratio))) and bool(np.isfinite(ratio))
    if len(ratios) == 1 and is_constant and ratio:
        factor = max(abs(ratio), 1 / abs(ratio))
        is_constant = factor < 1000 and abs(factor - round(factor)) <= 2e-4 * factor
    return ratio if is_constant and abs(ratio - 1) > 1e-3 else None


def is_rounding(first: Summary, second: Summary, tolerance: float = 0.0) -> bool:
    """Return True if a difference has the size of rounding errors, or of a calibrated tolerance."""
    size = {"bfloat16": 2, "float16": 2, "float64": 8}.get(str(first.get("dtype")), 4)
    is_small = relative_size(first, second) <= max(ROUNDING[size], tolerance)
    return is_small and constant_ratio(first, second) is None


def describe_size(first: Summary | None, second: Summary | None, tolerance: float = 0.0) -> str:
    """Return the kind and size of a difference as a phrase."""
    if first is None or second is None:
        return "only one of the runs has it"
    if "value" in first or "value" in second:
        return f"{first.get('value')} and {second.get('value')}"
    if first.get("shape") != second.get("shape"):
        return f"shapes {first.get('shape')} and {second.get('shape')}"
    if first.get("dtype") != second.get("dtype"):
        return f"dtypes {first.get('dtype')} and {second.get('dtype')}"
    ratio = constant_ratio(first, second)
    pair = _pairs(first, second)
    if pair is not None and len(pair[0]) == 1:
        factor = "" if ratio is None else f": exactly {ratio:.4g} times the first"
        return f"{pair[0][0]:.7g} and {pair[1][0]:.7g}{factor}"
    if ratio is not None:
        return f"an exact factor: {ratio:.4g} times the first"
    size = relative_size(first, second)
    if is_rounding(first, second, tolerance):
        return f"rounding, up to {size:.1g} of the largest entry" if size else "rounding, in entries outside the sample"
    return f"other values, up to {size:.2g} of the largest entry"


def _pairs(first: Summary, second: Summary) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    a, b = (np.asarray(each.get("sample") or (), np.float64) for each in (first, second))
    return (a, b) if len(a) and len(a) == len(b) else None
