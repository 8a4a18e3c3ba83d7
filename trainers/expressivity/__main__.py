"""Memorize a whole training set in closed form, by Theorem 3.2 of "Identity Matters in Deep Learning"."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainers.cli.arguments import UsageError
from trainers.cli.startup import import_tensorflow, run_program
from trainers.experiments.program import EXIT_CODES, Program
from trainers.expressivity.settings import Settings

if TYPE_CHECKING:
    from trainers.experiments.experiment import Experiment
    from trainers.expressivity.sample import Sample
    from trainers.run.folder import Run

EXAMPLES = f"""
The program builds the network, saves and reloads it, checks every row, and measures the growth of parameters, margin,
time and memory. Outputs in --out: model.keras, result.json, scaling.csv, scaling.png.

examples:
  python -m trainers.expressivity --dataset shapes --labels random --train-images 2000
  python -m trainers.expressivity --dataset cifar10 --labels random --width 32        all 50,000 images
  python -m trainers.expressivity --dataset random --rows 10000 --dim 32 --classes 10 --width 8

{EXIT_CODES}
"""


def _check(typed: Mapping[str, Any], settings: Settings) -> None:
    random = settings.data.dataset == "random"
    wrong = {"labels", "train_images", "data_dir"} if random else {"rows", "dim", "classes"}
    for name in sorted(wrong & set(typed)):
        if name == "labels" and settings.data.labels == "random":
            continue
        option = "--" + name.replace("_", "-")
        raise UsageError(
            f"{option} cannot be combined with --dataset {settings.data.dataset}. "
            + ("Random points have random labels and the options --rows, --dim and --classes. " if random else "")
            + f"Remove {option}."
        )


def _load(settings: Settings) -> "Sample":
    from idmatters_tf.data.images import DataError
    from trainers.expressivity.sample import load_sample

    try:
        sample = load_sample(settings)
    except MemoryError as error:
        raise UsageError(f"--rows {settings.data.rows}: {error} Use fewer rows or a smaller --dim.") from error
    except DataError as error:
        raise UsageError(f"{error} (option --data-dir; built-in images: --dataset shapes)") from error
    import_tensorflow()
    return sample


def _experiments(settings: Settings) -> "list[Experiment]":
    from trainers.expressivity.scaling import EXPERIMENT

    return [EXPERIMENT]


def _report(sample: "Sample", settings: Settings, run: "Run") -> dict[str, Any]:
    from trainers.experiments.results import stage_bars
    from trainers.expressivity.memorizing import describe, memorize_and_verify

    with stage_bars(unit="rows") as progress:
        result = memorize_and_verify(sample, settings.network, run.path / "model.keras", progress)
    for name, text in describe(result).items():
        print(f"{name + ':':18}{text}", flush=True)
    return result


PROGRAM = Program("trainers.expressivity", __doc__, EXAMPLES, Settings, _load, _experiments, _report, _check)
parser, main = PROGRAM.parser, PROGRAM.main

if __name__ == "__main__":
    run_program(main)
