"""Errors that the programs report in one line, remedies for unknown options, and commands in messages."""

import difflib
import shlex
from collections.abc import Iterable

# Options of other programs and their names here.
_SYNONYMS = {
    "--batch": "--batch-size",
    "--epochs": "--steps",
    "--lr": "--learning-rate",
    "--output": "--out",
    "--wd": "--weight-decay",
}
# Removed options and the remedies.
REMOVED = {
    "--base-blocks": "Use idmatters_tf.scale_depth in Python.",
    "--bottleneck": "Use idmatters_tf.models.densenet in Python.",
    "--branch-scale": "Use --initializer skipinit, or ResidualConv2D(branch_scale=...) in Python.",
    "--cluster-timeout": "Tasks wait 10 minutes for one another.",
    "--curvature-every": "Use the callback idmatters_tf.curvature.CurvatureMonitor in Python.",
    "--debug": "Use python -X dev -m to see tracebacks.",
    "--decay-epochs": "The learning rate decays every 2 epochs.",
    "--final-rate": "Use --schedule linear or airbench, which end at zero or at 7 % of the peak.",
    "--first-stride": "Use --strides.",
    "--growth": "Use idmatters_tf.models.densenet in Python.",
    "--in-memory": "Use --dataset folder-in-memory.",
    "--last-kernel-size": "The second kernels of --model normalizer-free have size 1.",
    "--lookahead": "Use --schedule airbench.",
    "--mirror": "Use --evaluate RUN, which also averages over mirror images.",
    "--nesterov": "Use --optimizer nesterov. Muon always has Nesterov momentum.",
    "--no-nesterov": "Use --optimizer momentum. Muon always has Nesterov momentum.",
    "--other-rate": "The factors are 1.5 for muon and 0.5 for muon-free.",
    "--overwrite": "Remove the folder of the run.",
    "--parameter-servers": "List the parameter servers in TF_CONFIG.",
    "--size-steps": "Use pairs --train-sizes SIZE:STEP.",
    "--smallest-crop": "Use --augment large-crops, whose crops have at least 35 % of the area.",
    "--stem-strides": "Use --strides, whose first number is that of the first convolution.",
    "--strategy": "Use CUDA_VISIBLE_DEVICES to select GPUs, and TF_CONFIG for a cluster.",
    "--val": "Use --held-out N, or a folder val/.",
    "--val-fraction": "Use --held-out N.",
}


class UsageError(Exception):
    """Invalid input from the user."""

    exit_code = 2


class RunError(Exception):
    """Failure while running: a reason and the remedy, as sentences."""

    exit_code = 1

    def __init__(self, reason: str, advice: str = ""):
        super().__init__(f"{reason} {advice}".strip())


def suggest(name: str, known: Iterable[str]) -> str:
    """Return the remedy for a removed option, or " Did you mean NAME?" for a known synonym or near name, or ""."""
    known = list(known)
    remedy = REMOVED.get(option_of(name))
    if remedy is not None:
        return f" It was removed. {remedy}"
    synonym = _SYNONYMS.get(name)
    near = [synonym] if synonym in known else difflib.get_close_matches(name, known, 1, 0.75)
    return f" Did you mean {near[0]}?" if near else ""


def option_of(name: str) -> str:
    """Return the option of a setting, such as --drop-steps."""
    return f"--{name.removeprefix('--').replace('_', '-')}"


def program_command(module: str, *words: object) -> str:
    """Return the shell command `python -m MODULE` with the words."""
    return shlex.join(["python", "-m", module, *map(str, words)])
