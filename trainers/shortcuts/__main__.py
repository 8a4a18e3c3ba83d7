"""Reproduce the experiments and Theorem 1 of "Demystifying ResNet" (Li et al.) on whitened MNIST."""

import importlib
import sys
from collections.abc import Sequence

from trainers.backends import import_tensorflow
from trainers.cli.arguments import UsageError
from trainers.cli.settings import Parser
from trainers.cli.startup import print_message, run_program
from trainers.experiments.program import EXIT_CODES, ExperimentProgram, Results
from trainers.shortcuts.settings import COMMANDS, CommandSettings

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


def _measure(settings: CommandSettings, results: Results) -> None:
    import threadpoolctl

    import_tensorflow()
    import keras

    from trainers.shortcuts.training import load

    keras.config.set_dtype_policy("float64")
    # Eigenvalues are computed in parallel, each on one core, see `conditions.summarize_hessians`. Only a BLAS that has
    # been loaded can be limited.
    with threadpoolctl.threadpool_limits(1, user_api="blas"):
        print_message(f"{settings.data.dataset}: loading and whitening ...")
        problem = load(settings.data)
        results.start(problem.origin, problem.X, problem.Y)
        command = next(command for command, kind in COMMANDS.items() if isinstance(settings, kind))
        importlib.import_module(f"trainers.shortcuts.{command}").run(problem, settings, results)


PROGRAMS = {
    command: ExperimentProgram(
        f"trainers.shortcuts {command}",
        SUMMARIES[command],
        EXIT_CODES,
        settings,
        _measure,
        ("matplotlib", "tensorflow"),
    )
    for command, settings in COMMANDS.items()
}


def parser(command: str | None = None) -> Parser:
    """Return the argument parser of one of `COMMANDS`, or of the program, with the list of commands."""
    if command:
        return PROGRAMS[command].parser()
    prog = "python -m trainers.shortcuts"
    shown = Parser(prog, __doc__, EXAMPLES)
    shown.usage = f"{prog} COMMAND [options]"
    return shown


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the first word of the command line names, and return the exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    if argv and argv[0] in PROGRAMS:
        return PROGRAMS[argv[0]].main(argv[1:])
    if argv and not argv[0].startswith("-"):
        raise UsageError(f"{argv[0]!r} is not one of the commands {', '.join(PROGRAMS)} (see --help).")
    # Exits after --help or --version, and for unknown options.
    parser().parse_args(argv)
    parser().print_help()
    return 2


if __name__ == "__main__":
    run_program(main)
