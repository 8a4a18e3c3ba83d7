"""Options that every training program has: its recipe, its devices, and its run."""

from trainers.cli.arguments import UsageError, number, whole_number

STRATEGIES = ("auto", "one", "mirrored", "multi-worker", "parameter-server")

# What runs were started with before these options existed.
LATER_DEFAULTS = {
    "control_port": None,
    "parameter_servers": 0,
    "cluster_timeout": 600.0,
    "nesterov": False,
    "branch_scale": None,
}


def add_optimizer(group):
    """Adds the options of momentum, decay, clipping, precision and the seed to the recipe's group."""
    group.add_argument(
        "--momentum", type=number(0, high=1, high_included=False), default=0.9, metavar="X", help="momentum"
    )
    group.add_argument(
        "--momentum-convention",
        choices=("tensorflow1", "keras"),
        default="tensorflow1",
        help="the rate after the velocity (w -= lr v, the paper's optimizer) or inside it (Keras' SGD); they differ "
        "only after a drop of the rate",
    )
    group.add_argument("--nesterov", action="store_true", help="Nesterov's form of momentum")
    group.add_argument(
        "--weight-decay",
        type=number(0),
        default=1e-4,
        metavar="X",
        help="X * sum(w^2) / 2 over the kernels, as in the paper's code",
    )
    group.add_argument("--clip-norm", type=number(0, False), metavar="X", help="bound on the gradient's global norm")
    group.add_argument(
        "--precision",
        choices=("float32", "bfloat16"),
        default="float32",
        help="of the convolutions; weights stay float32",
    )
    group.add_argument("--seed", type=whole_number(0, 2**31 - 1), default=0, metavar="N", help="of everything random")


def add_ablations(group):
    """Adds what the paper varies about its networks to the network's group."""
    group.add_argument("--bias", action="store_true", help="biases in the residual convolutions and the first one")
    group.add_argument(
        "--shortcut",
        choices=("pad", "projection", "none"),
        default="pad",
        help="pooled and zero-padded, 1x1 convolutions, or none (the standard parameterisation)",
    )
    group.add_argument("--head", choices=("random", "trained"), default="random", help="frozen random or trained")
    group.add_argument("--norm", choices=("none", "batch"), default="none", help="normalisation after convolutions")
    group.add_argument(
        "--initializer",
        choices=("identity", "standard", "fixup"),
        default="identity",
        help="of residual convolutions: N(0, 1/(k^2 c)^2), N(0, 1/(k sqrt c)^2), or Zhang et al.'s (2019)",
    )
    group.add_argument(
        "--branch-scale",
        type=number(0),
        metavar="X",
        help="a trained factor on each branch, started at X; 0 with --initializer standard is SkipInit and ReZero",
    )


def check_widths(settings):
    """Raises UsageError for widths that the shortcut cannot follow."""
    channels = [settings["stem"], *settings["widths"]]
    if settings["shortcut"] == "pad" and channels != sorted(channels):
        raise UsageError(
            f"--stem and --widths must not decrease with --shortcut pad, which cannot drop channels. Received: "
            f"--stem {channels[0]} --widths {' '.join(map(str, channels[1:]))}. Use --shortcut projection."
        )


def make_optimizer(settings):
    """What `add_optimizer`'s options describe, as `trainers.training.loop.Recipe` takes it: a function of the rate."""
    import keras

    from idmatters_tf.optimizers import Momentum

    optimizer = Momentum if settings["momentum_convention"] == "tensorflow1" else keras.optimizers.SGD
    return lambda rate: optimizer(rate, momentum=settings["momentum"], nesterov=settings["nesterov"])


def add_devices(parser):
    """Adds the options about devices and machines to a `trainers.cli.arguments.Parser`."""
    group = parser.add_argument_group("devices and machines")
    group.add_argument(
        "--strategy",
        choices=STRATEGIES,
        default="auto",
        help="auto: the cluster that TF_CONFIG or Slurm describes, else all GPUs of this machine",
    )
    group.add_argument(
        "--logical-cpus", type=whole_number(1, 64), default=1, metavar="N", help="split the CPU, to try replicas out"
    )
    group.add_argument(
        "--no-deterministic",
        dest="deterministic",
        action="store_false",
        help="let GPUs use faster operations whose results vary from run to run",
    )
    group.add_argument(
        "--cluster-timeout", type=number(0, False), default=600.0, metavar="S", help="seconds to wait for absent tasks"
    )
    group.add_argument(
        "--control-port",
        type=whole_number(1, 65535),
        metavar="N",
        help="of the chief's machine, where the tasks meet (default: the chief's own port + 1000)",
    )
    group.add_argument(
        "--parameter-servers",
        type=whole_number(0),
        default=0,
        metavar="N",
        help="how many tasks of a Slurm step are parameter servers",
    )


def resolve_strategy(settings, cluster):
    """The name of the strategy, `auto` resolved where a cluster decides.

    Args:
        settings: with `strategy`.
        cluster: a `trainers.cluster.description.Cluster` or None.

    Raises:
        UsageError: the strategy and the cluster do not fit each other.
    """
    name = settings["strategy"]
    of_cluster = None if cluster is None else "parameter-server" if cluster.asynchronous else "multi-worker"
    if name == "auto":
        return of_cluster or "auto"
    if name in ("multi-worker", "parameter-server") and of_cluster is None:
        raise UsageError(
            f"--strategy {name} needs a cluster, but neither TF_CONFIG nor Slurm describes one of several tasks. Try "
            f"it on this machine: python -m trainers.launch --workers 2 {'--ps 1 ' * (name != 'multi-worker')}-- ..."
        )
    if of_cluster not in (None, name):
        raise UsageError(
            f"--strategy {name} does not fit the cluster of {len(cluster.tasks)} tasks in {cluster.source}, which is "
            f"one for --strategy {of_cluster}. Leave --strategy out, or unset {cluster.source}."
        )
    return name


def add_run(parser):
    """Adds the options about the run's folder, its records and its checkpoints."""
    group = parser.add_argument_group("run")
    group.add_argument(
        "--out", metavar="DIR", help="the run's folder (default: in runs/, named after the data or preset)"
    )
    group.add_argument("--resume", action="store_true", help="go on with the run in --out, with its own settings")
    group.add_argument("--log-every", type=whole_number(1), default=20, metavar="N", help="steps between records")
    group.add_argument("--evaluate-every", type=whole_number(1), default=1000, metavar="N", help="steps between tests")
    group.add_argument(
        "--checkpoint-every", type=whole_number(1), default=500, metavar="N", help="steps between checkpoints"
    )
    group.add_argument("--keep-checkpoints", type=whole_number(1), default=3, metavar="N", help="how many stay on disk")
    group.add_argument("--evaluate", metavar="RUN", help="do not train: test the newest checkpoint of this run")
    group.add_argument("--export-only", metavar="RUN", help="do not train: export the newest checkpoint of this run")
    group.add_argument("--debug", action="store_true", help="show tracebacks and TensorFlow's own messages")
