"""Memorize a whole training set in closed form, by an extension of Theorem 3.2 of Hardt & Ma."""

import contextlib
import dataclasses
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, cast

from idmatters_tf._presentation.progress import Progress
from idmatters_tf.checkpointing import replacing
from trainers.backends import import_tensorflow
from trainers.cli.arguments import RunError
from trainers.cli.settings import group, setting
from trainers.cli.startup import run_program
from trainers.experiments.program import EXIT_CODES, DataSettings, ExperimentProgram, OutSettings, Results, Verdict
from trainers.run.folder import JsonObject

if TYPE_CHECKING:
    import keras
    import numpy as np

    from idmatters_tf.data.images import ImageData

EXAMPLES = f"""
The program builds the network, saves and reloads it, and checks every row. Outputs in --out: model.keras, result.json.

examples:
  python -m trainers.expressivity --dataset shapes --labels random --train-images 2000
  python -m trainers.expressivity --dataset cifar10 --download --labels random        all 50,000 images

{EXIT_CODES}
"""


@dataclasses.dataclass(frozen=True)
class PointSettings(DataSettings):
    """Points and labels to memorize."""

    dataset: Literal["cifar10", "cifar100", "mnist", "shapes"] = setting("shapes", help="data set; shapes is built in")
    labels: Literal["true", "random"] = setting("random", help="labels to memorize")
    train_images: int | None = setting(
        None, help="memorize only the first N training images (default: all)", at_least=1
    )


@dataclasses.dataclass(frozen=True)
class MemorizerSettings:
    """Construction of the memorizer."""

    width: int = setting(32, help="width k of the residual blocks", metavar="K", at_least=1, at_most=1_000_000)
    order: Literal["norm", "ridge"] = setting(
        "norm", help="norm is fast; ridge has larger margins on clusters, in about ten times the time"
    )
    seed: int = setting(0, help="random seed", at_least=0, at_most=2**31 - 1)


@dataclasses.dataclass(frozen=True)
class MemorizeSettings:
    """All settings of the program."""

    data: PointSettings = group(PointSettings, "data")
    network: MemorizerSettings = group(MemorizerSettings, "network")
    run: OutSettings = group(OutSettings, "run", out="runs/memorize")


def _measure(settings: MemorizeSettings, results: Results) -> None:
    import_tensorflow()
    import numpy as np

    data = settings.data
    network = settings.network
    images = data.load().first(data.train_images, None)
    labels = images.train_labels
    if data.labels == "random":
        labels = np.random.default_rng(network.seed).integers(0, images.classes, len(labels))
    results.start(images.origin, images.train_images, labels)
    path = results.path / "model.keras"
    results.values |= memorize_and_verify(images, labels, path, **dataclasses.asdict(network))
    results.add(verdict(results.values))


def memorize_and_verify(images: "ImageData", labels: "np.ndarray", path: pathlib.Path, **options: Any) -> JsonObject:
    """Build the network, save it to a .keras file, and run every row through the reloaded one.

    It maps the training images to the labels (n,); the options are those of `expressivity.memorize`. Returns
    the results as JSON values by name. Raises RunError if the network cannot be built, or is wrong on a row.
    """
    import keras

    from idmatters_tf.expressivity import memorize, verify

    x, test_x = (part.reshape(len(part), -1) for part in (images.train_images, images.test_images))
    start = time.perf_counter()
    try:
        with _stage_bars() as progress:
            model = memorize(x, labels, images.classes, check=("float32",), progress=progress, **options)
            saving = time.perf_counter()
            with replacing(path) as beside:
                model.save(beside)
            loaded = cast("keras.Model", keras.saving.load_model(path))
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
    claim = f"the network classifies all {loaded['rows']:,} rows; parameters = constant (n ln n + r^2)"
    return Verdict("memorized", loaded["correct"] == loaded["rows"], claim, numbers)


PROGRAM = ExperimentProgram("trainers.expressivity", __doc__, EXAMPLES, MemorizeSettings, _measure, ("tensorflow",))
parser, main = PROGRAM.parser, PROGRAM.main

if __name__ == "__main__":
    run_program(main)
