"""Train the all-convolutional residual network of Hardt & Ma (section 4.2), or one of its baselines, on ImageNet.

Any other folder of labeled images is accepted as well.
"""

import dataclasses
from typing import Literal

from trainers.cli.settings import setting
from trainers.cli.startup import run_program
from trainers.presets import IMAGENET_PRESETS, IMAGENET_RECIPES
from trainers.training.program import Program
from trainers.training.settings import Command

EXAMPLES = """
examples:
  python -m trainers.imagenet --data-dir ILSVRC2012            network and recipe of the paper, on all GPUs
  python -m trainers.imagenet --data-dir photos --size 64 --blocks 1 1 1 1 --stem 32 --widths 32 64 128 256 \\
      --clip-norm 1 --batch-size 32 --steps 2000 --out runs/trial   a small network on a folder of your own images
  python -m trainers.imagenet --preset fast --data-dir imagenette   64x64 pixels on two CPU cores
  python -m trainers.imagenet --model resnet --data-dir ILSVRC2012   ResNet-34 of He et al.
  python -m trainers.launch --workers 2 -- imagenet ...        two processes on this machine
  python -m trainers.imagenet --resume --out runs/trial        resume, as the same command does

--data-dir contains train/CLASS/*.JPEG and val/CLASS/*.JPEG, or only CLASS/*.JPEG with --held-out N. Images are .jpeg,
.jpg or .png. Several machines: docs/howto/clusters.md.

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


PROGRAM = Program("trainers.imagenet", __doc__, EXAMPLES, ImageNetCommand, IMAGENET_PRESETS, IMAGENET_RECIPES)
parser, main = PROGRAM.parser, PROGRAM.main
BACKENDS = ("tensorflow", "jax")

if __name__ == "__main__":
    run_program(main, BACKENDS)
