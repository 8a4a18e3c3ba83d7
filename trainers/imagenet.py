"""Train the all-convolutional residual network of Hardt & Ma (section 4.2), or one of its baselines, on ImageNet.

Any other folder of labeled images is accepted as well.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal

from trainers.cli.arguments import Parser
from trainers.cli.settings import setting
from trainers.cli.startup import run_program
from trainers.training.program import make_parser, run_task
from trainers.training.settings import Command
from trainers.training.task import Task

# Recipe of section 4.2. The sizes of the networks are defined in trainers/networks.
PAPER = {
    "dataset": "folder",
    "size": 224,
    "steps": 700_000,
    "batch_size": 256,
    "learning_rate": 0.1,
    "schedule": "decay",
    "drop_steps": (),
    "evaluate_every": 5000,
    "checkpoint_every": 1000,
}
PRESETS = {
    "paper": {},
    # For ten classes at 64x64 pixels (Imagenette) on two CPU cores: 60 epochs. Other options are set by the recipe in
    # trainers/networks/normalizer_free.py.
    "fast": {
        "model": "normalizer-free",
        "size": 64,
        "smallest_crop": 0.35,
        "batch_size": 128,
        "steps": 4440,
        "warm_up_steps": 444,
        "precision": "bfloat16",
        "evaluate_every": 370,
        "checkpoint_every": 185,
    },
    # Baseline with the widths, normalization and head of He et al., and standard crops.
    "resnet34": {"widths": (64, 128, 256, 512), "norm": "batch", "head": "trained", "augment": "standard"},
}

EXAMPLES = """
examples:
  python -m trainers.imagenet --data-dir ILSVRC2012            network and recipe of the paper, on all GPUs
  python -m trainers.imagenet --data-dir photos --size 64 --blocks 1 1 1 1 --stem 32 --widths 32 64 128 256 \\
      --clip-norm 1 --batch-size 32 --steps 2000 --out runs/trial   a small network on a folder of your own images
  python -m trainers.imagenet --preset fast --data-dir imagenette   64x64 pixels on two CPU cores
  python -m trainers.imagenet --model resnet --data-dir ILSVRC2012   ResNet-34 of He et al.
  python -m trainers.launch --workers 2 -- imagenet ...        two processes on this machine
  python -m trainers.imagenet --resume --out runs/trial        resume, as the same command does

--data-dir contains train/CLASS/*.JPEG and val/CLASS/*.JPEG (or a flat val/ with --val-labels), or only CLASS/*.JPEG
with --val-fraction 0.1, or imagenet2012 as prepared by TensorFlow Datasets, or the two ILSVRC2012 tar files. Images are
.jpeg, .jpg, .png, .webp, .bmp or .gif. Several machines: docs/howto/clusters.md.

exit codes: 0 done; 1 failed while running; 2 bad input; 130, 143 stopped by Ctrl-C, SIGTERM after saving
"""


@dataclasses.dataclass(frozen=True)
class ImageNetCommand(Command):
    """Options of the command with the presets of this program."""

    preset: Literal["paper", "fast", "resnet34"] = setting(
        "paper",
        help="defaults of all other options: the paper's recipe; a recipe for small images on two CPU cores "
        "(docs/explanation/fast.md); or the network of He et al. as a baseline",
        common=True,
    )


class ImageNet(Task):
    """Training task with the defaults for ImageNet."""

    program = "trainers.imagenet"
    command_type = ImageNetCommand
    defaults = PAPER
    scale = "imagenet"
    presets = PRESETS


def parser() -> Parser:
    """Return the command line of this program, with the paper's recipe as defaults."""
    return make_parser(ImageNet, __doc__, EXAMPLES)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    return run_task(ImageNet, parser(), argv)


if __name__ == "__main__":
    run_program(main)
