"""Which kinds of faults there are, and how many of each are tried."""

import dataclasses
import math
import random
from collections.abc import Callable

from tests.faults import command_lines, damage, fits, foreign, interruptions, outputs, peers, soak, workers
from tests.faults.bench import Bench
from tests.faults.tally import Journal, Tally


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of faults.

    Attributes:
        trial: makes one trial of at most so many faults; what it does is drawn from the randomness it is given.
        share: how many faults are tried for each one that is asked for.
        short: how many `make test` tries.
    """

    trial: Callable[[Bench, random.Random, int], Tally]
    share: float
    short: int


# With 50: what docs/explanation/reliability.md promises to hold.
KINDS = {
    "words": Kind(command_lines.wrong_words, 40, 100),
    "together": Kind(command_lines.together, 40, 100),
    "foreign": Kind(foreign.foreign, 40, 100),
    "peers": Kind(peers.peers, 10, 25),
    "absent": Kind(workers.absent, 0.2, 1),
    "settings": Kind(workers.other_settings, 0.4, 1),
    "kills": Kind(interruptions.kills, 2, 0),
    "signals": Kind(interruptions.signals, 1, 3),
    "in-the-way": Kind(outputs.in_the_way, 4, 25),
    "beside": Kind(outputs.beside, 1, 4),
    "damage": Kind(damage.damage, 1, 1),
    "workers": Kind(workers.kills, 0.4, 0),
    "hangs": Kind(workers.hangs, 0.12, 0),
    "launcher": Kind(workers.launcher, 0.1, 0),
    # 20 kills for each source and number of devices. `make test`: 2 for each source on one device, and 4 on two.
    "fit-tensorflow": Kind(fits.on_tensorflow, 2 * fits.CASES / 5, fits.CASES + 4),
    "fit-jax": Kind(fits.on_jax, 2 * fits.CASES / 5, fits.CASES + 4),
    "soak": Kind(soak.soak, 60, 0),
}


def attempt(
    name: str,
    bench: Bench,
    seed: str,
    wanted: int,
    journal: Journal,
    report: Callable[[str], object] = lambda text: None,
) -> Tally:
    """Makes trials of a kind until so many faults have been tried; those in the journal are not made again.

    Args:
        name: of the kind.
        bench: where they are made.
        seed: from which they are drawn, each trial by itself.
        wanted: how many faults.
        journal: takes what came of each trial.
        report: called with a line for people after each one.
    """
    total, number = Tally(), 0
    # A run may come to its end before it has met the faults that were meant for it.
    while total.tried < wanted and number < 10 * wanted:
        tally = journal.find(name, number)
        if tally is None:
            before = bench.cpu_seconds()
            tally = KINDS[name].trial(bench, random.Random(f"{seed} {name} {number}"), wanted - total.tried)
            tally.cpu_seconds = round(bench.cpu_seconds() - before, 2)
            journal.add(name, number, tally)
            for failure in tally.failures:
                report(f"{name}: FAILED: {failure}")
        total.add(tally)
        number += 1
        report(f"{name}: {total.tried} of {wanted} tried, {total.survived} survived, {total.cpu_seconds:.0f} s of CPU")
    return total


def wanted(name: str, faults: int) -> int:
    """How many faults of a kind are tried when so many are asked for."""
    return math.ceil(KINDS[name].share * faults)
