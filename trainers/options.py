"""Options that every training program has: its devices, and its run."""

from trainers.arguments import whole_number


def add_devices(parser):
    """Adds the options about devices to a `trainers.arguments.Parser`."""
    group = parser.add_argument_group("devices")
    group.add_argument(
        "--strategy", choices=("auto", "one", "mirrored"), default="auto", help="auto: all GPUs of this machine"
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


def add_run(parser):
    """Adds the options about the run's folder, its records and its checkpoints."""
    group = parser.add_argument_group("run")
    group.add_argument(
        "--out", metavar="DIR", help="the run's folder (default: runs/DATASET, runs/quick for the preset)"
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
