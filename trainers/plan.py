"""Compute the time, bottleneck and memory of training on ImageNet for given machines."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from idmatters_tf.models.cost import Cost, identity_network_cost
from idmatters_tf.models.layout import IMAGENET, imagenet_layout
from trainers.cli.arguments import Parser, UsageError
from trainers.cli.settings import add_options, group, parse, setting, with_defaults
from trainers.cli.startup import run_program

BYTES = {"float32": 4, "bfloat16": 2}
# One forward pass; backward passes for the inputs and the weights.
PASSES = 3
TRAINING_IMAGES = 1_281_167
# Bounds of rates, so that their quotients do not overflow.
_RATE: dict[str, Any] = {"at_least": 1e-6, "at_most": 1e9}

EXAMPLES = """
examples:
  python -m trainers.plan                                                    the paper's 6 machines of 8 K40, 1 Gbit/s
  python -m trainers.plan --machines 1 --devices 8 --tflops 312 --utilization 0.3 --precision bfloat16 --cores 96

The results are computed, not measured. --tflops is the peak rate of the device in the precision of training,
--utilization the fraction of it that convolutions reach. benchmarks/imagenet_input.py measures --decode-rate.

exit codes: 0 done; 2 bad input; 130 stopped by Ctrl-C
"""


@dataclasses.dataclass(frozen=True)
class Machines:
    """Settings of the machines."""

    machines: int = setting(6, help="number of machines", at_least=1, at_most=1_000_000)
    devices: int = setting(8, help="devices per machine", at_least=1, at_most=1024)
    strategy: Literal["multi-worker", "parameter-server"] = setting(
        "parameter-server", help="strategy, as in trainers.imagenet"
    )
    servers: int = setting(1, help="number of parameter servers", at_least=1, at_most=1_000_000)
    tflops: float = setting(4.29, help="peak rate of a device, in 10^12 operations per second", **_RATE)
    utilization: float = setting(
        0.4, help="fraction of the peak rate that is reached", at_least=_RATE["at_least"], at_most=1
    )
    network_gbit: float = setting(1.0, help="network connection of each machine, in Gbit/s", **_RATE)
    device_gbit: float = setting(64.0, help="connection between the devices of a machine, in Gbit/s", **_RATE)
    cores: int = setting(32, help="CPU cores per machine, for decoding", at_least=1, at_most=1_000_000)
    decode_rate: float = setting(200.0, help="images decoded per second and core", **_RATE)


@dataclasses.dataclass(frozen=True)
class Training:
    """Settings of the training."""

    batch_size: int = setting(256, help="batch size of each machine", at_least=1)
    steps: int = setting(700_000, help="number of updates", at_least=1)
    precision: Literal["float32", "bfloat16"] = setting("float32", help="precision of the convolutions")
    size: int = setting(224, help="rows and columns of the images", at_least=16, at_most=4096)
    blocks: tuple[int, ...] = setting(IMAGENET.blocks, help="residual blocks of each stage", at_least=1, at_most=10_000)
    widths: tuple[int, ...] = setting(
        IMAGENET.widths, help="channels of each stage", metavar="C", at_least=1, at_most=100_000
    )
    stem: int = setting(
        IMAGENET.stem, help="channels of the first convolution", metavar="C", at_least=1, at_most=100_000
    )


@dataclasses.dataclass(frozen=True)
class Settings:
    """All settings of the program."""

    machines: Machines = group(Machines, "machines")
    training: Training = group(Training, "training")
    debug: bool = setting(False, help="show tracebacks")

    def __post_init__(self) -> None:
        blocks, widths = self.training.blocks, self.training.widths
        if len(blocks) != len(widths):
            raise UsageError(
                f"--blocks and --widths must have the same number of values. Received: --blocks "
                f"{' '.join(map(str, blocks))} --widths {' '.join(map(str, widths))}"
            )
        if self.training.batch_size % self.machines.devices:
            raise UsageError(
                f"--batch-size must be a multiple of the {self.machines.devices} devices. Received: "
                f"{self.training.batch_size}"
            )


@dataclasses.dataclass(frozen=True)
class Plan:
    """Computed times of a training, in seconds per step of one batch on every machine unless stated otherwise.

    Attributes:
        compute: time of computing.
        communicate: time of exchanging gradients.
        decode: time of decoding images.
        step: time of a step: images are decoded in parallel with computing and the subsequent exchange of gradients.
        images_per_second: rate of all machines together.
        updates: time of all updates, in seconds.
        epochs: number of epochs of all updates.
        memory: memory on each device, in bytes.
        bottleneck: name of the longest of computing, exchanging gradients and decoding images.
    """

    compute: float
    communicate: float
    decode: float
    step: float
    images_per_second: float
    updates: float
    epochs: float
    memory: float
    bottleneck: str


def plan(cost: Cost, settings: Settings) -> Plan:
    """Compute the times of a training.

    Multi-worker: a ring all-reduce sends 2 (n-1)/n of the gradients, first among the devices of a machine, then among
    the machines. Parameter servers: every machine reads all weights and sends all gradients for each of its updates,
    and the machines share the connections of the servers.

    Args:
        cost: cost of the network.
        settings: settings of machines and training.
    """
    given, training = settings.machines, settings.training
    per_device = training.batch_size / given.devices
    rate = given.tflops * 1e12 * given.utilization
    compute = PASSES * 2 * cost.multiply_adds * per_device / rate
    gradients = 4 * cost.parameters
    network, inside = given.network_gbit * 1e9 / 8, given.device_gbit * 1e9 / 8
    communicate = 2 * (given.devices - 1) / given.devices * gradients / inside
    if given.strategy == "parameter-server":
        own = 2 * gradients / network
        at_servers = given.machines * 2 * gradients / (given.servers * network)
        communicate += max(own, at_servers)
    else:
        communicate += 2 * (given.machines - 1) / given.machines * gradients / network
    decode = training.batch_size / (given.cores * given.decode_rate)
    step = max(compute + communicate, decode)
    # In the time of one step, asynchronous machines make one update each, synchronous machines one together.
    at_once = given.machines if given.strategy == "parameter-server" else 1
    per_update = training.batch_size * (given.machines // at_once)
    parts = {"computing": compute, "exchanging gradients": communicate, "decoding images": decode}
    return Plan(
        compute=compute,
        communicate=communicate,
        decode=decode,
        step=step,
        images_per_second=given.machines * training.batch_size / step,
        updates=training.steps * step / at_once,
        epochs=training.steps * per_update / TRAINING_IMAGES,
        # Weights, gradients and velocities in float32; two batches of images are queued besides the current one.
        memory=3 * gradients
        + per_device * (cost.kept_values * BYTES[training.precision] + 3 * 4 * 3 * training.size**2),
        bottleneck=max(parts, key=lambda name: parts[name]),
    )


def parser() -> Parser:
    """Return the command line of this program."""
    parser = Parser(prog="python -m trainers.plan", description=__doc__, epilog=EXAMPLES)
    add_options(parser, Settings)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    settings = with_defaults(Settings, parse(parser(), argv))
    given, training = settings.machines, settings.training
    layout = imagenet_layout(training.blocks, training.widths, training.stem)
    cost = identity_network_cost(layout, training.size)
    made = plan(cost, settings)
    rows = (
        ("network", f"{cost.parameters:,} parameters, {cost.multiply_adds / 1e9:.2f} x 10^9 multiply-adds per image"),
        ("computing", f"{made.compute:.3f} s per step of {training.batch_size} images on each machine"),
        ("exchanging gradients", f"{made.communicate:.3f} s ({4 * cost.parameters / 1e6:.0f} MB of gradients)"),
        ("decoding images", f"{made.decode:.3f} s, in parallel with the rest"),
        ("one step", f"{made.step:.3f} s"),
        ("bottleneck", made.bottleneck),
        ("images/s", f"{made.images_per_second:,.0f} on {given.machines} machines"),
        ("memory", f"{made.memory / 2**30:.1f} GiB on each device, without the workspace of the convolutions"),
        (
            f"{training.steps:,} updates",
            f"{made.updates / 86400:.1f} days, {made.epochs:.0f} epochs ({given.strategy})",
        ),
    )
    for name, value in rows:
        print(f"{name:>21}  {value}")
    return 0


if __name__ == "__main__":
    run_program(main)
