"""Construction, saving, loading and measurement of a memorizer."""

import dataclasses
import pathlib
import time
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
    """Build the network and run every row through the saved and reloaded one.

    Args:
        sample: points and labels.
        network: settings of the network.
        path: path of the .keras file.
        progress: called during each stage of the work.

    Returns:
        The results as JSON values by name.

    Raises:
        RunError: the network cannot be built, or is wrong on a row.
    """
    import keras

    from idmatters_tf.expressivity import memorize, verify, verify_exactly

    residual = network.construction == "hardt-ma"
    options = {"width": network.width, "order": network.order, "dtype": network.dtype} if residual else {}
    start = time.perf_counter()
    try:
        model = memorize(
            sample.x,
            sample.labels,
            sample.classes,
            seed=network.seed,
            # The other constructions require float64.
            check=("float32",) if residual else (),
            progress=progress,
            construction=network.construction,
            **options,
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
        exact = verify_exactly(
            loaded,
            sample.x[: network.exact_rows],
            sample.labels[: network.exact_rows],
            progress=lambda *done: progress("checking in rational arithmetic", *done),
        )
    except ValueError as error:
        raise RunError(str(error)) from error
    if checked.correct < checked.rows:
        raise RunError(
            f"the loaded model is wrong on {checked.rows - checked.correct} rows, including row "
            f"{checked.wrong_rows[0]}. Use --dtype float64 or a larger --width."
        )
    if exact.correct < exact.rows:
        raise RunError(
            f"in rational arithmetic the loaded model is wrong on {exact.rows - exact.correct} of {exact.rows} rows, "
            f"including row {exact.wrong_rows[0]}. In {network.dtype} it is correct by rounding. Use a larger --width."
        )
    report = dataclasses.asdict(model.report)
    verified = report.pop("verified")
    numbers = {
        "construction": network.construction,
        **report,
        "loaded": {**dataclasses.asdict(checked), "accuracy": checked.accuracy},
        **verified,
        "exact": dataclasses.asdict(exact),
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
