"""Reproduces the experiments of "Demystifying ResNet" (Li et al.) on whitened MNIST, and its Theorem 1."""

import os
import sys

from trainers.cli.arguments import UsageError
from trainers.cli.startup import import_tensorflow, run_program
from trainers.run.folder import Run
from trainers.run.progress import Progress
from trainers.run.tables import finish, write_csv
from trainers.shortcuts.options import COMMANDS, parser

HELP = f"""usage: python -m trainers.shortcuts COMMAND [options]

{__doc__}

commands:
{chr(10).join(f"  {name:12}{text}" for name, text in COMMANDS.items())}

Each writes a table (CSV) and a figure into --out, and a line that says whether the paper's claim was seen, with the
numbers. `python -m trainers.shortcuts COMMAND --help` lists the options.

examples:
  python -m trainers.shortcuts conditions --data-dir DATA         MNIST's idx files or a prepared TensorFlow data set
  python -m trainers.shortcuts trajectory --dataset digits-like   built-in data
  python -m trainers.shortcuts theorem1 --dataset digits-like --units 4 --shortcut-depth 2 --mid tanh
  python -m trainers.shortcuts norms --runs runs/cifar-small runs/cifar-deep

exit codes: 0 done; 1 failed while running; 2 bad input
"""


def main(argv=None):
    """Runs the program; returns its exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    if not argv or argv[0] in ("-h", "--help"):
        print(HELP)
        return 0 if argv else 2
    command = argv[0]
    if command not in COMMANDS:
        raise UsageError(f"{command!r} is none of the commands {', '.join(COMMANDS)} (see --help).")
    # Eigenvalues are taken of many matrices side by side, each on one core: that beats one after another on all cores,
    # by far where other programs use these too. Before NumPy is imported, or it comes too late.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    explicit, defaults = parser(command).parse(argv[1:])
    settings = {**defaults, **explicit}
    del settings["debug"]
    settings["command"] = command
    run = Run(settings.pop("out") or f"runs/shortcuts-{command}")
    if settings.get("runs"):
        return _training_norms(run, settings["runs"])
    _check_together(settings)
    run.check_usable()
    if run.exists():
        run.check_same(settings)
        if run.result() is not None:
            print(f"{run.path} is finished. {' '.join(run.result()['verdicts'])} Give another --out for a new run.")
            return 0
    problem = _load(settings)
    import_tensorflow()
    if command == "theorem1":
        return _theorem1(run, settings, problem)
    run.start(settings, {"origin": problem.origin, "digest": problem.digest()})
    return _experiment(run, settings, problem)


def _check_together(settings):
    command = settings["command"]
    if command == "trajectory" and settings["depth"] % 2:
        raise UsageError(f"--depth must be even, for units of two layers. Received: {settings['depth']}")
    if command == "norms" and any(depth % 2 for depth in settings["depths"]):
        raise UsageError(f"--depths must be even, for units of two layers. Received: {settings['depths']}")
    if settings.get("relu_slope") is not None and "relu" not in (settings["mid"], settings["post"]):
        raise UsageError("--relu-slope needs --mid relu or --post relu.")
    if command == "theorem1" and settings["shortcut_depth"] == 1 and settings["mid"] != "linear":
        raise UsageError("--mid needs a --shortcut-depth of at least 2: with one layer nothing is between layers.")


def _load(settings):
    from trainers.shortcuts import data as shortcuts_data

    if settings["dataset"] == "mnist":
        from idmatters_tf.data import mnist

        location = mnist.locate(settings["data_dir"])
        if location is not None and location.kind == "tfds":
            import_tensorflow()
    print(f"{settings['dataset']}: loading and whitening ...", file=sys.stderr)
    return shortcuts_data.load(settings["dataset"], settings["components"], settings["data_dir"], settings["download"])


def _experiment(run, settings, problem):
    """Runs an experiment for each activation; writes table, figure and verdicts."""
    from trainers.shortcuts import experiments
    from trainers.shortcuts.figures import draw

    command = settings["command"]
    activations = {"both": ("linear", "relu")}.get(settings.get("activation"), (settings.get("activation", "linear"),))
    rows, verdicts = [], []
    for activation in activations:
        work, pieces = _plan(settings, problem, activation)
        with Progress(pieces, f"{command}, {activation}", unit="pieces") as progress:
            found = finish(work, progress)
        seen, numbers = getattr(experiments, f"{command}_verdict")(found)
        verdicts.append(f"{ {True: 'SEEN', False: 'NOT SEEN', None: 'OPEN'}[seen] }: {numbers}.")
        rows += found
    write_csv(run.path / f"{command}.csv", rows)
    figures = [draw(name, rows, run.path) for name in ((command, "single") if command == "trajectory" else (command,))]
    run.finish({"verdicts": verdicts, "rows": len(rows)})
    print(f"{run.path / command}.csv, {', '.join(map(str, figures))}")
    for verdict in verdicts:
        print(verdict)
    return 0


def _plan(settings, problem, activation):
    """An experiment's generator, and how many pieces of work it has."""
    import numpy as np

    from trainers.shortcuts import experiments
    from trainers.shortcuts.networks import LINEAR_KINDS

    command, seed, starts = settings["command"], settings["seed"], settings["starts"]
    if command == "conditions":
        networks = [depth for kind in LINEAR_KINDS.values() for depth in settings["depths"] if not depth % kind.n]
        work = experiments.conditions(problem.statistics, settings["depths"], starts, seed)
        return work, len(networks) * starts
    rates = np.sort(settings["rates"]) if settings["rates"] else np.logspace(-3, 0.25, 12)
    epochs = settings["epochs"]
    if activation == "relu":
        problem = problem.first(settings["samples"])
    if command == "sweep":
        depths = settings["depths"]
        return experiments.sweep(problem, activation, depths, rates, starts, epochs, seed), len(depths)
    if command == "norms":
        arguments = (settings["depths"], rates, starts, epochs, settings["every"], seed)
        return experiments.norms(problem, activation, *arguments), 2 * len(settings["depths"])
    work = experiments.trajectory(
        problem,
        activation,
        settings["depth"],
        rates,
        starts,
        epochs,
        settings["records"],
        settings["every"],
        seed,
        _hessian_of(problem, settings["depth"], activation),
    )
    return work, 3 * starts


def _hessian_of(problem, depth, activation):
    """Makes for a kind of network a function from weights to the dense Hessian: closed form, by tape with ReLUs."""
    from idmatters_tf import linear
    from trainers.shortcuts.networks import LINEAR_KINDS, RELU_KINDS

    if activation == "linear":
        statistics = problem.statistics

        def make(kind):
            return lambda W: linear.shortcut_hessian(W, statistics.sxx, statistics.syx, LINEAR_KINDS[kind].shortcut)

        return make

    from idmatters_tf.curvature import HessianOperator
    from models.linear import assign_weights
    from trainers.shortcuts.theorem1 import half_squares, zero_network

    def make_by_tape(kind):
        network = RELU_KINDS[kind]
        units = depth // network.n
        model = zero_network(len(problem.X), units, network.n, None, "relu", None, network.shortcut)
        data = (problem.X.T, problem.Y.T)
        operator = HessianOperator(model, half_squares, data, batch_size=len(data[0]), check=False, progress=False)

        def hessian(W):
            assign_weights(model, W)
            # For these small networks faster than the operator's own choice, 0.5 against 0.8 s.
            return operator.to_dense(chunk=128)

        return hessian

    return make_by_tape


def _theorem1(run, settings, problem):
    from trainers.shortcuts.theorem1 import report

    names = ("units", "shortcut_depth", "pre", "mid", "post", "relu_slope", "seed")
    lines, numbers = report(problem.first(settings["samples"]), *(settings[name] for name in names))
    run.start(settings, {"origin": problem.origin, "digest": problem.digest()})
    print("\n".join(lines))
    run.finish({"verdicts": lines[2:], "numbers": numbers})
    return 0


def _training_norms(run, folders):
    """Figure 2 from the logs of trainers.cifar."""
    run.check_usable()
    curves, rows = {}, []
    for folder in folders:
        source = Run(folder)
        settings = source.config()["settings"]
        label = f"{settings['dataset']}, {2 * settings['blocks'] * len(settings['widths']) + 1} convolutions"
        points = _norms_against_loss(source.metrics())
        if not points:
            raise UsageError(
                f"{folder} has no record of norms yet: they are written at each evaluation (--evaluate-every) of a "
                f"network with residual blocks."
            )
        label = label if label not in curves else f"{label}, {folder}"
        curves[label] = [point["loss"] for point in points], [point["mean_frobenius"] for point in points]
        rows += [{"run": str(folder), "network": label, **point} for point in points]
    from trainers.shortcuts.figures import training_norms

    run.path.mkdir(parents=True, exist_ok=True)
    write_csv(run.path / "training-norms.csv", rows)
    print(f"{run.path}/training-norms.csv, {training_norms(curves, run.path / 'training-norms.png')}")
    for label, (losses, norms) in curves.items():
        print(f"{label}: mean Frobenius norm {norms[0]:.3f} to {norms[-1]:.3f}, training loss {losses[-1]:.3f} at last")
    return 0


def _norms_against_loss(records):
    """Step, training loss at the record before, and mean norm at each evaluation."""
    points, loss = [], None
    for record in records:
        if record["kind"] == "train":
            loss = record["loss"]
        elif record.get("norms") and loss is not None:
            norm = record["norms"]["mean_frobenius"]
            points.append({"step": record["step"], "loss": loss, "mean_frobenius": norm})
    return points


if __name__ == "__main__":
    run_program(main)
