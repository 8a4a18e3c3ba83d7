"""Sample to memorize, and construction, saving, loading and measurement of its memorizer."""

import dataclasses
import pathlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from idmatters_tf.checkpointing import replacing
from trainers.cli.arguments import RunError
from trainers.experiments.experiment import ProgressCallback

if TYPE_CHECKING:
    from trainers.expressivity.settings import NetworkSettings, Settings


@dataclasses.dataclass(frozen=True)
class Sample:
    """Rows and labels to memorize, and test images with true labels."""

    x: NDArray[Any]  # (n, d)
    labels: NDArray[np.integer]  # (n,)
    classes: int
    origin: str
    digest: str  # checksum of the data
    test_x: NDArray[Any]  # (tests, d)
    test_labels: NDArray[np.integer]  # (tests,)


def load_sample(settings: "Settings") -> Sample:
    """Load a data set, with its own or random labels.

    Raises:
        idmatters_tf.data.images.DataError: the data set is missing.
    """
    from idmatters_tf.data import cifar, mnist, shapes

    data = settings.data
    if data.dataset == "shapes":
        images = shapes.load()
    elif data.dataset == "mnist":
        images = mnist.load(data.data_dir, data.download)
    else:
        images = cifar.load(data.dataset, data.data_dir, data.download)
    images = images.first(data.train_images, None)
    labels = images.train_labels
    if data.labels == "random":
        labels = np.random.default_rng(settings.network.seed).integers(0, images.classes, len(labels))
    x, test_x = (part.reshape(len(part), -1) for part in (images.train_images, images.test_images))
    return Sample(x, labels, images.classes, images.origin, images.digest(), test_x, images.test_labels)


def memorize_and_verify(
    sample: Sample, network: "NetworkSettings", path: pathlib.Path, progress: ProgressCallback
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
            width=network.width,
            order=network.order,
            seed=network.seed,
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
            f"{checked.wrong_rows[0]}. Use a larger --width."
        )
    report = dataclasses.asdict(model.report)
    verified = report.pop("verified")
    return {
        **report,
        "loaded": {**dataclasses.asdict(checked), "accuracy": checked.accuracy},
        **verified,
        "seconds": {"build": report["build_seconds"], "save and load": verifying - saving, "verify": end - verifying},
        "total_seconds": end - start,
        "test": {
            "rows": len(sample.test_x),
            "accuracy": verify(loaded, sample.test_x, sample.test_labels).accuracy,
        },
    }


def describe(result: Mapping[str, Any]) -> dict[str, str]:
    """Return the results as text by name."""
    loaded, single = result["loaded"], result["float32"]
    seconds = ", ".join(f"{stage} {value:.1f}" for stage, value in result["seconds"].items())
    return {
        "network": f"{result['blocks']:,} blocks of width {result['width']}, {result['parameters']:,} parameters = "
        f"{result['constant']:.2f} (n ln n + r^2); relative margin: smallest {result['smallest_margin']:.1e}, "
        f"median {result['median_margin']:.1e}",
        "loaded model": f"{100 * loaded['accuracy']:.2f} % of {loaded['rows']:,} rows, largest error "
        f"{loaded['largest_error']:.1e} (float64)",
        "in float32": f"{100 * single['correct'] / single['rows']:.2f} %, largest error {single['largest_error']:.1e}",
        "seconds": f"{result['total_seconds']:.1f} ({seconds})",
        "test accuracy": f"{100 * result['test']['accuracy']:.2f} %",
    }
