"""The command lines of `trainers.shortcuts`."""

from trainers.cli.arguments import Parser, number, whole_number

COMMANDS = {
    "conditions": "Figure 5: condition numbers of the Hessian at the start, against depth",
    "trajectory": "Figures 6, 7, 8: the Hessian's spectrum, its index and the gradient along training",
    "sweep": "Figures 9, 10: final loss at the best learning rate, and that rate, against depth",
    "norms": "Figure 3: mean Frobenius norm against loss in training; Figure 2 with --runs of trainers.cifar",
    "theorem1": "the zero point by closed form and by automatic differentiation, and what it is",
}

ACTIVATIONS = ("linear", "tanh", "silu", "gelu", "relu")


def parser(command):
    """The command line of one of `COMMANDS`."""
    parser = Parser(prog=f"python -m trainers.shortcuts {command}", description=COMMANDS[command])
    data = parser.add_argument_group("data")
    data.add_argument("--dataset", choices=("mnist", "digits-like"), default="mnist", help="digits-like is built in")
    data.add_argument(
        "--data-dir",
        metavar="DIR",
        help="folder with MNIST's idx files or a prepared TensorFlow data set (default: $TFDS_DATA_DIR or "
        "~/tensorflow_datasets)",
    )
    data.add_argument("--no-download", dest="download", action="store_false", help="never download missing data")
    data.add_argument(
        "--components",
        type=whole_number(10, 100),
        default=10,
        metavar="N",
        help="principal components, d",
    )
    _ADD_OPTIONS[command](parser)
    run = parser.add_argument_group("run")
    run.add_argument("--seed", type=whole_number(0, 2**31 - 1), default=0, metavar="N", help="of the starting weights")
    run.add_argument("--out", metavar="DIR", help=f"folder of the results (default: runs/shortcuts-{command})")
    run.add_argument("--debug", action="store_true", help="show tracebacks")
    return parser


def _add_conditions(parser):
    networks = parser.add_argument_group("networks")
    _add_depths(networks, [1, 2, 3, 4, 6, 8, 12, 16, 24])
    _add_runs(networks, 10)


def _add_sweep(parser):
    networks = parser.add_argument_group("networks")
    _add_activation(networks)
    _add_depths(networks, [4, 8, 16, 32, 64, 96])
    _add_runs(networks, 5)
    _add_descent(networks)


def _add_norms(parser):
    networks = parser.add_argument_group("networks")
    _add_activation(networks)
    _add_depths(networks, [2, 4, 8, 16, 32])
    _add_runs(networks, 3)
    _add_descent(networks)
    networks.add_argument("--every", type=whole_number(1), default=10, metavar="N", help="epochs between records")
    networks.add_argument(
        "--runs",
        nargs="+",
        metavar="RUN",
        help="instead: Figure 2's measurement from these runs of trainers.cifar, of different depth",
    )


def _add_trajectory(parser):
    networks = parser.add_argument_group("networks")
    _add_activation(networks)
    networks.add_argument("--depth", type=whole_number(2, 200), default=16, metavar="N", help="layers, an even number")
    _add_runs(networks, 10)
    _add_descent(networks, samples=200)
    networks.add_argument(
        "--records",
        type=whole_number(2),
        default=12,
        metavar="N",
        help="moments of each run at which the spectrum is computed, spread evenly over the logarithm of the loss; "
        "three times as many for the first run",
    )
    networks.add_argument(
        "--every",
        type=whole_number(1),
        metavar="N",
        help="instead: every N epochs; 1 is every epoch (slow)",
    )


def _add_theorem1(parser):
    networks = parser.add_argument_group("network")
    networks.add_argument("--units", type=whole_number(1, 10_000), default=4, metavar="N", help="shortcut units R")
    networks.add_argument("--shortcut-depth", type=whole_number(1, 12), default=2, metavar="N", help="layers in each")
    for place, what in (("pre", "before the first"), ("mid", "between"), ("post", "after the last")):
        networks.add_argument(f"--{place}", choices=ACTIVATIONS, default="linear", help=f"activation {what} layers")
    networks.add_argument(
        "--relu-slope",
        type=number(0, high=1),
        metavar="X",
        help="ReLU's derivative at zero, which does not exist: a choice, 0.5 for a smooth approximation",
    )
    networks.add_argument("--samples", type=whole_number(10), default=2000, metavar="N", help="examples")


def _add_activation(group):
    group.add_argument(
        "--activation", choices=("linear", "relu", "both"), default="both", help="ReLUs in the mid positions, or none"
    )


def _add_depths(group, default):
    group.add_argument(
        "--depths", type=whole_number(1, 1000), nargs="+", default=default, metavar="N", help="numbers of layers"
    )


def _add_runs(group, default):
    group.add_argument("--starts", type=whole_number(1, 1000), default=default, metavar="N", help="runs of each kind")


def _add_descent(group, samples=500):
    group.add_argument("--epochs", type=whole_number(1), default=1000, metavar="N", help="full-batch updates")
    group.add_argument(
        "--rates", type=number(0, False), nargs="+", metavar="X", help="learning rates (default: 12 from 1e-3 to 1.78)"
    )
    group.add_argument(
        "--samples",
        type=whole_number(10),
        default=samples,
        metavar="N",
        help="examples for networks with ReLUs, for which second moments are not enough (linear ones use all)",
    )


_ADD_OPTIONS = {
    "conditions": _add_conditions,
    "trajectory": _add_trajectory,
    "sweep": _add_sweep,
    "norms": _add_norms,
    "theorem1": _add_theorem1,
}
