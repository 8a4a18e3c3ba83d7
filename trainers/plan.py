"""How long a training on ImageNet takes on which machines, and what holds it up: computed, not measured."""

import dataclasses

from models.cost import identity_network_cost
from models.layout import imagenet_layout
from trainers.cli.arguments import Parser, UsageError, number, whole_number
from trainers.cli.startup import run_program

BYTES = {"float32": 4, "bfloat16": 2}
# Forwards once, backwards for the inputs and for the weights.
PASSES = 3
IMAGENET = 1_281_167

EXAMPLES = """
examples:
  python -m trainers.plan                                                    the paper's 6 machines of 8 K40, 1 Gbit/s
  python -m trainers.plan --machines 1 --devices 8 --tflops 312 --utilisation 0.3 --precision bfloat16 --cores 96

The device rate is its peak in the precision of training; --utilisation is the share of it that convolutions reach.
--decode-rate: benchmarks/imagenet_input.py measures it for your cores.
"""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a training takes, in seconds per step (of every machine's batch) unless said otherwise.

    Attributes:
        compute, communicate, input: of the three parts.
        step: all together: decoding runs beside the rest, the exchange of gradients after it.
        images_per_second: of all machines.
        updates: of all `steps`, in seconds.
        epochs: that they make.
        memory: bytes on each device.
        bottleneck: the largest of the three parts, in words.
    """

    compute: float
    communicate: float
    input: float
    step: float
    images_per_second: float
    updates: float
    epochs: float
    memory: float
    bottleneck: str


def plan(cost, settings):
    """Computes a `Plan`.

    Multi-worker: a ring all-reduce sends 2 (n-1)/n of the gradients, first among the devices of a machine, then among
    the machines. Parameter servers: every machine reads all weights and sends all gradients, for each of its updates;
    the servers' connections are shared by all machines.

    Args:
        cost: a `models.cost.Cost`.
        settings: a dict by option name, see `parser`.
    """
    machines, devices = settings["machines"], settings["devices"]
    per_device = settings["batch_size"] / devices
    rate = settings["tflops"] * 1e12 * settings["utilisation"]
    compute = PASSES * 2 * cost.multiply_adds * per_device / rate
    gradients = 4 * cost.parameters
    network, inside = (settings[name] * 1e9 / 8 for name in ("network_gbit", "device_gbit"))
    communicate = 2 * (devices - 1) / devices * gradients / inside
    if settings["strategy"] == "parameter-server":
        own = 2 * gradients / network
        at_servers = machines * 2 * gradients / (settings["servers"] * network)
        communicate += max(own, at_servers)
    else:
        communicate += 2 * (machines - 1) / machines * gradients / network
    reading = settings["batch_size"] / (settings["cores"] * settings["decode_rate"])
    step = max(compute + communicate, reading)
    images = machines * settings["batch_size"] / step
    # Asynchronous machines make `machines` updates in the time of one step; synchronous ones make one together.
    at_once = machines if settings["strategy"] == "parameter-server" else 1
    per_update = settings["batch_size"] * (machines // at_once)
    parts = {"computing": compute, "exchanging gradients": communicate, "decoding pictures": reading}
    return Plan(
        compute=compute,
        communicate=communicate,
        input=reading,
        step=step,
        images_per_second=images,
        updates=settings["steps"] * step / at_once,
        epochs=settings["steps"] * per_update / IMAGENET,
        # Weights, gradients and velocities in float32; two batches of pictures wait in front of the one at work.
        memory=3 * gradients
        + per_device * (cost.kept_values * BYTES[settings["precision"]] + 3 * 4 * 3 * settings["size"] ** 2),
        bottleneck=max(parts, key=parts.get),
    )


def parser():
    """The command line of this program."""
    parser = Parser(prog="python -m trainers.plan", description=__doc__, epilog=EXAMPLES)
    machines = parser.add_argument_group("machines")
    machines.add_argument("--machines", type=whole_number(1), default=6, metavar="N", help="that train")
    machines.add_argument("--devices", type=whole_number(1), default=8, metavar="N", help="of each machine")
    machines.add_argument(
        "--strategy",
        choices=("multi-worker", "parameter-server"),
        default="parameter-server",
        help="see trainers.imagenet",
    )
    machines.add_argument("--servers", type=whole_number(1), default=1, metavar="N", help="parameter servers")
    machines.add_argument(
        "--tflops",
        type=number(0, False),
        default=4.29,
        metavar="X",
        help="peak of a device, 10^12 operations/s (K40: 4.29)",
    )
    machines.add_argument(
        "--utilisation", type=number(0, False, 1), default=0.4, metavar="X", help="share of the peak that is reached"
    )
    machines.add_argument(
        "--network-gbit", type=number(0, False), default=1.0, metavar="X", help="of each machine's connection, Gbit/s"
    )
    machines.add_argument(
        "--device-gbit", type=number(0, False), default=64.0, metavar="X", help="between a machine's devices, Gbit/s"
    )
    machines.add_argument(
        "--cores", type=whole_number(1), default=32, metavar="N", help="of each machine, for decoding"
    )
    machines.add_argument(
        "--decode-rate", type=number(0, False), default=200.0, metavar="X", help="pictures per second and core"
    )
    training = parser.add_argument_group("training")
    training.add_argument("--batch-size", type=whole_number(1), default=256, metavar="N", help="of each machine")
    training.add_argument("--steps", type=whole_number(1), default=700_000, metavar="N", help="updates in all")
    training.add_argument("--precision", choices=tuple(BYTES), default="float32", help="of the convolutions")
    training.add_argument("--size", type=whole_number(16), default=224, metavar="N", help="rows and columns")
    training.add_argument(
        "--blocks", type=whole_number(1), nargs="+", default=[3, 4, 6, 3], metavar="N", help="of each stage"
    )
    training.add_argument(
        "--widths", type=whole_number(1), nargs="+", default=[80, 168, 328, 672], metavar="C", help="of the stages"
    )
    training.add_argument("--stem", type=whole_number(1), default=64, metavar="C", help="channels of the first layer")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    return parser


def main(argv=None):
    """Runs the program; returns its exit code."""
    settings = vars(parser().parse_args(argv))
    if len(settings["blocks"]) != len(settings["widths"]):
        raise UsageError("--blocks and --widths must name as many stages.")
    if settings["batch_size"] % settings["devices"]:
        raise UsageError(
            f"--batch-size must be a multiple of the {settings['devices']} devices. Received: {settings['batch_size']}"
        )
    layout = imagenet_layout(settings["blocks"], settings["widths"], settings["stem"])
    cost = identity_network_cost(layout, settings["size"])
    made = plan(cost, settings)
    rows = (
        ("network", f"{cost.parameters:,} parameters, {cost.multiply_adds / 1e9:.2f} x 10^9 multiply-adds a picture"),
        ("computing", f"{made.compute:.3f} s a step of {settings['batch_size']} pictures on each machine"),
        ("exchanging gradients", f"{made.communicate:.3f} s ({4 * cost.parameters / 1e6:.0f} MB of gradients)"),
        ("decoding pictures", f"{made.input:.3f} s, beside the rest"),
        ("one step", f"{made.step:.3f} s"),
        ("bottleneck", made.bottleneck),
        ("images/s", f"{made.images_per_second:,.0f} on {settings['machines']} machines"),
        ("memory", f"{made.memory / 2**30:.1f} GiB on each device, besides the convolutions' working space"),
        (
            f"{settings['steps']:,} updates",
            f"{made.updates / 86400:.1f} days, {made.epochs:.0f} epochs ({settings['strategy']})",
        ),
    )
    for name, value in rows:
        print(f"{name:>21}  {value}")
    return 0


if __name__ == "__main__":
    run_program(main)
