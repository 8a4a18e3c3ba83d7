"""Invalid command lines, generated from the types of the settings: exit code 2 and one line of output."""

import contextlib
import importlib
import io
import os
import random

from tests.faults.bench import Bench
from tests.faults.tally import Tally
from tests.support.programs import run_in_process
from trainers import plan
from trainers.cifar import Cifar
from trainers.cli.arguments import UsageError
from trainers.cli.settings import Option, options, parse
from trainers.imagenet import ImageNet
from trainers.training.program import make_parser, settings_to_train, split
from trainers.training.settings import Settings

LINES_A_TRIAL = 50
WRONG_WORD = "invalid value of an option, all programs"
TOGETHER = "random options of `{}`"
PLAN = "trainers.plan"
TASKS = {"trainers.cifar": Cifar, "trainers.imagenet": ImageNet}
OTHERS = ("launch", "plan", "sweep", "report", "card.__main__", "reproduce.__main__", "landscape.__main__")
OTHERS += ("expressivity.__main__",)
ODD = ["", "x", "--", "-1e400", "1e400", "nan", "inf", "-inf", "0x10", "1,2,", "9" * 5000, "1e", "None", "☃", "a b"]
ODD += [os.fsdecode(b"\xff\xfe"), "$HOME", "../..", "True", "[]", "{}", "'", '"', "%s", "\n", "\x1b[2J", "-", "٣"]


def _programs():
    """Yield the main function of each program, the words that select a command, and the options."""
    for name, task in TASKS.items():
        known = [*options(Settings).values(), *options(task.command_type).values()]
        yield importlib.import_module(name).main, [], known
    for name in OTHERS:
        module = importlib.import_module(f"trainers.{name}")
        yield module.main, [], list(options(module.Settings).values())
    module = importlib.import_module("trainers.shortcuts.__main__")
    for command, settings in module.COMMANDS.items():
        yield module.main, [command], list(options(settings).values())


def _bad_word(option: Option, chance: random.Random) -> str | None:
    """Return an invalid value of an option, or None if every value is valid."""
    if option.choices:
        return chance.choice(["nonsense", *ODD])
    if option.kind is str:
        return chance.choice(["", os.fsdecode(b"\xff")])
    if option.kind is bool:
        return None
    words = ["", "x", "nan", "inf", "1e400", "--", "None", "☃", "1,2,x", "[]"]
    if option.kind is int:
        words += ["1.5", "9" * 5000]
    words += [str(bound - 1) for bound in (option.at_least, option.above) if bound is not None]
    words += [str(bound + 1) for bound in (option.at_most, option.below) if bound is not None]
    return chance.choice(words)


def wrong_words(bench: Bench, chance: random.Random, most: int) -> Tally:
    """Give options of all programs an invalid value."""
    tally, programs, out = Tally(), list(_programs()), bench.place("never made")
    for _ in range(min(most, LINES_A_TRIAL)):
        main, command, known = chance.choice(programs)
        option = chance.choice([option for option in known if not option.positional])
        word = _bad_word(option, chance)
        line = [option.flag, word] if word is not None else [option.flag + chance.choice("xyz")]
        if any(other.name == "out" for other in known):
            line += ["--out", str(out)]
        try:
            code, said = run_in_process(main, *command, *line)
            good = code == 2 and len(said.splitlines()) == 1 and "Traceback" not in said and not out.exists()
        except Exception as error:
            code, said, good = None, repr(error), False
        tally.count(WRONG_WORD, 1, good, f"{main.__module__} {command} {line}: {code} {said}")
    return tally


def _any_words(option: Option, chance: random.Random) -> list[str]:
    """Return the words of an option, which may be valid or not."""
    if option.kind is bool:
        return []
    count = chance.randrange(1, 4) if option.many else 1
    numbers = ["0", "1", "2", "-1", "3", "16", "64", "0.5", "1e-9", "1e9", "1000000", str(2**63)]
    return [chance.choice(list(option.choices) or [*numbers, *(ODD if chance.random() < 0.2 else [])])] * count


def together(bench: Bench, chance: random.Random, most: int) -> Tally:
    """Combine random options, whose values may be invalid together. Nothing is trained."""
    tally, out = Tally(), bench.place("never made")
    name = chance.choice([*TASKS, PLAN])
    if name == PLAN:
        return _plans(chance, most)
    task = TASKS[name]
    parser = make_parser(task, None, "")
    known = [*options(Settings).values(), *options(task.command_type).values()]
    for _ in range(min(most, LINES_A_TRIAL)):
        line = ["--out", str(out)]
        for option in chance.sample(known, chance.randrange(1, 8)):
            line += [option.flag, *_any_words(option, chance)]
        good, error = True, None
        try:
            with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
                settings_to_train(task, *split(task, parse(parser, line)))
        except UsageError as caught:
            good, error = len(str(caught).splitlines()) == 1, caught
        except SystemExit as caught:
            good, error = caught.code == 2, caught
        except Exception as caught:
            good, error = False, caught
        tally.count(TOGETHER.format(name), 1, good, f"{line}: {error!r}")
    return tally


def _plans(chance: random.Random, most: int) -> Tally:
    """Run `trainers.plan` with random options, including their bounds."""
    tally = Tally()
    known = [option for option in options(plan.Settings).values() if option.name != "debug"]
    for _ in range(min(most, LINES_A_TRIAL)):
        line = []
        for option in chance.sample(known, chance.randrange(1, 8)):
            bounds = [str(bound) for bound in (option.at_least, option.at_most) if bound is not None]
            words = chance.choices([*bounds, *option.choices, "4"], k=4 if option.many else 1)
            line += [option.flag, *(words if option.kind is not bool else [])]
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                code, said = run_in_process(plan.main, *line)
            except Exception as error:
                code, said = None, repr(error)
        good = (code, said) == (0, "") or (code == 2 and len(said.splitlines()) == 1)
        tally.count(TOGETHER.format(PLAN), 1, good, f"{line}: {code} {said}")
    return tally
