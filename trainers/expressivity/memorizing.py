"""Construction, saving, loading and measurement of a network that memorizes a data set."""

import contextlib
import dataclasses
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import keras
import numpy as np

from idmatters_tf._presentation.progress import Progress
from idmatters_tf.checkpointing import replacing
from idmatters_tf.data.images import ImageData
from idmatters_tf.expressivity import memorize, verify
from trainers.cli.arguments import RunError
from trainers.run.folder import JsonObject


def memorize_and_verify(images: ImageData, labels: np.ndarray, path: pathlib.Path, **options: Any) -> JsonObject:
    """Build the network, save it to a .keras file, and run every row through the reloaded one.

    It maps the training images to the labels (n,); the options are those of `expressivity.memorize`. Returns
    the results as JSON values by name. Raises RunError if the network cannot be built, or is wrong on a row.
    """
    x, test_x = (part.reshape(len(part), -1) for part in (images.train_images, images.test_images))
    start = time.perf_counter()
    try:
        with _stage_bars() as progress:
            model = memorize(x, labels, images.classes, check=("float32",), progress=progress, **options)
            saving = time.perf_counter()
            with replacing(path) as beside:
                model.save(beside)
            loaded = cast(keras.Model, keras.saving.load_model(path))
            verifying = time.perf_counter()
            checked = verify(loaded, x, labels, progress=lambda *done: progress("checking the loaded model", *done))
            end = time.perf_counter()
    except ValueError as error:
        raise RunError(str(error)) from error
    if checked.correct < checked.rows:
        raise RunError(
            f"the loaded model is wrong on {checked.rows - checked.correct} rows, including row "
            f"{checked.wrong_rows[0]}. Use a larger --width."
        )
    report = dataclasses.asdict(model.report)
    seconds = {"build": report["build_seconds"], "save and load": verifying - saving, "verify": end - verifying}
    verified = report.pop("verified")
    return {
        **report,
        **verified,
        "loaded": {**dataclasses.asdict(checked), "accuracy": checked.accuracy},
        "seconds": seconds,
        "total_seconds": end - start,
        "test": {"rows": len(test_x), "accuracy": verify(loaded, test_x, images.test_labels).accuracy},
    }


@contextlib.contextmanager
def _stage_bars() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a progress callback (stage, done, total) that shows a bar for each stage of the work."""
    with contextlib.ExitStack() as bars:
        shown: list[Progress] = []

        def show(stage: str, done: int, total: int) -> None:
            if not shown or shown[-1].title != stage:
                bars.close()
                shown.append(bars.enter_context(Progress(total, stage, unit="rows", delay=0, leave=True)))
            shown[-1].advance(done - shown[-1].done)

        yield show


def describe(result: JsonObject) -> dict[str, str]:
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
