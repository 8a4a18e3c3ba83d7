"""Reproduce the experiments and Theorem 1 of "Demystifying ResNet" (Li et al.) on whitened MNIST."""

import functools
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trainers.cli.arguments import Parser, UsageError
from trainers.cli.startup import import_tensorflow, run_program
from trainers.experiments.program import EXIT_CODES, Program, command_parser, run_command
from trainers.shortcuts.settings import COMMANDS, NormsSettings, Settings, Theorem1Settings, summary

if TYPE_CHECKING:
    from trainers.experiments.experiment import Experiment
    from trainers.experiments.program import Problem
    from trainers.run.folder import Run

EXAMPLES = f"""
commands:
{chr(10).join(f"  {command:12} {summary(command)}" for command in COMMANDS)}

Each command writes a table (CSV) and a figure to --out, and prints a verdict on the paper's claim with the numbers.
COMMAND --help lists its options.

examples:
  python -m trainers.shortcuts conditions --data-dir DATA         MNIST as idx files or from TFDS
  python -m trainers.shortcuts trajectory --dataset digits-like   built-in data
  python -m trainers.shortcuts theorem1 --dataset digits-like --units 4 --shortcut-depth 2 --mid tanh
  python -m trainers.shortcuts norms --runs runs/cifar-small runs/cifar-deep

{EXIT_CODES}
"""


def _load(settings: Settings) -> "Problem":
    from idmatters_tf.data import mnist
    from idmatters_tf.data.images import DataError
    from trainers.shortcuts.data import load
    from trainers.shortcuts.training_norms import Runs

    if isinstance(settings, NormsSettings) and settings.norms.runs:
        return Runs(settings.norms.runs)
    data = settings.data
    try:
        location = mnist.locate(data.data_dir) if data.dataset == "mnist" else None
        if location is not None and location.kind == "tfds":
            import_tensorflow()
        print(f"{data.dataset}: loading and whitening ...", file=sys.stderr)
        problem = load(data.dataset, data.components, data.data_dir, data.download)
    except DataError as error:
        raise UsageError(f"{error} (option --data-dir; built-in data: --dataset digits-like)") from error
    import_tensorflow()
    return problem


def _experiments(command: str, settings: Settings) -> "list[Experiment]":
    from trainers.shortcuts import training_norms
    from trainers.shortcuts.experiments import EXPERIMENTS

    if isinstance(settings, NormsSettings) and settings.norms.runs:
        return [training_norms.EXPERIMENT]
    return [EXPERIMENTS[command]] if command in EXPERIMENTS else []


def _theorem1(problem: Any, settings: Theorem1Settings, run: "Run") -> dict[str, Any]:
    from trainers.shortcuts.theorem1 import report

    lines, numbers = report(problem.first(settings.network.samples), settings.network, settings.run.seed)
    if "expected_order" in numbers and "max_abs" not in numbers:
        lines.append("--relu-slope 0.5 chooses this slope.")
    print("\n".join(lines))
    return {"verdicts": lines[2:], "numbers": numbers}


PROGRAMS = {
    command: Program(
        f"trainers.shortcuts {command}",
        summary(command),
        EXIT_CODES,
        settings,
        _load,
        functools.partial(_experiments, command),
        _theorem1 if command == "theorem1" else None,
        # Eigenvalues of many matrices are computed in parallel, each on one core, see `trainers.shortcuts.spectra`.
        blas_threads=1,
    )
    for command, settings in COMMANDS.items()
}


def parser(command: str | None = None) -> Parser:
    """Return the argument parser of one of `COMMANDS`, or of the program, with the list of commands."""
    return PROGRAMS[command].parser() if command else command_parser("trainers.shortcuts", __doc__, EXAMPLES)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    return run_command(parser(), PROGRAMS, argv)


if __name__ == "__main__":
    run_program(main)
