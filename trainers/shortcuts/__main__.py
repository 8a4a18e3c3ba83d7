"""Reproduce the experiments and Theorem 1 of "Demystifying ResNet" (Li et al.) on whitened MNIST."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trainers.cli.arguments import Parser, UsageError
from trainers.cli.settings import add_options, parse, with_defaults
from trainers.cli.startup import import_tensorflow, print_message, run_program
from trainers.experiments.opening import open_run, settings_to_save
from trainers.run.folder import Run
from trainers.run.lock import hold_lock
from trainers.shortcuts.settings import COMMANDS, DataSettings, NormsSettings, Settings, Theorem1Settings, summary

if TYPE_CHECKING:
    from trainers.shortcuts.data import Problem

EXIT_CODES = "exit codes: 0 success; 1 failure while running; 2 bad input; 130 stopped by Ctrl-C"
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


def parser(command: str | None = None) -> Parser:
    """Return the argument parser of one of `COMMANDS`, or of the program, with the list of commands."""
    program = "python -m trainers.shortcuts"
    if command is None:
        usage = f"{program} COMMAND [options]"
        return Parser(prog=program, usage=usage, description=__doc__, epilog=EXAMPLES)
    parser = Parser(prog=f"{program} {command}", description=summary(command), epilog=EXIT_CODES)
    add_options(parser, COMMANDS[command])
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    if not argv or argv[0] in ("-h", "--help"):
        parser().print_help()
        return 0 if argv else 2
    command = argv[0]
    if command == "--version":
        parser().parse_args(["--version"])
    if command not in COMMANDS:
        raise UsageError(f"{command!r} is not one of the commands {', '.join(COMMANDS)} (see --help).")
    settings = with_defaults(COMMANDS[command], parse(parser(command), argv[1:]))
    if isinstance(settings, NormsSettings) and settings.norms.runs:
        return _training_norms(Run(settings.run.out), settings)
    saved = settings_to_save(settings) | {"command": command}
    with open_run(settings.run.out, saved, settings.run.overwrite) as run:
        return 0 if run is None else _run(run, command, saved, settings)


def _run(run: Run, command: str, saved: dict[str, Any], settings: Settings) -> int:
    import threadpoolctl

    # The BLAS must be loaded before it can be limited.
    import idmatters_tf.linear  # noqa: F401
    from trainers.experiments.results import output_names
    from trainers.shortcuts.experiments import EXPERIMENTS

    # Eigenvalues of many matrices are computed in parallel, each on one core, see `trainers.shortcuts.spectra`.
    with threadpoolctl.threadpool_limits(1, user_api="blas"):
        run.check_outputs(output_names([EXPERIMENTS[command]] if command in EXPERIMENTS else [], settings.run.format))
        problem = _load(settings.data)
        import_tensorflow()
        if isinstance(settings, Theorem1Settings):
            return _theorem1(run, saved, settings, problem)
        run.start(saved, {"origin": problem.origin, "digest": problem.digest()})
        return _experiment(run, command, problem, settings)


def _load(data: DataSettings) -> "Problem":
    from idmatters_tf.data.images import DataError
    from trainers.shortcuts.data import load

    try:
        if data.dataset == "mnist":
            from idmatters_tf.data import mnist

            location = mnist.locate(data.data_dir)
            if location is not None and location.kind == "tfds":
                import_tensorflow()
        print(f"{data.dataset}: loading and whitening ...", file=sys.stderr)
        return load(data.dataset, data.components, data.data_dir, data.download)
    except DataError as error:
        raise UsageError(f"{error} (option --data-dir; built-in data: --dataset digits-like)") from error


def _experiment(run: Run, command: str, problem: "Problem", settings: Settings) -> int:
    """Run an experiment and write its table, figures and verdicts."""
    from trainers.experiments.results import run_experiment
    from trainers.shortcuts.experiments import EXPERIMENTS

    found = run_experiment(EXPERIMENTS[command], problem, settings, run.path)
    run.finish({"verdicts": found.verdicts, "rows": len(found.rows)})
    print(", ".join(map(str, found.paths)), *found.verdicts, sep="\n")
    return 0


def _theorem1(run: Run, saved: dict[str, Any], settings: Theorem1Settings, problem: "Problem") -> int:
    from trainers.shortcuts.theorem1 import report

    lines, numbers = report(problem.first(settings.network.samples), settings.network, settings.run.seed)
    if "expected_order" in numbers and "max_abs" not in numbers:
        lines.append("--relu-slope 0.5 chooses this slope.")
    run.start(saved, {"origin": problem.origin, "digest": problem.digest()})
    print("\n".join(lines))
    run.finish({"verdicts": lines[2:], "numbers": numbers})
    return 0


def _training_norms(run: Run, settings: NormsSettings) -> int:
    """Write Figure 2 from the logs of trainers.cifar, and replace an earlier one in the folder."""
    from trainers.experiments.experiment import by_column
    from trainers.experiments.results import output_names, run_experiment
    from trainers.shortcuts.training_norms import EXPERIMENT

    run.check_usable()
    run.check_outputs(output_names([EXPERIMENT], settings.run.format))
    with hold_lock(run.path, print_message):
        found = run_experiment(EXPERIMENT, settings.norms.runs or (), settings, run.path, unit="runs")
    print(", ".join(map(str, found.paths)))
    for network, rows in by_column(found.rows, "network").items():
        print(
            f"{network}: mean Frobenius norm {rows[0].mean_frobenius:.3f} to {rows[-1].mean_frobenius:.3f}, final "
            f"training loss {rows[-1].loss:.3f}"
        )
    return 0


if __name__ == "__main__":
    run_program(main)
