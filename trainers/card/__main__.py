"""Make a folder with the weights and the model card of a finished run. Nothing is uploaded."""

import dataclasses
import json
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from idmatters_tf.checkpointing import check_replaceable, remove_unfinished, write_atomically
from trainers.cifar import Cifar
from trainers.cli.arguments import Parser, UsageError
from trainers.cli.reading import read_json
from trainers.cli.settings import add_options, as_dict, parse, setting, with_defaults
from trainers.cli.startup import import_tensorflow, print_lines, print_message, run_program
from trainers.cli.text import join_command, program_command
from trainers.imagenet import ImageNet
from trainers.run.folder import DataDescription, Run
from trainers.run.lock import hold_lock
from trainers.training.evaluate import restore
from trainers.training.recorded import free_on_resume, recorded_settings
from trainers.training.task import Task

if TYPE_CHECKING:
    import keras

EXAMPLES = """
examples:
  python -m trainers.card runs/small                           weights in float32, in model_cards/small
  python -m trainers.card runs/small --round bfloat16 --repository me/small --data-dir DATA

The folder contains README.md, training.json with all settings, the convergence plot, and the weights in a format that
keras.saving.load_model reads from a path and from hf://USER/NAME. The test error is that of the published weights,
measured in float32. An existing folder of this program is updated. Other files in it, such as .git, are kept.

exit codes: 0 done; 1 failed while running; 2 bad input; 130 stopped by Ctrl-C
"""

TASKS: dict[str, type[Task]] = {"trainers.cifar": Cifar, "trainers.imagenet": ImageNet}
TRAINING = "training.json"
# Files that are written. The first one marks a folder of this program.
FILES = (TRAINING, "config.json", "metadata.json", "model.weights.h5", "convergence.png", "README.md")
# Size that hubs and repositories accept without large-file storage.
SMALL_MB = 10
# Names of users and repositories on the hub, and of licenses.
_NAME = "[A-Za-z0-9][A-Za-z0-9._-]*"


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of this program."""

    run: str = setting(
        help="folder of a finished run of trainers.cifar or trainers.imagenet", metavar="RUN", positional=True
    )
    out: str | None = setting(
        None, help="folder, new or made by this program (default: model_cards/RUN_NAME)", metavar="DIR"
    )
    round: Literal["none", "float16", "bfloat16"] = setting(
        "none", help="round the weights to values of this type, for a smaller file"
    )
    repository: str | None = setting(None, help="name on the hub (default: USER/FOLDER_NAME)", metavar="USER/NAME")
    license: str = setting("apache-2.0", help="license of the weights", metavar="NAME")
    measure: bool = setting(True, help="measure the test error (requires the data)")
    data_dir: str | None = setting(None, help="folder of the data, if it has moved since the run", metavar="DIR")
    debug: bool = setting(False, help="show tracebacks")

    def __post_init__(self) -> None:
        if self.repository is not None and not re.fullmatch(f"{_NAME}/{_NAME}", self.repository):
            raise UsageError(
                f"--repository must be USER/NAME of letters, digits, '.', '_' and '-'. Received: {self.repository}"
            )
        if not re.fullmatch(_NAME, self.license):
            raise UsageError(
                f"--license must be an identifier of letters, digits, '.', '_' and '-'. Received: {self.license!r}"
            )


def parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(prog="python -m trainers.card", description=__doc__, epilog=EXAMPLES)
    add_options(parser, Settings)
    return parser


@dataclasses.dataclass(frozen=True)
class Finished:
    """A finished run and the content of its files.

    Attributes:
        run: the folder.
        task: the training task with precision float32, in which the published weights are evaluated.
        config: content of config.json.
        described: description of the data in config.json.
        result: content of result.json.
    """

    run: Run
    task: Task
    config: dict[str, Any]
    described: DataDescription
    result: dict[str, Any]


def read(folder: str, data_dir: str | None = None) -> Finished:
    """Read a finished run of a training program.

    Raises:
        UsageError: the run is not finished, or not a run of `trainers.cifar` or `trainers.imagenet`.
    """
    run = Run(folder)
    config, result = run.config(), run.result(("steps", "last_error", "parameters", "seconds"))
    task_type = TASKS.get(str(config.get("program")))
    if task_type is None:
        raise UsageError(f"{run.path} is not a run of {' or '.join(TASKS)}. Other programs have no model cards.")
    if result is None:
        raise UsageError(
            f"{run.path} is not finished. Finish it: "
            + program_command(task_type.program, "--resume", "--out", run.path)
        )
    changes = {"precision": "float32"} if data_dir is None else {"precision": "float32", "data_dir": data_dir}
    settings = recorded_settings(task_type, run, **changes)
    return Finished(run, task_type(settings), config, run.data(config), result)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    settings = with_defaults(Settings, parse(parser(), argv))
    import huggingface_hub  # noqa: F401 - raise before the measurement if it is missing

    finished = read(settings.run, settings.data_dir)
    out = pathlib.Path(settings.out or pathlib.Path("model_cards") / finished.run.path.resolve().name)
    _check_out(out)
    finished.run.check_outputs()
    if settings.measure:
        finished.task.data  # noqa: B018 - report missing data before importing TensorFlow

    with hold_lock(out, print_message):
        remove_unfinished(out)
        return _make(settings, finished, out)


def _check_out(out: pathlib.Path) -> None:
    """Raise UsageError or PathOccupied unless the folder is new, empty or made by this program."""
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out} is a file. Name a folder.")
    if out.exists() and not _is_card(out):
        raise UsageError(f"--out {out} exists and is not a folder of this program. Name another folder.")
    for name in FILES:
        check_replaceable(out / name)


def _is_card(out: pathlib.Path) -> bool:
    if not (out / TRAINING).is_file():
        # A process that was killed before it wrote the first file may have left these.
        return all(path.name.startswith((".lock", ".writing-")) for path in out.iterdir())
    try:
        content = read_json(out / TRAINING)
    except ValueError:
        return False
    return isinstance(content, dict) and {"settings", "result", "error"} <= set(content)


def _make(settings: Settings, finished: Finished, out: pathlib.Path) -> int:
    """Measure the error, write the folder and print how to publish it. Return the exit code."""
    import_tensorflow()
    network = _network(finished, settings.round)
    errors = {"the run's own, as trained": finished.result["last_error"]}
    if settings.measure:
        rounding = "float32" if settings.round == "none" else f"rounded to {settings.round}, computed in float32"
        errors[f"these, {rounding}"] = _test_error(finished.task, network)
    name = re.sub("[^A-Za-z0-9._-]+", "-", out.resolve().name).strip(".-")
    repository = settings.repository or f"USER/{name or 'model'}"
    _write(out, settings, finished, network, errors, repository)
    size = (out / "model.weights.h5").stat().st_size / 1e6
    fits = "below" if size <= SMALL_MB else "more than"
    print_lines(f"{out}: weights of {size:.1f} MB, {fits} {SMALL_MB} MB; nothing has been uploaded")
    for which, error in errors.items():
        print(f"error of the weights, {which}: {100 * error:.2f} %")
    print_lines(f"load it:    import idmatters_tf, keras; model = keras.saving.load_model({str(out)!r})")
    upload = join_command(["hf", "upload", repository, out, "."])
    print_lines(f"publish it: {upload}     (pip install huggingface_hub; hf auth login)")
    print(f"then:       model = keras.saving.load_model('hf://{repository}')")
    return 0


def _network(finished: Finished, rounding: Any) -> "keras.Model":
    """Return the network of the newest checkpoint in float32 with rounded weights."""
    from trainers.card.weights import round_weights
    from trainers.training.build import build_network

    run, described = finished.run, finished.described
    network = build_network(finished.task, described.image_shape, described.classes, "float32")
    last = finished.result["steps"]
    step = restore(finished.task, run, network)
    if step != last:
        # The recorded error, number of steps and figure belong to the weights of the last step.
        again = program_command(finished.task.program, "--resume", "--out", run.path)
        raise UsageError(
            f"the newest intact checkpoint of {run.path} is that of step {step}, not of its last step {last}. Remove "
            f"{run.result_path}, then train the remaining steps again: {again}"
        )
    network.set_weights(round_weights(network.get_weights(), rounding))
    return network


def _test_error(task: Task, network: "keras.Model") -> float:
    """Return the error of the network on the test images of the run."""
    from trainers.cluster import strategy
    from trainers.training.build import build_learner
    from trainers.training.synchronous import SynchronousTrainer

    learner = build_learner(task, task.data, strategy.make("auto", 1))
    learner.model.set_weights(network.get_weights())
    return SynchronousTrainer(learner).evaluate(task.source.test_batches())["error"]


def describe(
    finished: Finished, settings: Settings, errors: dict[str, float], repository: str, digest: str | None
) -> tuple[str, dict[str, Any]]:
    """Return the text of README.md and the content of training.json, without importing TensorFlow.

    Args:
        finished: the run.
        settings: settings of this program.
        errors: errors in [0, 1] by name, that of the run first.
        repository: USER/NAME on the hub.
        digest: checksum of the checkpoint.
    """
    from trainers.card.text import readme

    task, config, result = finished.task, finished.config, finished.result
    saved, usual = as_dict(task.settings), as_dict(type(task).resolve({}, {}))
    recorded = as_dict(recorded_settings(type(task), finished.run))
    left_out = free_on_resume()
    facts = {
        **{name: result[name] for name in ("steps", "parameters")},
        "image_shape": finished.described.image_shape,
        "classes": finished.described.classes,
        "class_names": finished.described.output_names,
        "dataset": saved["dataset"],
        "held_out": saved.get("held_out"),
        "minutes": result["seconds"] / 60,
        "seed": saved["seed"],
        "versions": config.get("versions") or {},
        "rounding": settings.round,
        "measured": settings.measure,
        "digest": digest,
    }
    # Options that the network does not have are None.
    differing = {
        name: value
        for name, value in recorded.items()
        if name not in left_out and value is not None and value != usual.get(name)
    }
    words = (config.get("command") or ())[1:]
    command = join_command(["python", "-m", task.program, *_without_folders(words)])
    name = repository.split("/")[1]
    text = readme(name, settings.license, repository, facts, errors, command, differing)
    training = {**config, "result": result, "error": errors, "rounding": settings.round}
    # Paths of the data and of the run are private.
    training["settings"] = {name: value for name, value in recorded.items() if name not in ("data_dir", "download")}
    training["data"] = {name: value for name, value in config["data"].items() if name != "origin"}
    training.pop("command", None)
    return text, training


def _write(
    out: pathlib.Path,
    settings: Settings,
    finished: Finished,
    network: "keras.Model",
    errors: dict[str, float],
    repository: str,
) -> None:
    """Write the files, each one atomically. Other files of the folder are kept."""
    from trainers.card import weights
    from trainers.datasets import preprocessing
    from trainers.reproduce.weights import weights_digest
    from trainers.training.export import with_preprocessing

    run, task = finished.run, finished.task
    text, training = describe(finished, settings, errors, repository, weights_digest(run.path))
    fitted = preprocessing.load(run.path) if task.settings.data.has_preprocessing else None
    model = with_preprocessing(network, fitted, finished.described.output_names)
    with tempfile.TemporaryDirectory(dir=out, prefix=f".writing-{os.getpid()}-") as folder:
        beside = pathlib.Path(folder)
        weights.save(model, beside)
        (beside / "README.md").write_text(text, encoding="utf-8")
        (beside / TRAINING).write_text(json.dumps(training, indent=2) + "\n", encoding="utf-8")
        if (run.path / "convergence.png").is_file():
            shutil.copy(run.path / "convergence.png", beside / "convergence.png")
        for name in FILES:
            if (beside / name).is_file():
                write_atomically(out / name, (beside / name).read_bytes())


def _without_folders(words: Sequence[str]) -> list[str]:
    """Return the words of a command without the paths of its data and results."""
    kept, skip = [], False
    for word in words:
        if not skip and word not in ("--data-dir", "--out") and not word.startswith(("--data-dir=", "--out=")):
            kept.append(word)
        skip = word in ("--data-dir", "--out")
    return kept


if __name__ == "__main__":
    run_program(main)
