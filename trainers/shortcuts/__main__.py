"""Reproduce the experiments and Theorem 1 of "Demystifying ResNet" (Li et al.) on whitened MNIST."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trainers.cli.arguments import Parser
from trainers.cli.startup import import_tensorflow, run_program
from trainers.experiments.program import EXIT_CODES, Program, run_command
from trainers.shortcuts.settings import COMMANDS, Settings, Theorem1Settings

if TYPE_CHECKING:
    from trainers.experiments.experiment import Experiment
    from trainers.run.folder import Run
    from trainers.shortcuts.training import Problem

SUMMARIES = {command: str(settings.__doc__).rstrip(".") for command, settings in COMMANDS.items()}
EXAMPLES = f"""
commands:
{chr(10).join(f"  {command:12} {summary}" for command, summary in SUMMARIES.items())}

Each command writes a table (CSV) and a figure to --out, and prints a verdict on the paper's claim with the numbers.
COMMAND --help lists its options.

examples:
  python -m trainers.shortcuts conditions --data-dir DATA         MNIST as idx files or from TFDS
  python -m trainers.shortcuts trajectory --dataset digits-like   built-in data
  python -m trainers.shortcuts theorem1 --dataset digits-like --units 4 --shortcut-depth 2 --mid tanh

{EXIT_CODES}
"""


def _load(settings: Settings) -> "Problem":
    import_tensorflow()
    from trainers.shortcuts.training import load

    data = settings.data
    print(f"{data.dataset}: loading and whitening ...", file=sys.stderr)
    return load(data.dataset, data.data_dir, data.download)


def _experiments(settings: Settings) -> "list[Experiment]":
    from trainers.shortcuts import conditions, norms, sweep, trajectory

    experiments = [module.EXPERIMENT for module in (conditions, trajectory, sweep, norms)]
    return [experiment for experiment in experiments if isinstance(settings, COMMANDS[experiment.name])]


def _theorem1(problem: "Problem", settings: Theorem1Settings, run: "Run") -> dict[str, Any]:
    from trainers.shortcuts.theorem1 import report

    lines, numbers = report(problem.first(settings.network.samples), settings.network)
    print("\n".join(lines))
    return {"verdicts": lines[2:], "numbers": numbers}


PROGRAMS = {
    command: Program(
        f"trainers.shortcuts {command}",
        SUMMARIES[command],
        EXIT_CODES,
        settings,
        _load,
        _experiments,
        _theorem1 if command == "theorem1" else None,
        # Eigenvalues are computed in parallel, each on one core, see `conditions.summarize_hessians`.
        blas_threads=1,
    )
    for command, settings in COMMANDS.items()
}


def parser(command: str | None = None) -> Parser:
    """Return the argument parser of one of `COMMANDS`, or of the program, with the list of commands."""
    if command:
        return PROGRAMS[command].parser()
    prog = "python -m trainers.shortcuts"
    return Parser(prog=prog, usage=f"{prog} COMMAND [options]", description=__doc__, epilog=EXAMPLES)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    return run_command(parser(), PROGRAMS, argv)


if __name__ == "__main__":
    run_program(main)
