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
from trainers.experiments.program import Verdict
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


def verdict(result: JsonObject) -> Verdict:
    """Return that the network memorizes the rows, with numbers of the loaded model."""
    loaded = result["loaded"]
    numbers = {name: result[name] for name in ("blocks", "parameters", "constant", "smallest_margin", "total_seconds")}
    numbers |= {"largest error": loaded["largest_error"], "test accuracy": result["test"]["accuracy"]}
    claim = f"the network classifies all {loaded['rows']:,} rows, with constant (n ln n + r^2) parameters"
    return Verdict("memorized", loaded["correct"] == loaded["rows"], claim, numbers)
