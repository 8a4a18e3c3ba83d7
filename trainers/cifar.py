"""Train the all-convolutional residual network of Hardt & Ma (Table 1), or one of its baselines, on CIFAR."""

import dataclasses
from typing import Literal

from trainers.cli.settings import setting
from trainers.cli.startup import run_program
from trainers.presets import CIFAR_PRESETS, CIFAR_RECIPES
from trainers.training.program import Program
from trainers.training.settings import Command

EXAMPLES = """
examples:
  python -m trainers.cifar --preset quick                      built-in data, about a minute on two fast CPU cores
  python -m trainers.cifar --dataset cifar10                   network and recipe of the paper
  python -m trainers.cifar --preset short --dataset cifar10    network of the paper, 13 epochs
  python -m trainers.cifar --dataset cifar10 --blocks 3 --widths 32 64 128 --steps 4000 --out runs/small
  python -m trainers.cifar --model resnet --depth 20 --out runs/resnet20
  python -m trainers.cifar --resume --out runs/small           resume, as the same command does
  python -m trainers.cifar --evaluate runs/small               test error of the newest checkpoint
  python -m trainers.cifar --export-only runs/small            model.keras and SavedModel of the newest checkpoint
  tensorboard --logdir runs                                    monitor the training

exit codes: 0 done; 1 failed while running; 2 bad input; 130, 143 stopped by Ctrl-C, SIGTERM after saving
"""


@dataclasses.dataclass(frozen=True)
class CifarCommand(Command):
    """Options of the command with the presets of this program."""

    preset: Literal["paper", "fast", "short", "quick"] = setting(
        "paper",
        help="defaults of all other options: the paper's recipe; a normalizer-free network in 50 minutes on two CPU "
        "cores (docs/explanation/fast.md); the paper's network in 13 epochs; or a small network on the built-in data",
        common=True,
    )


PROGRAM = Program("trainers.cifar", __doc__, EXAMPLES, CifarCommand, CIFAR_PRESETS, CIFAR_RECIPES)
parser, main = PROGRAM.parser, PROGRAM.main
BACKENDS = ("tensorflow", "jax")

if __name__ == "__main__":
    run_program(main, BACKENDS)
