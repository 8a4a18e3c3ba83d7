"""Test the landscape theory of "Identity Matters in Deep Learning" (Hardt & Ma, section 2) on deep linear networks."""

from typing import TYPE_CHECKING

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

examples:
  python -m trainers.landscape                                          under two minutes on two CPU cores
  python -m trainers.landscape --dim 10 --depths 8 64 --condition 50

{EXIT_CODES}
"""


def _load(settings: Settings) -> "Targets":
    from trainers.landscape.targets import random_targets

    return random_targets(settings.targets.dim, settings.targets.condition, settings.targets.seeds)


def _experiments(settings: Settings) -> "list[Experiment]":
    from trainers.landscape import descent, factorization

    return [factorization.EXPERIMENT, descent.EXPERIMENT]


PROGRAM = Program("trainers.landscape", __doc__, EXAMPLES, Settings, _load, _experiments)
parser, main = PROGRAM.parser, PROGRAM.main

if __name__ == "__main__":
    run_program(main)
