"""SIGKILL and other signals at random moments: the resumed run ends with the same bits as an uninterrupted run."""

import pathlib
import random
import signal
import time

from tests.faults.bench import TRAINING, Bench, wait_for, wait_for_a_moment
from tests.faults.tally import Tally
from tests.support.forge import Process
from tests.support.processes import reached

KILLS_A_RUN, SIGNALS_A_RUN = 10, 10
# Mean number of steps between interruptions, so that they cover a whole run.
STRIDE = 10
# Share of new interpreters among the processes. They spend most of their time on imports.
COLD = 0.1
KILL = "SIGKILL at a random moment, then the same command"


def kills(bench: Bench, chance: random.Random, most: int) -> Tally:
    """Kill a run repeatedly."""
    tally, run, killed = Tally(), bench.place("killed"), 0
    while killed < min(most, KILLS_A_RUN):
        process = _start(bench, run, chance)
        process.send(signal.SIGKILL)
        code = process.wait()
        if code == 0:
            break
        killed += 1
        if code != -signal.SIGKILL:
            tally.count(KILL, killed, 0, f"exit code {code}: {process.said()}")
            return tally
    failure = _finish(bench, run, ("train", "test"))
    tally.count(KILL, killed, 0 if failure else killed, failure)
    return tally


def signals(bench: Bench, chance: random.Random, most: int) -> Tally:
    """Send signals to a run repeatedly."""
    tally, run, survived = Tally(), bench.place("signalled"), dict[str, int]()
    tried = 0
    while tried < min(most, SIGNALS_A_RUN):
        process = _start(bench, run, chance)
        if process.poll() is not None:
            break
        tried += 1
        number = chance.choice(list(_EXPECTED))
        name = f"{number.name}{' and SIGCONT' * (number == signal.SIGSTOP)} at a random moment, then the same command"
        wrong = _send(process, run, number, chance)
        if wrong:
            tally.count(name, 1, 0, wrong)
        else:
            survived[name] = survived.get(name, 0) + 1
    failure = _finish(bench, run, ("test",))
    for name, count in survived.items():
        tally.count(name, count, 0 if failure else count, failure)
    return tally


def _start(bench, run, chance) -> Process:
    cold = chance.random() < COLD
    seconds = bench.forge.seconds if cold else bench.whole.seconds
    process = bench.start(*TRAINING, "--out", run, cold=cold)
    wait_for_a_moment(process, run, chance, seconds, STRIDE)
    return process


def _finish(bench: Bench, run: pathlib.Path, kinds: tuple[str, ...]) -> str:
    """Let a run finish. Return a description of the failure, or an empty string."""
    process = bench.start(*TRAINING, "--out", run)
    try:
        assert process.wait() == 0, process.said()
        assert "Traceback" not in process.said(), process.said()
        assert "is damaged" not in process.said(), process.said()
        bench.whole.check_same(run, kinds)
    except (AssertionError, OSError, TimeoutError) as error:
        return str(error)
    return ""


def _send(process: Process, run: pathlib.Path, number: signal.Signals, chance: random.Random) -> str:
    """Send a signal, once or twice. Return a description of the failure, or an empty string."""
    before = reached(run)
    process.send(number)
    if number == signal.SIGSTOP:
        time.sleep(2 * chance.random())
        process.send(signal.SIGCONT)
        # The process has to continue by itself before the next one replaces it.
        wait_for(process, lambda: reached(run) > before)
        process.send(signal.SIGKILL)
    elif chance.random() < 0.2:
        time.sleep(0.1 * chance.random())
        process.send(number)
    code = process.wait()
    said = process.said()
    allowed, sentences = _EXPECTED[number]
    if code not in (0, *allowed):
        return f"exit code {code}: {said}"
    if code > 0 and not any(sentence in said for sentence in sentences):
        return f"exit code {code} without a message: {said}"
    # In its first moments Python itself prints a traceback on Ctrl-C.
    if "Traceback" in said and "trainers" in said.partition("Traceback")[2]:
        return said
    return ""


# Exit codes of an unfinished run, and the messages that come with codes other than the default effect of the signal.
_EXPECTED = {
    signal.SIGTERM: ((143, -signal.SIGTERM), ("stopped by SIGTERM; saved",)),
    signal.SIGINT: ((130, -signal.SIGINT), ("stopped by SIGINT; saved", "stopped by Ctrl-C; ")),
    signal.SIGHUP: ((-signal.SIGHUP,), ()),
    signal.SIGUSR1: ((-signal.SIGUSR1,), ()),
    signal.SIGSTOP: ((-signal.SIGKILL,), ()),
}
