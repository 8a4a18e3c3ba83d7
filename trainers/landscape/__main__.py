"""Test the landscape theory of "Identity Matters in Deep Learning" (Hardt & Ma, section 2) on deep linear networks."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainers.cli.arguments import UsageError
from trainers.cli.startup import run_program
from trainers.experiments.program import EXIT_CODES, Program
from trainers.landscape.settings import Settings

if TYPE_CHECKING:
    from trainers.experiments.experiment import Experiment
    from trainers.landscape.targets import Targets

EXAMPLES = f"""
experiments, each with a table (CSV) and a figure in --out:
  factorization    norm of the best factorization against depth, with the theorem's bound and a lower bound
  descent          gradient descent of residual and standard parameterizations from a small start
  certificate      (figure only) squared gradient along the path, and its guaranteed lower bound (2.3)
  augmentation     target with a negative determinant, unchanged and with one additional coordinate

examples:
  python -m trainers.landscape                                          under two minutes on two CPU cores
  python -m trainers.landscape --dim 10 --depths 8 64 --condition 50 --determinant positive
  python -m trainers.landscape --target R.npy --out runs/my-target      your own matrix, .npy or text

{EXIT_CODES}
"""


def _check(typed: Mapping[str, Any], settings: Settings) -> None:
    if settings.targets.target and {"dim", "condition", "determinant", "seeds"} & set(typed):
        raise UsageError(
            "--target replaces --dim, --condition, --determinant and --seeds. Use either --target or these options."
        )


def _load(settings: Settings) -> "Targets":
    from trainers.landscape.targets import random_targets, read_target

    chosen = settings.targets
    if not chosen.target:
        return random_targets(chosen.dim, list(chosen.condition), chosen.determinant, chosen.seeds)
    try:
        return read_target(chosen.target)
    except FileNotFoundError as error:
        raise UsageError(f"--target {chosen.target} does not exist.") from error
    except OSError as error:
        raise UsageError(f"--target {chosen.target} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise UsageError(f"--target {chosen.target}: {error}") from error


def _experiments(settings: Settings) -> "tuple[Experiment, ...]":
    from trainers.landscape.experiments import EXPERIMENTS

    return EXPERIMENTS


PROGRAM = Program("trainers.landscape", __doc__, EXAMPLES, Settings, _load, _experiments, check=_check)
parser, main = PROGRAM.parser, PROGRAM.main

if __name__ == "__main__":
    run_program(main)
