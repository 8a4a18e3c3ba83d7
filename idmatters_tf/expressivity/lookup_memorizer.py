"""Construction, verification and report of the memorizers on a line."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from idmatters_tf.expressivity._samples import distinct_rows, scale_points, unscale_projection
from idmatters_tf.expressivity.lookup import WORD_BITS, construct_lookup, lower_bound
from idmatters_tf.expressivity.lookup_network import lookup_network, three_layers_network
from idmatters_tf.expressivity.three_layers import construct_three_layers
from idmatters_tf.expressivity.verification import Verification, verify


@dataclasses.dataclass(frozen=True)
class LookupReport:
    """Report of a memorizer of construction "yun", "lookup" or "bit-extraction", stored as `model.report`.

    Attributes:
        construction: "yun", "lookup" or "bit-extraction".
        rows, distinct_rows, dim, classes: sizes of the sample.
        chunks, slots: number of chunks, and largest number of label changes in a chunk. For "yun" p and q, the numbers
            of groups and of points in each.
        words, word_bits: numbers in a chunk's row of the table, and bits of each. For "yun" those of a group's weights.
        parameters: number of stored numbers, with shared ones counted once.
        unshared: number of weights and biases of the network, with every copy of a shared one counted.
        lower_bound: number of 64-bit numbers that any memorizer of such labels needs.
        smallest_radius, median_radius: certified distances that a row may move in any direction, in the norm of x,
            before the answer changes, over the distinct rows. They are never larger than those of the network as a
            function of real numbers.
        verified: dict from dtype to `Verification`.
        build_seconds, verify_seconds: wall-clock times.
    """

    construction: str
    rows: int
    distinct_rows: int
    dim: int
    classes: int
    chunks: int
    slots: int
    words: int
    word_bits: int
    parameters: int
    unshared: int
    lower_bound: int
    smallest_radius: float
    median_radius: float
    verified: dict[str, Verification]
    build_seconds: float
    verify_seconds: float


def memorize_by_lookup(
    x: NDArray[Any],
    labels: NDArray[Any],
    classes: int,
    construction: str,
    width: int,
    order: str,
    seed: int,
    dtype: str,
    check: Sequence[str],
    progress: Callable[[str, int, int], object] | None,
) -> keras.Model:
    """Build a memorizer on a line, see `idmatters_tf.expressivity.memorize`."""
    if (width, order) != (32, "norm"):
        raise ValueError(
            f"Arguments `width` and `order` are for construction='hardt-ma'. Received: construction={construction!r}, "
            f"width={width}, order={order!r}."
        )
    if dtype != "float64":
        raise ValueError(
            f"Argument `dtype` must be 'float64' for construction={construction!r}, whose numbers have up to "
            f"{WORD_BITS} bits. Received: dtype={dtype!r}."
        )
    start = time.perf_counter()
    kept = distinct_rows(x, labels)
    points, factor = scale_points(x if len(kept) == len(x) else x[kept])
    if construction == "yun":
        found = construct_three_layers(points, labels[kept], classes, seed)
        found = dataclasses.replace(found, kernel=unscale_projection(found.kernel, factor))
        model = three_layers_network(found)
        chunks, slots = found.groups, len(found.biases)
        words, word_bits = 2 * slots, WORD_BITS
    else:
        found = construct_lookup(points, labels[kept], classes, construction == "bit-extraction", seed)
        found = dataclasses.replace(found, kernel=unscale_projection(found.kernel, factor))
        model = lookup_network(found)
        chunks, slots = found.thresholds.shape
        words, word_bits = found.table().shape[1] - 1, found.word_bits
    radii = found.radii
    built = time.perf_counter()
    verified = {}
    if "float64" in check:
        shown = None if progress is None else lambda done, total: progress("checking in float64", done, total)
        verified["float64"] = verify(model, x, labels, progress=shown)
        if verified["float64"].correct < len(x):
            raise ValueError(
                f"The network is wrong on {len(x) - verified['float64'].correct} rows, the first is "
                f"{verified['float64'].wrong_rows[0]}: products on this machine are less accurate than float64. Use "
                f"construction='hardt-ma'."
            )
    model.report = LookupReport(
        construction=construction,
        rows=len(x),
        distinct_rows=len(kept),
        dim=x.shape[1],
        classes=classes,
        chunks=chunks,
        slots=slots,
        words=words,
        word_bits=word_bits,
        parameters=found.parameters,
        unshared=found.unshared,
        lower_bound=lower_bound(len(kept), classes),
        smallest_radius=float(radii.min()),
        median_radius=float(np.median(radii)),
        verified=verified,
        build_seconds=built - start,
        verify_seconds=time.perf_counter() - built,
    )
    return model
