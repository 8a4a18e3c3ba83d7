"""Foreign values in the files of a run, generated from the types of the settings and the fields of the readers.

One value of config.json, metrics.jsonl or result.json is replaced by a value of another type, a huge number, text with
escape sequences or a deeply nested list, or the file is truncated. Every reader then succeeds or raises a UsageError
of one printable line. Nothing is trained, and TensorFlow is not imported.
"""

import contextlib
import copy
import dataclasses
import io
import json
import pathlib
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

from idmatters_tf import _environment
from idmatters_tf._arguments import abbreviate
from tests.faults.bench import Bench
from tests.faults.tally import Tally
from trainers import cifar, imagenet, report
from trainers.card.__main__ import Settings as Card
from trainers.card.__main__ import describe, read
from trainers.cli.arguments import UsageError
from trainers.cli.settings import Option, as_dict, list_options
from trainers.cli.startup import explain_error
from trainers.reporting.curves import chart
from trainers.reproduce.__main__ import _circumstances
from trainers.reproduce.numbers import compare
from trainers.reproduce.rows import load
from trainers.run.folder import Run
from trainers.training.program import saved_settings
from trainers.training.settings import Settings
from trainers.training.task import Task
from trainers.training.train import RESULT, describe_result

ROW = "foreign value in a file of a run, or a truncated file, read by every program"
ESCAPES = "\x1b[2J\x1b]0;x\x07 a|b `c` <script> \u202e\n[d](e) \x85 ![f](g)"
# As JSON, since some have no equivalent in Python.
FOREIGN = ["null", "true", "5", "-1", "0.5", "1e400", "-1e400", "NaN", "Infinity", "1e308", "5e-324", "1000000000"]
FOREIGN += [str(2**63), str(2**63 - 1), "9" * 5000, f"1{'0' * 400}", '""', '"text"', '"\\ud800"', json.dumps(ESCAPES)]
FOREIGN += ["[]", "{}", "[1]", '["a", null]', '[["a"]]', '{"a": 1}', '{"a": {"b": []}}', "[1e9, 2, 3]"]
FOREIGN += ["[" * 1000 + "]" * 1000, "[" * 100_000, '{"a":' * 400 + "1" + "}" * 400]
CASES_A_TRIAL = 50
_CHARTS: dict[str, str] = {}
_PLACE = '"a place for a foreign value"'


class Case(NamedTuple):
    """Replacement of a value: the file of a run, the path of the value in it, and the new text."""

    file: str
    where: tuple[Any, ...]
    text: str

    def __str__(self) -> str:
        return f"{self.file} {'.'.join(map(str, self.where))}: {abbreviate(self.text, 60)}"


def documents(task: type[Task] = cifar.Cifar) -> dict[str, Any]:
    """Return the contents of the files of a finished run with default settings."""
    settings = as_dict(task.resolve({}, {}))
    names = ["airplane", "automobile"]
    data = {"origin": "made", "image_shape": [32, 32, 3], "classes": 2, "digest": "00", "class_names": names}
    numerics = {"threads per operation": 2, "oneDNN": "default", "GPUs": []}
    config = {"program": task.program, "settings": settings, "data": data, "versions": _environment.collect_versions()}
    config |= {"numerics": numerics, "command": ["cifar.py", "--steps", "20"]}
    config["extended"] = [{"steps": 10, "command": ["cifar.py"]}]
    norms = {"mean_frobenius": 1.5, "largest_spectral": 2.0, "blocks": {"a": {"frobenius": 1.0, "spectral": 1.0}}}
    train = {"kind": "train", "seconds": 1.0, "loss": 2.0, "penalty": 0.1, "error": 0.5, "gradient_norm": 1.0}
    train |= {"learning_rate": 0.1, "images_per_second": 100.0}
    test = {"kind": "test", "seconds": 2.0, "loss": 1.0, "error": 0.25, "top5_error": 0.1, "count": 10, "norms": norms}
    curvature = {"kind": "curvature", "seconds": 2.0, "trace": 1.0, "largest": [2.0]}
    records = [{**each, "step": step} for step in (10, 20) for each in (train, test, curvature)]
    records.append({"kind": "diverged", "step": 20, "seconds": 3.0})
    result = {"steps": settings["steps"], "best_error": 0.2, "best_step": 10, "last_error": 0.25, "last_loss": 1.0}
    result |= {"parameters": 1234, "seconds": 60.0, "last_top5_error": 0.1, "verdicts": ["SEEN: all."]}
    return {"config.json": config, "metrics.jsonl": records, "result.json": result}


def write(folder: pathlib.Path, found: dict[str, Any], case: Case | None = None) -> None:
    """Write the files of a run, one of them with a foreign value.

    Args:
        folder: an existing folder.
        found: contents of the files, as returned by `documents`.
        case: the replacement, or None.
    """
    for file, value in found.items():
        if case is not None and case.file == file:
            value = _replaced(value, case.where, json.loads(_PLACE))
        lines = value if file.endswith("l") and isinstance(value, list) else [value]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        if case is not None:
            text = text.replace(_PLACE, case.text)
        (folder / file).write_text(text, encoding="utf-8")


def paths(value: Any, levels: int = 4) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in a document, and the empty path of the document itself."""
    yield ()
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inside if levels else ():
        for path in paths(each, levels - 1):
            yield (key, *path)


def beyond(option: Option) -> list[str]:
    """Return values of a setting's type just outside of its bounds, as JSON."""
    low = [bound - 1 for bound in (option.at_least, option.above) if bound is not None]
    high = [bound + 1 for bound in (option.at_most, option.below) if bound is not None]
    return [f"[{bound}]" if option.many else str(bound) for bound in (*low, *high)]


def cases(task: type[Task], found: dict[str, Any]) -> list[Case]:
    """Return every foreign value at every path in the files of a run, and every setting just outside of its bounds."""
    known = list_options(Settings, found["config.json"]["settings"]).values()
    outside = [Case("config.json", ("settings", option.name), text) for option in known for text in beyond(option)]
    return outside + [
        Case(file, where, text)
        for file, value in found.items()
        for where in paths(value)
        for text in FOREIGN
        if file != "metrics.jsonl" or where
    ]


def _replaced(value, where, new):
    if not where:
        return new
    value = copy.copy(value)
    value[where[0]] = _replaced(value[where[0]], where[1:], new)
    return value


def chart_once(*arguments: Any) -> str:
    """Return a chart of the page, drawn once per value, since most cases change at most one chart."""
    key = repr(arguments)
    if key not in _CHARTS:
        _CHARTS[key] = chart(*arguments)
    return _CHARTS[key]


def readers(task: type[Task], folder: pathlib.Path, out: pathlib.Path) -> dict[str, Callable[[], object]]:
    """Return a function per program that reads a run, by name.

    Args:
        task: the program of the run.
        folder: folder of the run.
        out: folder of the output.
    """
    rows = load()

    def train():
        run = Run(folder)
        saved_settings(task, run, {})
        if (result := run.result(RESULT)) is not None:
            describe_result(result)

    def resume():
        run = Run(folder)
        run.data()
        run.start({}, {"digest": "00", "origin": "made"}, task.program, {"oneDNN": "other"})
        run.restore_metrics(20, Run(folder).metrics())
        run.restore_metrics(20, None)

    def table():
        with mock.patch("trainers.run.figures.save_figure", lambda figure, path: path):
            report.main([str(folder), "--out", str(out)])

    def page():
        with mock.patch("trainers.reporting.page.chart", chart_once):
            report.main([str(folder), "--html", str(out / "page.html")])

    def reproduce():
        for name in ("quick", "imagenette-fast"):
            row = dataclasses.replace(rows[name], weights=None)
            compare(row, folder, folder / "log")
            _circumstances(row, folder)

    return {
        "train": train,
        "resume": resume,
        "report": table,
        "report --html": page,
        "card": lambda: describe(read(str(folder)), Card(str(folder)), {"the run's own": 0.5}, "USER/x", "00"),
        "reproduce --check": reproduce,
    }


def attempt(folder: pathlib.Path, case: Case | None, read_by: Callable[[], object]) -> str:
    """Read a run whose files have been written. Return a description of the failure, or an empty string.

    Args:
        folder: folder of the run.
        case: the replacement.
        read_by: one of `readers`.
    """
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            read_by()
    except UsageError as error:
        sentence, code = explain_error(error)
        if sentence is None or code != 2 or len(sentence) > 1000:
            return f"{case}: {sentence!r}"
    except Exception as error:
        return f"{case}: {type(error).__name__}: {str(error)[:300]}"
    unprintable = [letter for letter in said.getvalue() if not letter.isprintable() and letter != "\n"]
    return f"{case}: printed {unprintable[:5]}" if unprintable else ""


def _refused(read_by):
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            read_by()
    except UsageError as error:
        return str(error)
    return ""


def foreign(bench: Bench, chance: random.Random, most: int) -> Tally:
    """Write foreign values at random paths and read each with every program."""
    tally, task = Tally(), chance.choice([cifar.Cifar, imagenet.ImageNet])
    folder, out, found = bench.place("foreign"), bench.place("foreign-out"), documents(task)
    folder.mkdir()
    out.mkdir()
    known = readers(task, folder, out)
    write(folder, found)
    for name, read_by in known.items():
        # The unchanged run must be readable, otherwise the test shows nothing.
        assert not _refused(read_by), name
    for case in chance.sample(cases(task, found), min(most, CASES_A_TRIAL)):
        write(folder, found, case)
        if chance.random() < 0.05:
            content = (folder / case.file).read_bytes()
            (folder / case.file).write_bytes(content[: chance.randrange(len(content))])
        wrong = [f"{name}: {said}" for name, read_by in known.items() if (said := attempt(folder, case, read_by))]
        tally.count(ROW, 1, not wrong, "; ".join(wrong))
    return tally
