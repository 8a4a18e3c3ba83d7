"""Pages of the ledger: one page per row or group of rows, and an index by paper, with our own runs last.

In the texts of a row, links are relative to docs/, `row:NAME` is the page of another row, and the name of a number in
braces is replaced by its value.
"""

import importlib
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from generator import DOCS, table
from trainers.cli.arguments import UsageError
from trainers.cli.settings import as_dict
from trainers.report import as_words
from trainers.reproduce.numbers import NOT_RECORDED
from trainers.reproduce.rows import FOLDER, PAPERS, Row, expand_command, format_commands, load
from trainers.training.settings import select_relevant

_SECTION = re.MULTILINE | re.DOTALL
_PROGRAMS = ("trainers.cifar", "trainers.imagenet")
_INTRODUCTION = """# The ledger

The ledger has rows for the theorems, tables and figures of both papers, for the theorems of four later papers, and for
our own runs. Each row links to a page with the command to run it again, its cost, the recorded numbers and their
tolerances. Tests named on a page are part of `make test`. [Reproduction of both
papers](../../reference/reproduction.md) summarizes the results and conditions.
"""


def pages() -> dict[str, str]:
    """Return the ledger's pages by their path below docs/generated/."""
    rows = load()
    own = [row for row in rows.values() if not row.page]
    names = "\n".join(row.name for row in own)
    index = _links(f"{_index(rows)}\n```{{toctree}}\n:hidden:\n\n{names}\n```\n", rows)
    return {"ledger/index.md": index} | {f"ledger/{row.name}.md": page(row, rows) for row in own}


def _index(rows: Mapping[str, Row]) -> str:
    parts = [_INTRODUCTION]
    for title, paper in (*((paper, paper) for paper in PAPERS), ("Our own runs", "")):
        parts.append(f"## {title}\n\n{_table(rows, paper)}")
    return "\n".join(parts)


def _table(rows: Mapping[str, Row], paper: str) -> str:
    """Return the table of a paper, or of our own runs if `paper` is empty."""
    header = (
        ("item", "claim of the paper", "measured", "verdict") if paper else ("run", "seed, date", "cost", "measured")
    )
    lines = []
    for row in (each for each in rows.values() if each.paper == paper):
        link = f"[{row.item}](row:{row.name})"
        measured = filled(row, row.measured)
        when = ", ".join([*map(str, row.seeds), row.date or "not run"])
        cells = [link, row.claim, measured, row.verdict] if paper else [link, when, row.cost_in_words(), measured]
        lines.append([_in_a_cell(cell) for cell in cells])
    return table(header, lines)


def _links(text: str, rows: Mapping[str, Row]) -> str:
    """Return Markdown with links relative to docs/ and `row:NAME` resolved for a page in docs/generated/ledger/."""
    text = re.sub(r"\]\((?!\w+:|#|\.\./\.\./)", "](../../", text)
    return re.sub(r"\]\(row:([\w.-]+)\)", lambda match: f"]({rows[match[1]].page or match[1]}.md)", text)


def page(row: Row, rows: Mapping[str, Row]) -> str:
    """Return the page of a row, with the rows that are shown on it.

    Args:
        row: the row.
        rows: all rows by name.
    """
    group = [each for each in rows.values() if each.page == row.name]
    title = row.item.partition(":")[0] if group else row.item
    parts = [f"# {title}{f' ({row.paper})' if row.paper else ''}\n"]
    if group:
        parts += _comparison([row, *group])
    else:
        texts = {"Claim of the paper": row.claim, "Measured": row.measured, "Verdict": row.verdict}
        parts += [f"{name}: {filled(row, text)}.\n" for name, text in texts.items() if text]
    if row.figure:
        parts.append(f"![{row.item}]({row.figure})\n")
    if row.notes:
        parts.append(f"{filled(row, row.notes).strip()}\n")
    parts += [*_again(row, rows), *_facts(row), *_numbers(row), *_settings(row), *_data(row)]
    if row.model_card is not None:
        card = f"../{row.model_card}/README.md"
        parts.append(
            f"## Model card\n\nThe weights are in [{row.model_card}]({card}). `keras.saving.load_model` loads them.\n"
        )
        parts += re.findall(r"^## Error\n\n(.*?\n)(?=\n## )", (DOCS / card).read_text(encoding="utf-8"), _SECTION)
    return _links("\n".join(parts), rows).rstrip("\n") + "\n"


def _comparison(group: Sequence[Row]) -> list[str]:
    """Return the table of rows that share a page.

    Args:
        group: the rows; the command of each begins with that of the first.
    """
    common = group[0].commands[0].removesuffix(" --out OUT")
    usual = _recorded(group[0])
    lines = []
    for row in group:
        options = row.commands[0].removesuffix(" --out OUT").removeprefix(common).strip()
        result = f"{filled(row, row.measured)} (tolerance {', '.join(number.allowed() for number in row.numbers)})"
        differing = [f"{name}: {text}" for name, text in _recorded(row).items() if text != usual[name]]
        cells = (row.item.partition(": ")[2], f"`{options}`" if options else "", result, "; ".join(differing))
        lines.append((f"`{row.name}`", *cells))
    note = f"`python -m trainers.reproduce ROW` repeats a row. The sections below are for `{group[0].name}`.\n"
    return [table(("row", "change", "options", "measured", "recorded facts that differ"), lines), note]


def _again(row: Row, rows: Mapping[str, Row]) -> list[str]:
    parts = []
    if row.commands or row.tests or row.rests_on:
        needs_data = [row, *(rows[name] for name in row.rests_on)]
        data = " --data-dir DATA" if any("DATA" in command for each in needs_data for command in each.commands) else ""
        commands = format_commands(row, f"runs/reproduce/{row.name}")
        parts += ["## Run it again\n", f"```\npython -m trainers.reproduce {row.name}{data}\n```\n"]
        if commands:
            parts += ["This executes:\n", "```\n" + "\n".join(commands) + "\n```\n"]
        if row.exit_code:
            parts.append(f"The expected exit code is {row.exit_code}.\n")
    if row.rests_on:
        parts.append(
            f"This result depends on {', '.join(f'[{rows[name].item}](row:{name})' for name in row.rests_on)}.\n"
        )
    return parts


def _facts(row: Row) -> list[str]:
    if not row.commands and not row.tests:
        return []
    return [table(("property", "recorded"), list(_recorded(row).items()))]


def _recorded(row: Row) -> dict[str, str]:
    """Return the recorded facts of a row by their names, as cells of a table."""
    facts = {
        "seed": ", ".join(map(str, row.seeds)),
        "data": _data_set(row).get("title", ""),
        "versions": ", ".join(f"{package} {version}" for package, version in row.versions.items()),
        "hardware": row.hardware,
        "date": row.date or "not run",
        "cost": row.cost_in_words(),
    }
    return {name: _in_a_cell(text or NOT_RECORDED) for name, text in facts.items()}


def _numbers(row: Row) -> list[str]:
    lines = []
    for number in row.numbers:
        place = "not read from the run" if number.file is None else _place(number.file, number.key, number.where)
        lines.append((number.name, number.shown(), number.allowed() or "-", _in_a_cell(place)))
    if row.weights is not None:
        digest = " ".join([f"`{row.weights['sha256']}`", *row.weights.get("note", "").split()])
        lines.append(("SHA-256 of the weights", digest, "not compared", "the weights"))
    return ["## Numbers\n", table(("number", "recorded", "tolerance", "read from"), lines)] if lines else []


def _place(file: str, key: str | None, where: Mapping[str, object]) -> str:
    at = f", where {', '.join(f'{name} = {value}' for name, value in where.items())}" if where else ""
    return f"`{file}`{f', `{key}`' if key else ''}{at}"


def _settings(row: Row) -> list[str]:
    """Return the table of the training settings that differ from the defaults."""
    words = expand_command(row.commands[0], "OUT", None) if row.commands else [""]
    if words[0] not in _PROGRAMS:
        return []
    program = importlib.import_module(words[0]).PROGRAM
    command, typed = program.split(program.parser().parse(words[1:]))
    settings = program.resolve(command.preset, typed)
    usual = as_dict(program.resolve())
    # The default network lacks the options of other networks.
    lacking = object()
    relevant = select_relevant(as_dict(settings))
    differing = {name: value for name, value in relevant.items() if value != usual.get(name, lacking)}
    if not differing:
        return ["## Settings\n", "All settings have their default values.\n"]
    lines = [
        (f"`{name}`", as_words(value), as_words(usual[name]) if name in usual else "-")
        for name, value in differing.items()
    ]
    return ["## Settings that differ from the defaults\n", table(("setting", "here", "default"), lines)]


def _data_set(row: Row) -> Mapping[str, Any]:
    """Return the entry of data.toml for the data set of a row, or an empty one."""
    known = tomllib.loads((FOLDER.parent / "data.toml").read_text(encoding="utf-8"))
    return {} if row.data is None else known[row.data]


def _data(row: Row) -> list[str]:
    files = _data_set(row).get("files", {})
    lines = [(f"`{name}`", f"`{digest}`") for name, digest in files.items()]
    return ["## Data\n", table(("official file", "SHA-256"), lines)] if lines else []


def filled(row: Row, text: str) -> str:
    """Return a text of a row with the values of numbers in place of their names.

    Raises:
        UsageError: a name in braces is not that of a number.
    """
    numbers = {number.name: number for number in row.numbers}

    def value(match: re.Match[str]) -> str:
        if match[1] not in numbers:
            raise UsageError(f"rows/{row.name}.toml: unknown number {match[1]!r}.")
        return numbers[match[1]].shown()

    return re.sub(r"\{([^{}]+)\}", value, text)


def _in_a_cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
