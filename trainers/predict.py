"""Classify image files with a trained network, and list the errors by class of folders of labeled images."""

import dataclasses
import functools
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias, cast

from idmatters_tf._arguments import distinguish
from idmatters_tf._presentation.progress import Progress
from trainers.backends import import_tensorflow, require_packages
from trainers.cli.arguments import UsageError, program_command
from trainers.cli.settings import make_parser, setting, with_defaults
from trainers.cli.startup import print_lines, run_program
from trainers.datasets import STREAMED
from trainers.run.folder import Run

if TYPE_CHECKING:
    import keras
    import numpy as np
    from numpy.typing import NDArray

    from idmatters_tf._keras_types import Tensor

    Predictions: TypeAlias = Iterable[tuple[pathlib.Path, NDArray[np.floating]]]

EXAMPLES = """
examples:
  python -m trainers.predict runs/photos 1.jpg 2.png            the most probable classes of each image
  python -m trainers.predict runs/photos photos/new             all images in a folder
  python -m trainers.predict runs/photos photos/val             a folder with one subfolder of images for each class

For a folder of labeled images, the program prints the errors by class and the classes with which each one is confused.
The network is RUN/model.keras, which training writes at its end.

exit codes: 0 done; 1 failed while running; 2 bad input; 130 stopped by Ctrl-C
"""
# Images classified at once, and classes listed for each image.
BATCH = 64
LISTED = 3


@dataclasses.dataclass(frozen=True)
class PredictSettings:
    """Settings of this program."""

    run: str = setting(help="finished run of trainers.cifar or trainers.imagenet", metavar="RUN", positional=True)
    images: tuple[str, ...] = setting(
        help="image files, or one folder of images or of labeled images", metavar="IMAGE", positional=True
    )


parser = functools.partial(make_parser, "trainers.predict", __doc__, EXAMPLES, PredictSettings)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    settings = with_defaults(PredictSettings, parser().parse(argv))
    run = Run(settings.run)
    config = run.config()
    window = choose_window(config["settings"])
    path = run.path / "model.keras"
    given = [pathlib.Path(image) for image in settings.images]
    if not path.is_file():
        raise UsageError(f"{run.path} has no model.keras. Finish the run, or use --export-only {run.path} first.")
    missing = next((image for image in given if not image.exists()), None)
    if missing is not None or (len(given) > 1 and any(image.is_dir() for image in given)):
        raise UsageError(f"IMAGE must be existing image files, or one folder. Received: {missing or 'several folders'}")
    files = given
    if given[0].is_dir():
        files = [entry for entry in sorted(given[0].iterdir()) if not entry.name.startswith(".")]
    has_labels = any(file.is_dir() for file in files)
    require_packages()
    import_tensorflow()
    model = _load(path, program_command(str(config.get("program")), "--export-only", run.path))
    names = _class_names(model)
    if not has_labels:
        _print_predictions(_classify(model, files, window), distinguish(names))
        return 0
    labels = _labeled_files(given[0], names)
    counts = _count(_classify(model, list(labels), window), labels, len(names))
    print_lines(*describe(counts, distinguish(names)))
    return 0


def choose_window(settings: Mapping[str, object]) -> str:
    """Return the augmentation whose window of an image the evaluations of a run use, see `load_image`."""
    # In memory, "standard" stands for crops after padding, and evaluations use whole images.
    return STREAMED[str(settings.get("augment"))][0] if settings.get("dataset") == "folder" else "paper"


def _load(path: pathlib.Path, remedy: str) -> "keras.Model":
    """Return an exported model. Raises UsageError, with the command that writes it again, if the file is damaged."""
    import keras

    import idmatters_tf.layers  # noqa: F401 - registers the layers

    try:
        return cast(keras.Model, keras.saving.load_model(path))
    except Exception as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UsageError(f"{path} is damaged ({reason}). Write it again: {remedy}") from error


def _print_predictions(predictions: "Predictions", names: Sequence[str]) -> None:
    """Print the most probable classes of each file."""
    for file, probabilities in predictions:
        best = probabilities.argsort()[::-1][:LISTED]
        print_lines(f"{file}: {', '.join(f'{names[index]} {100 * probabilities[index]:.1f} %' for index in best)}")


def _class_names(model: "keras.Model") -> list[str]:
    from idmatters_tf.layers import ClassNames

    found = [layer.class_names for layer in model.layers if isinstance(layer, ClassNames)]
    return list(found[0]) if found else [f"class {index}" for index in range(model.output_shape[-1])]


def _labeled_files(folder: pathlib.Path, names: Sequence[str]) -> dict[pathlib.Path, int]:
    """Return the index of the class of each file in the subfolders of a folder, which have the names of classes."""
    folders = sorted(path for path in folder.iterdir() if path.is_dir())
    unknown = [path.name for path in folders if path.name not in names]
    if unknown:
        *known, other = distinguish([*names, unknown[0]])
        example = next((text for name, text in zip(names, known, strict=True) if text != name), names[0])
        raise UsageError(
            f"{folder} must contain images, or one subfolder of images for each class, such as {example}. Received: a "
            f"folder {other}"
        )
    return {file: names.index(path.name) for path in folders for file in sorted(path.iterdir())}


def _classify(model: "keras.Model", files: Sequence[pathlib.Path], window: str) -> "Predictions":
    """Yield each file that is an image with its probabilities, and print a message about other files.

    Raises:
        UsageError: none of the files is an image.
    """
    import keras
    import numpy as np
    import tensorflow as tf

    from idmatters_tf.data.imagenet import load_image

    found = 0
    with Progress(len(files), "classifying", unit="images") as bar:
        for start in range(0, len(files), BATCH):
            decoded = {}
            for file in files[start : start + BATCH]:
                try:
                    decoded[file] = load_image(file, model.input_shape[1], window)
                except (tf.errors.OpError, OSError):
                    bar.say(f"{file} is not a JPEG or PNG image: left out")
            found += len(decoded)
            if decoded:
                logits = model.predict_on_batch(np.stack(list(decoded.values())))
                probabilities: Tensor = keras.ops.convert_to_numpy(keras.ops.softmax(logits))
                yield from zip(decoded, probabilities, strict=True)
            bar.advance(min(BATCH, len(files) - start))
    if not found:
        raise UsageError(f"none of the {len(files):,} files is a JPEG or PNG image. Convert images of other formats.")


def _count(predictions: "Predictions", labels: dict[pathlib.Path, int], classes: int) -> "NDArray[np.integer]":
    """Return the confusion matrix: the number of images of class i (row) that are classified as j (column)."""
    import numpy as np

    counts = np.zeros((classes, classes), int)
    for file, probabilities in predictions:
        counts[labels[file], probabilities.argmax()] += 1
    return counts


def describe(counts: "np.ndarray", names: Sequence[str]) -> list[str]:
    """Return the lines of the table of errors by class, from a confusion matrix as in `_count`."""
    from idmatters_tf._presentation.results import tabulate

    rows: list[tuple[str, int, str, str]] = []
    for index, row in enumerate(counts):
        wrong = {other: count for other, count in enumerate(row) if count and other != index}
        listed = sorted(wrong, key=lambda other: -wrong[other])[:LISTED]
        error = f"{100 * sum(wrong.values()) / row.sum():5.1f} %" if row.sum() else "      -"
        confused = ", ".join(f"{names[other]} ({wrong[other]})" for other in listed)
        rows.append((names[index], int(row.sum()), error, confused))
    total = int(counts.sum())
    rows.append(("all classes", total, f"{100 * (1 - counts.trace() / max(total, 1)):5.1f} %", ""))
    return tabulate(("class", "images", "  error", "classified as"), rows).splitlines()


if __name__ == "__main__":
    run_program(main)
