"""Kinds of faults, and the number of trials of each."""

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
        trial: function that makes one trial, given a bench, a random generator and the maximum number of faults.
        share: number of faults per requested fault.
        short: number of faults in `make test`.
    """

    trial: Callable[[Bench, random.Random, int], Tally]
    share: float
    short: int


# FAULTS=50 gives the numbers in docs/reference/results/reliability.md.
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
    # Kills for each source and number of devices: 20 with FAULTS=50, and 2 in `make test`.
    "fit-tensorflow": Kind(fits.on_tensorflow, 2 * fits.CASES / 5, 2 * fits.CASES),
    "fit-jax": Kind(fits.on_jax, 2 * fits.CASES / 5, 2 * fits.CASES),
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
    """Make trials of a kind until `wanted` faults have been tried. Trials in the journal are not repeated.

    Args:
        name: name of the kind.
        bench: the bench for the trials.
        seed: seed of the random choices. Each trial depends on the seed, the kind and its number only.
        wanted: number of faults.
        journal: the journal that records each trial.
        report: called with a line of text after each trial.
    """
    total, number = Tally(), 0
    # A run may finish before all of its faults have been tried.
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
    """Return the number of faults of a kind for a requested number of faults."""
    return math.ceil(KINDS[name].share * faults)
