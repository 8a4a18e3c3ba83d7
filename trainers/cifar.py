"""Train the all-convolutional residual network of Hardt & Ma (Table 1), or one of its baselines, on CIFAR."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

from trainers.cli.arguments import Parser
from trainers.cli.settings import setting
from trainers.cli.startup import run_program
from trainers.training.program import make_parser, run_task
from trainers.training.settings import Command
from trainers.training.task import Task

EXAMPLES = """
examples:
  python -m trainers.cifar --preset quick                      built-in data, two minutes on two CPU cores
  python -m trainers.cifar --dataset cifar10                   network and recipe of the paper
  python -m trainers.cifar --dataset cifar10 --blocks 3 --widths 32 64 128 --steps 4000 --out runs/small
  python -m trainers.cifar --model resnet --depth 20 --out runs/resnet20
  python -m trainers.cifar --resume --out runs/small           resume, as the same command does
  python -m trainers.cifar --evaluate runs/small               test error of the newest checkpoint
  python -m trainers.cifar --export-only runs/small            model.keras and SavedModel of the newest checkpoint
  tensorboard --logdir runs                                    monitor the training

exit codes: 0 done; 1 failed while running; 2 bad input; 130, 143 stopped by Ctrl-C, SIGTERM after saving
"""

PRESETS = {
    # The recipe of the paper's section 4.1; the defaults of the options.
    "paper": {},
    # See docs/explanation/fast.md. Other options are set by the recipe in trainers/networks/normalizer_free.py.
    "fast": {
        "model": "normalizer-free",
        "precision": "bfloat16",
        "evaluate_every": 500,
        "checkpoint_every": 250,
    },
    # About two minutes on two CPU cores with the built-in data.
    "quick": {
        "dataset": "shapes",
        "blocks": (1,),
        "widths": (16, 32, 64),
        "stem": 16,
        "steps": 1000,
        "learning_rate": 0.1,
        "drop_steps": (700, 900),
        "clip_norm": 1.0,
        "evaluate_every": 200,
        "checkpoint_every": 200,
    },
}


@dataclasses.dataclass(frozen=True)
class CifarCommand(Command):
    """Options of the command with the presets of this program."""

    preset: Literal["paper", "fast", "quick"] = setting(
        "paper",
        help="defaults of all other options: the paper's recipe; a recipe for two CPU cores "
        "(docs/explanation/fast.md); or a small network on the built-in data",
        common=True,
    )


class Cifar(Task):
    """Training task with the defaults for CIFAR."""

    program = "trainers.cifar"
    command_type = CifarCommand
    scale = "cifar"
    presets = PRESETS


def parser() -> Parser:
    """Return the command line of this program, with the paper's recipe as defaults."""
    return make_parser(Cifar, __doc__, EXAMPLES)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    return run_task(Cifar, parser(), argv)


if __name__ == "__main__":
    run_program(main)
