"""Bad command lines, generated from the settings' own types: exit code 2 and one line, whatever is typed."""

import importlib
import os

import pytest

from tests.support.programs import run_in_process
from trainers.cifar import Cifar
from trainers.cli.arguments import UsageError
from trainers.cli.settings import options, parse
from trainers.imagenet import ImageNet
from trainers.training.program import make_parser, settings_to_train, split

LINES = 150
PROGRAMS = {Cifar: "trainers.cifar", ImageNet: "trainers.imagenet"}
ODD = ["", "x", "--", "-1e400", "1e400", "nan", "inf", "-inf", "0x10", "1,2,", "9" * 5000, "1e", "None", "☃", "a b"]
ODD += [os.fsdecode(b"\xff\xfe"), "$HOME", "../..", "True", "[]", "{}", "'", '"', "%s", "\n", "\x1b[2J", "-", "٣"]


def bad_words(option, chance):
    """Something that an option cannot take, or None where everything can."""
    if option.choices:
        return chance.choice(["nonsense", *ODD])
    if option.kind is str:
        return chance.choice(["", os.fsdecode(b"\xff")])
    if option.kind is bool:
        return None
    bounds, words = option.bounds, ["", "x", "nan", "inf", "1e400", "--", "None", "☃", "1,2,x", "[]"]
    if option.kind is int:
        words += ["1.5", "9" * 5000]
    words += [str(bound - 1) for bound in (bounds.at_least, bounds.above) if bound is not None]
    words += [str(bound + 1) for bound in (bounds.at_most, bounds.below) if bound is not None]
    return chance.choice(words)


@pytest.mark.parametrize("task", PROGRAMS, ids=PROGRAMS.values())
def test_words_that_an_option_cannot_take(task, tmp_path, chance, amount, count_faults):
    main = importlib.import_module(PROGRAMS[task]).main
    known = [*options(task.settings_type).values(), *options(task.command_type).values()]
    survived, failures = 0, []
    for _ in range(LINES * amount):
        option = chance.choice(known)
        words = bad_words(option, chance)
        line = [option.flag, words] if words is not None else [option.flag + chance.choice("xyz")]
        code, said = run_in_process(main, *line, "--out", tmp_path / "run")
        if code == 2 and len(said.splitlines()) == 1 and "Traceback" not in said:
            survived += 1
        else:
            failures.append((line, code, said))
    count_faults(f"{PROGRAMS[task]}: a word that an option cannot take", LINES * amount, survived)
    assert not failures, failures[0]
    assert not (tmp_path / "run").exists()


def random_words(option, chance):
    """Something that an option may or may not take."""
    if option.kind is bool:
        return []
    count = chance.randrange(1, 4) if option.many else 1
    numbers = ["0", "1", "2", "-1", "3", "16", "64", "0.5", "1e-9", "1e9", "1000000", str(2**63)]
    return [chance.choice(list(option.choices) or [*numbers, *(ODD if chance.random() < 0.2 else [])])] * count


@pytest.mark.parametrize("task", PROGRAMS, ids=PROGRAMS.values())
def test_words_together(task, tmp_path, chance, amount, count_faults, capsys):
    """Settings that are each right may be wrong together; nothing is trained here."""
    parser = make_parser(task, None, "")
    known = [*options(task.settings_type).values(), *options(task.command_type).values()]
    survived, failures = 0, []
    for _ in range(LINES * amount):
        line = ["--out", str(tmp_path / "run")]
        for option in chance.sample(known, chance.randrange(1, 8)):
            line += [option.flag, *random_words(option, chance)]
        try:
            settings_to_train(task, *split(task, parse(parser, line)))
            survived += 1
        except UsageError as error:
            survived += len(str(error).splitlines()) == 1
        except SystemExit as error:
            survived += error.code == 2
        except Exception as error:
            failures.append((line, error))
    capsys.readouterr()
    count_faults(f"{PROGRAMS[task]}: options at random", LINES * amount, survived)
    assert not failures, failures[0]
    assert survived == LINES * amount
