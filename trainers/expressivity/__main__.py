"""Memorize a whole training set in closed form, by Theorem 3.2 of "Identity Matters in Deep Learning"."""

from typing import TYPE_CHECKING, Any

from trainers.cli.startup import import_tensorflow, run_program
from trainers.experiments.program import EXIT_CODES, Program
from trainers.expressivity.settings import Settings

if TYPE_CHECKING:
    from trainers.expressivity.memorizing import Sample
    from trainers.run.folder import Run

EXAMPLES = f"""
The program builds the network, saves and reloads it, and checks every row. Outputs in --out: model.keras, result.json.

examples:
  python -m trainers.expressivity --dataset shapes --labels random --train-images 2000
  python -m trainers.expressivity --dataset cifar10 --labels random --width 32        all 50,000 images

{EXIT_CODES}
"""


def _load(settings: Settings) -> "Sample":
    from trainers.expressivity.memorizing import load_sample

    sample = load_sample(settings)
    import_tensorflow()
    return sample


def _report(sample: "Sample", settings: Settings, run: "Run") -> dict[str, Any]:
    from trainers.experiments.experiment import stage_bars
    from trainers.expressivity.memorizing import describe, memorize_and_verify

    with stage_bars(unit="rows") as progress:
        result = memorize_and_verify(sample, settings.network, run.path / "model.keras", progress)
    for name, text in describe(result).items():
        print(f"{name + ':':18}{text}", flush=True)
    return result


PROGRAM = Program("trainers.expressivity", __doc__, EXAMPLES, Settings, _load, report=_report)
parser, main = PROGRAM.parser, PROGRAM.main

if __name__ == "__main__":
    run_program(main)
