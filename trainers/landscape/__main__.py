"""Test the landscape theory of "Identity Matters in Deep Learning" (Hardt & Ma, section 2) on deep linear networks."""

import sys
from collections.abc import Sequence
from typing import Any

from trainers.cli.arguments import Parser, UsageError
from trainers.cli.settings import add_options, parse, with_defaults
from trainers.cli.startup import import_tensorflow, run_program
from trainers.experiments.opening import open_run, settings_to_save
from trainers.landscape.settings import Settings
from trainers.run.folder import Run

EXAMPLES = """
experiments, each with a table (CSV), a figure and TensorBoard scalars in --out:
  factorization    norm of the best factorization against depth, with the theorem's bound and a lower bound
  descent          gradient descent of residual and standard parameterizations from a small start
  certificate      (figure only) squared gradient along the path, and its guaranteed lower bound (2.3)
  augmentation     target with a negative determinant, unchanged and with one additional coordinate

examples:
  python -m trainers.landscape                                          under two minutes on two CPU cores
  python -m trainers.landscape --dim 10 --depths 8 64 --condition 50 --determinant positive
  python -m trainers.landscape --target R.npy --out runs/my-target      your own matrix, .npy or text

exit codes: 0 success; 1 failure while running; 2 bad input; 130 stopped by Ctrl-C
"""


def parser() -> Parser:
    """Return the argument parser of this program."""
    parser = Parser(prog="python -m trainers.landscape", description=__doc__, epilog=EXAMPLES)
    add_options(parser, Settings)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    typed = parse(parser(), argv)
    settings = with_defaults(Settings, typed)
    if settings.targets.target and {"dim", "condition", "determinant", "seeds"} & set(typed):
        raise UsageError(
            "--target replaces --dim, --condition, --determinant and --seeds. Use either --target or these options."
        )
    saved = settings_to_save(settings)
    from trainers.experiments.results import output_names
    from trainers.landscape.experiments import EXPERIMENTS

    with open_run(settings.run.out, saved, settings.run.overwrite) as run:
        if run is not None:
            run.check_outputs(output_names(EXPERIMENTS, settings.run.format))
            targets = _targets(settings)
            run.start(saved, {"origin": targets.origin, "digest": targets.digest()})
            run.finish(_experiments(run, settings, targets))
    return 0


def _targets(settings: Settings) -> Any:
    from trainers.landscape.targets import random_targets, read_target

    chosen = settings.targets
    if not chosen.target:
        return random_targets(chosen.dim, list(chosen.condition), chosen.determinant, chosen.seeds)
    try:
        return read_target(chosen.target)
    except FileNotFoundError as error:
        raise UsageError(f"--target {chosen.target} does not exist.") from error
    except OSError as error:
        raise UsageError(f"--target {chosen.target} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise UsageError(f"--target {chosen.target}: {error}") from error


def _experiments(run: Run, settings: Settings, targets: Any) -> dict[str, int]:
    """Run the experiments that the targets allow, and return the number of rows of each."""
    from trainers.experiments.results import run_experiment, write_scalars
    from trainers.landscape.experiments import EXPERIMENTS

    sizes, scalars = {}, []
    for experiment in EXPERIMENTS:
        found = run_experiment(experiment, targets, settings, run.path)
        if not found.rows:
            print(f"{experiment.name}: skipped, not applicable to these targets", file=sys.stderr)
            continue
        sizes[experiment.name] = len(found.rows)
        scalars += map(experiment.scalars, found.rows) if experiment.scalars else []
        print(f"{experiment.name + ':':17}{', '.join(map(str, found.paths))}", flush=True)
        for verdict in found.verdicts:
            print(f"{'':17}{verdict}", flush=True)
    import_tensorflow()
    write_scalars(scalars, run.path / "events")
    return sizes


if __name__ == "__main__":
    run_program(main)
