"""Shows the landscape theory of "Identity Matters in Deep Learning" (Hardt & Ma, section 2) on deep linear networks."""

import itertools
import pathlib
import sys

from trainers.cli.arguments import Parser, UsageError, number, whole_number
from trainers.cli.startup import import_tensorflow, run_program
from trainers.run.folder import Run
from trainers.run.progress import Progress
from trainers.run.tables import finish, write_csv

EXAMPLES = """
experiments, each with a table (CSV), a figure and TensorBoard scalars in --out:
  factorization    the norm of the best factorisation against depth, the theorem's bound and a lower bound
  descent          gradient descent: residual networks, and the standard parameterisation from the same small start
  certificate      (figure only) the squared gradient along the path, and what (2.3) guarantees
  augmentation     a negative determinant, as it is and cured by one more coordinate
  regularization   the norm of the optimum found against weight decay

examples:
  python -m trainers.landscape                                          under two minutes on two CPU cores
  python -m trainers.landscape --dim 10 --depths 8 64 --condition 50 --determinant positive
  python -m trainers.landscape --target R.npy --out runs/my-target      a matrix of your own, .npy or text

exit codes: 0 done; 1 failed while running; 2 bad input
"""

DECAYS = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


def parser():
    """The command line of this program."""
    parser = Parser(prog="python -m trainers.landscape", description=__doc__, epilog=EXAMPLES)
    targets = parser.add_argument_group("targets")
    targets.add_argument(
        "--dim", type=whole_number(1, 256), default=6, metavar="N", help="dimension d of random targets"
    )
    targets.add_argument(
        "--condition", type=number(1), nargs="+", default=[2.0, 10.0, 100.0], metavar="X", help="condition numbers"
    )
    targets.add_argument(
        "--determinant", choices=("positive", "negative", "both"), default="both", help="sign of random targets'"
    )
    targets.add_argument("--seeds", type=whole_number(1, 100), default=2, metavar="N", help="targets of each kind")
    targets.add_argument("--target", metavar="FILE", help="one square matrix instead of random ones: .npy or text")
    networks = parser.add_argument_group("networks")
    networks.add_argument(
        "--depths", type=whole_number(1, 10_000), nargs="+", default=[4, 8, 16, 32, 64], metavar="N", help="depths l"
    )
    networks.add_argument("--steps", type=whole_number(1), default=1000, metavar="N", help="of gradient descent")
    run = parser.add_argument_group("run")
    run.add_argument("--out", metavar="DIR", default="runs/landscape", help="folder of the results")
    run.add_argument("--debug", action="store_true", help="show tracebacks")
    return parser


def main(argv=None):
    """Runs the program; returns its exit code."""
    explicit, defaults = parser().parse(argv)
    settings = {**defaults, **explicit}
    if settings["target"] and {"dim", "condition", "determinant", "seeds"} & set(explicit):
        raise UsageError(
            "--target takes the place of --dim, --condition, --determinant and --seeds: give one or the other."
        )
    del settings["debug"]
    run = Run(settings.pop("out"))
    run.check_usable()
    if run.exists():
        run.check_same(settings)
        if run.result() is not None:
            print(f"{run.path} is finished. Give another --out for a new run.")
            return 0
    targets = _targets(settings)
    run.start(settings, {"origin": settings["target"] or "random", "digest": _digest(targets)})
    tables = _experiments(settings, targets)
    import_tensorflow()
    _write(run.path, tables)
    run.finish({name: len(rows) for name, rows in tables.items()})
    return 0


def _targets(settings):
    """The targets by name, those with a positive and those with a negative determinant."""
    import numpy as np

    if settings["target"]:
        R = _read(settings["target"])
        sign = np.linalg.slogdet(R)[0]
        name = pathlib.Path(settings["target"]).name
        return ({name: R}, {}) if sign > 0 else ({}, {name: R})
    from trainers.landscape.experiments import random_target

    if settings["dim"] == 1:
        # A number has condition 1.
        settings = {**settings, "condition": [1.0]}
    signs = {"positive": (1,), "negative": (-1,), "both": (1, -1)}[settings["determinant"]]
    positive, negative = (
        {
            f"κ = {condition:g}, det {'>' if sign > 0 else '<'} 0, seed {seed}": random_target(
                settings["dim"], condition, sign, seed
            )
            for seed in range(settings["seeds"])
            for condition in settings["condition"]
            if sign in signs
        }
        for sign in (1, -1)
    )
    return positive, negative


def _read(path):
    import numpy as np

    from idmatters_tf.linear import scale_to_smallest_gamma

    try:
        R = np.load(path, allow_pickle=False) if path.endswith(".npy") else np.loadtxt(path, ndmin=2)
        scale_to_smallest_gamma(R)
    except FileNotFoundError as error:
        raise UsageError(f"--target {path} does not exist.") from error
    except ValueError as error:
        raise UsageError(f"--target {path}: {error}") from error
    return R


def _digest(targets):
    import hashlib

    return hashlib.sha256(b"".join(R.tobytes() for group in targets for R in group.values())).hexdigest()


def _experiments(settings, targets):
    """The rows of each experiment that has targets, by name."""
    from trainers.landscape import experiments

    positive, negative = targets
    depths, steps = settings["depths"], settings["steps"]
    every = max(1, steps // 50)
    middle = sorted(depths)[len(depths) // 2]
    # A panel for each of the first few: both signs should be among them.
    pairs = itertools.zip_longest(positive.items(), negative.items())
    both = dict(item for pair in pairs for item in pair if item)
    plans = {
        "factorization": (positive, experiments.factorization(positive, depths), len(depths)),
        "descent": (
            both,
            experiments.descent(both, depths, steps, every),
            3 * len(depths),
        ),
        "augmentation": (negative, experiments.augmentation(negative, middle, 4, 6 * steps, 6 * every), 2),
        "regularization": (positive, experiments.regularization(positive, middle, DECAYS, 8 * steps), 1),
    }
    tables = {}
    for name, (chosen, work, pieces) in plans.items():
        if not chosen:
            print(f"{name}: no targets with such a determinant, left out", file=sys.stderr)
            continue
        with Progress(len(chosen) * pieces, name, unit="networks") as progress:
            tables[name] = finish(work, progress)
    return tables


def _write(folder, tables):
    """CSV, figure and TensorBoard scalars of every table."""
    from trainers.landscape.figures import draw

    for name, rows in tables.items():
        write_csv(folder / f"{name}.csv", rows)
        print(f"{name + ':':16}{folder / name}.csv, {draw(name, rows, folder)}")
        if name == "descent":
            print(f"{'certificate:':16}{draw('certificate', rows, folder)}")
    _write_events(folder / "events", tables)


def _write_events(folder, tables):
    """A TensorBoard run for each curve: its scalars against step, or against depth where there are no steps."""
    from trainers.run.events import Events

    curves = {}
    for name, rows in tables.items():
        x = "step" if "step" in rows[0] else "depth"
        for row in rows:
            labels = [str(value) for value in row.values() if isinstance(value, str)]
            numbers = [f"{key} {row[key]}" for key in ("depth", "start", "weight_decay") if key in row and key != x]
            scalars = {
                f"{name}/{column}": value
                for column, value in row.items()
                if isinstance(value, float) and column != "weight_decay"
            }
            curves.setdefault("-".join([name, *labels, *numbers]), []).append((row[x], scalars))
    for curve, points in curves.items():
        safe = "".join(letter if letter.isalnum() or letter in ".-" else "_" for letter in curve)
        writer = Events(folder / safe)
        for step, scalars in points:
            writer.scalars(step, scalars)


if __name__ == "__main__":
    run_program(main)
