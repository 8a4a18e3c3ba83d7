"""Construction, saving, loading and measurement of a memorizer."""

import dataclasses
import pathlib
import time
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from idmatters_tf.checkpointing import replacing
from trainers.cli.arguments import RunError
from trainers.experiments.experiment import ProgressCallback
from trainers.expressivity.sample import Sample
from trainers.expressivity.settings import NetworkSettings

# Number of nearest-neighbor searches in pixel space, which cost n * tests * d operations; enough to estimate the
# accuracy.
NEIGHBOR_TESTS = 1000


def memorize_and_verify(
    sample: Sample, network: NetworkSettings, path: pathlib.Path, progress: ProgressCallback
) -> dict[str, Any]:
    """Build the network, save it to a .keras file, and run every row through the reloaded one.

    Returns:
        Results as JSON values by name.

    Raises:
        RunError: the network cannot be built, or is wrong on a row.
    """
    import keras

    from idmatters_tf.expressivity import memorize, verify

    start = time.perf_counter()
    try:
        model = memorize(
            sample.x,
            sample.labels,
            sample.classes,
            network.width,
            network.order,
            network.seed,
            network.dtype,
            check=("float32",),
            progress=progress,
        )
        saving = time.perf_counter()
        with replacing(path) as beside:
            model.save(beside)
        loaded = cast(keras.Model, keras.saving.load_model(path))
        verifying = time.perf_counter()
        checked = verify(
            loaded, sample.x, sample.labels, progress=lambda *done: progress("checking the loaded model", *done)
        )
        end = time.perf_counter()
    except ValueError as error:
        raise RunError(str(error)) from error
    if checked.correct < checked.rows:
        raise RunError(
            f"the loaded model is wrong on {checked.rows - checked.correct} rows, including row "
            f"{checked.wrong_rows[0]}. Use --dtype float64 or a larger --width."
        )
    report = dataclasses.asdict(model.report)
    verified = report.pop("verified")
    numbers = {
        **report,
        "loaded": {**dataclasses.asdict(checked), "accuracy": checked.accuracy},
        **verified,
        "seconds": {"build": report["build_seconds"], "save and load": verifying - saving, "verify": end - verifying},
        "total_seconds": end - start,
    }
    if sample.test_x is not None and sample.test_labels is not None:
        accuracy = verify(loaded, sample.test_x, sample.test_labels).accuracy
        numbers["test"] = {
            "rows": len(sample.test_x),
            "accuracy": accuracy,
            **_baselines(sample, sample.test_x[:NEIGHBOR_TESTS].astype(np.float32), sample.test_labels),
        }
    return numbers


def describe(result: Mapping[str, Any]) -> dict[str, str]:
    """Return the results as text by name."""
    loaded, single = result["loaded"], result["float32"]
    seconds = ", ".join(f"{stage} {value:.1f}" for stage, value in result["seconds"].items())
    lines = {
        "network": f"{result['blocks']:,} blocks of width {result['width']}, {result['parameters']:,} parameters = "
        f"{result['constant']:.2f} (n ln n + r^2); relative margin: smallest {result['smallest_margin']:.1e}, "
        f"median {result['median_margin']:.1e}",
        "loaded model": f"{100 * loaded['accuracy']:.2f} % of {loaded['rows']:,} rows, largest error "
        f"{loaded['largest_error']:.1e} ({result['dtype']})",
        "in float32": f"{100 * single['correct'] / single['rows']:.2f} %, largest error {single['largest_error']:.1e}",
        "seconds": f"{result['total_seconds']:.1f} ({seconds})",
    }
    if "test" in result:
        test = result["test"]
        lines["test accuracy"] = (
            f"memorizer {100 * test['accuracy']:.2f} %, label of the nearest training row "
            f"{100 * test['nearest_neighbour']:.2f} % (first {test['nearest_neighbour_rows']:,} tests), most frequent "
            f"class {100 * test['most_frequent_class']:.2f} %"
        )
    return lines


def _baselines(sample: Sample, tests: NDArray[np.float32], test_labels: NDArray[np.integer]) -> dict[str, Any]:
    """Compute the test accuracy of the nearest training row's label, and of the most frequent class."""
    neighbors = sample.labels[_nearest_rows(sample.x, tests)]
    return {
        "nearest_neighbour": float((neighbors == test_labels[: len(tests)]).mean()),
        "nearest_neighbour_rows": len(tests),
        "most_frequent_class": float(np.bincount(test_labels).max() / len(test_labels)),
    }


def _nearest_rows(x: NDArray[Any], tests: NDArray[np.float32]) -> NDArray[np.intp]:
    nearest = np.zeros(len(tests), int)
    smallest = np.full(len(tests), np.inf, np.float32)
    for start in range(0, len(x), 5000):
        rows = x[start : start + 5000].astype(np.float32)
        squared = np.einsum("nd,nd->n", rows, rows) - 2 * tests @ rows.T
        found = squared.argmin(axis=1)
        distance = np.take_along_axis(squared, found[:, None], axis=1)[:, 0]
        nearest = np.where(distance < smallest, start + found, nearest)
        smallest = np.minimum(smallest, distance)
    return nearest
