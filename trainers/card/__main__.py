"""Make a folder with the weights and the model card of a finished run. Nothing is uploaded."""

import dataclasses
import functools
import json
import os
import pathlib
import re
import shlex
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from idmatters_tf.checkpointing import write_atomically
from trainers.backends import require_packages
from trainers.cli.arguments import UsageError, program_command
from trainers.cli.settings import make_parser, setting, with_defaults
from trainers.cli.startup import print_lines, run_program
from trainers.run.folder import CARD, WHERE_DATA_ARE, Run, check_output, hold_lock
from trainers.training.evaluate import restore_model
from trainers.training.task import Task, recorded_settings

EXAMPLES = """
examples:
  python -m trainers.card runs/small                               in model_cards/small
  python -m trainers.card runs/small --repository me/small --data-dir DATA

The folder contains README.md, training.json with all settings, the convergence plot, and the weights in a format that
keras.saving.load_model reads from a path and from hf://USER/NAME. The test error is that of the published weights,
measured in float32. An existing folder of this program is updated. Other files in it, such as .git, are kept.

exit codes: 0 done; 1 failed while running; 2 bad input; 130 stopped by Ctrl-C
"""
PROGRAMS = ("trainers.cifar", "trainers.imagenet")
# The first file marks a folder of this program.
FILES = (CARD, "config.json", "metadata.json", "model.weights.h5", "convergence.png", "README.md")
PLACEHOLDER = "USER/NAME"
# Number of class names that the text lists.
LISTED = 100
ON_HUB = {"cifar10": "uoft-cs/cifar10", "cifar100": "uoft-cs/cifar100"}
TEXT = """
# {name}

A residual network for {images} with {result[parameters]:,} trainable weights, trained with idmatters_tf. Its inputs are
raw images, uint8 of shape (n, {shape}), its outputs logits of {data[classes]:,} classes{names}

```python
import idmatters_tf.layers, keras  # registers the layers

model = keras.saving.load_model("hf://{repository}")  # or the path of this folder
logits = model(images)
```

## Error

The top-1 error of these weights is {percent:.2f} %, computed in float32 on images of the split "{split}".

## Training

`python -m {program}` made {result[steps]:,} steps with these settings:

```json
{listed}
```

![Convergence](convergence.png)
"""


@dataclasses.dataclass(frozen=True)
class CardSettings:
    """Settings of this program."""

    run: str = setting(help="finished run of trainers.cifar or trainers.imagenet", metavar="RUN", positional=True)
    out: str | None = setting(None, help="new folder, or one of this program (default: model_cards/RUN)", metavar="DIR")
    repository: str = setting(
        PLACEHOLDER, help="name on the hub; without it, the name of the folder", metavar=PLACEHOLDER
    )
    license: str = setting("apache-2.0", help="license of the weights", metavar="NAME")
    data_dir: str | None = setting(None, help="folder of the data, if it has moved since the run", metavar="DIR")
    debug: bool = setting(False, help="show tracebacks")

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", self.repository):
            raise UsageError(f"--repository must be of the form USER/NAME. Received: {self.repository!r}")


parser = functools.partial(make_parser, "trainers.card", __doc__, EXAMPLES, CardSettings)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    settings = with_defaults(CardSettings, parser().parse(argv))
    require_packages("huggingface_hub")
    run = Run(settings.run)
    config = run.config()
    result = run.result()
    program = str(config.get("program"))
    if program not in PROGRAMS:
        raise UsageError(f"{run.path} is not a run of {' or '.join(PROGRAMS)}. Other programs have no model cards.")
    if result is None:
        raise UsageError(f"{run.path} is not finished. Run: {program_command(program, '--resume', '--out', run.path)}")
    out = pathlib.Path(settings.out or pathlib.Path("model_cards") / run.path.resolve().name)
    check_output(out, CARD)
    moved = {} if settings.data_dir is None else {"data_dir": settings.data_dir}
    task = Task(program, recorded_settings(program, run, precision="float32", **moved), run)
    trained, step = restore_model(task)
    from trainers.training.build import in_float32
    from trainers.training.export import export_model
    from trainers.training.measure import measure

    if step != result["steps"]:
        # The number of steps and the figure belong to the weights of the last step.
        raise UsageError(
            f"the newest intact checkpoint of {run.path} is that of step {step}, not of its last step "
            f"{result['steps']}. Remove {run.result_path}, then train the remaining steps again with --resume."
        )
    model = export_model(task, in_float32(task, trained, task.data.image_shape))
    measured: Any = measure(trained, task.source.test_batches(), task.source.test_images)
    error = measured["error"]
    used = {name: value for name, value in config["settings"].items() if name not in WHERE_DATA_ARE}
    data = {name: value for name, value in config["data"].items() if name != "origin"}
    training = {"program": program, "settings": used, "data": data, "result": result, "error": error}
    with hold_lock(out), tempfile.TemporaryDirectory(dir=out, prefix=f".writing-{os.getpid()}-") as name:
        beside = pathlib.Path(name)
        model.save(beside, zipped=False)
        repository = f"USER/{out.resolve().name}" if settings.repository == PLACEHOLDER else settings.repository
        text = readme(repository, settings.license, task.settings.data.test_split, training)
        (beside / "README.md").write_text(text, encoding="utf-8")
        (beside / CARD).write_text(json.dumps(training, indent=2) + "\n", encoding="utf-8")
        shutil.copy(run.path / "convergence.png", beside)
        for name in FILES:
            write_atomically(out / name, (beside / name).read_bytes())
    print_lines(f"{out}: test error {100 * error:.2f} %; nothing has been uploaded")
    print_lines(f"load it:    import idmatters_tf.layers, keras; model = keras.saving.load_model({str(out)!r})")
    print_lines(f"publish it: {shlex.join(['hf', 'upload', repository, str(out), '.'])}")
    return 0


def readme(repository: str, license: str, split: str, training: Mapping[str, Any]) -> str:
    """Return README.md: the metadata of huggingface_hub, and the text about the content of training.json."""
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    kind = "image-classification"
    dataset = str(training["settings"]["dataset"])
    name = repository.split("/")[1]
    is_folder = dataset.startswith("folder")
    classes = training["data"]["class_names"]
    accuracy = round(1 - training["error"], 6)
    result = EvalResult(kind, str(ON_HUB.get(dataset, dataset)), dataset, "accuracy", accuracy, dataset_split=split)
    about = {"license": license, "library_name": "keras", "pipeline_tag": kind, "tags": ["keras", kind]}
    header = ModelCardData(**about, datasets=ON_HUB.get(dataset), model_name=name, eval_results=[result]).to_yaml()
    facts = {"shape": ", ".join(map(str, training["data"]["image_shape"])), "percent": 100 * training["error"]}
    facts |= {"images": "images in folders" if is_folder else f"the data set {dataset}"}
    facts |= {"names": f": {', '.join(classes)}." if 0 < len(classes) <= LISTED else "."}
    facts |= {"listed": json.dumps(training["settings"], indent=2), "repository": repository, "split": split}
    return str(ModelCard(f"---\n{header}\n---\n{TEXT.format(name=name, **facts, **training)}"))


if __name__ == "__main__":
    run_program(main)
