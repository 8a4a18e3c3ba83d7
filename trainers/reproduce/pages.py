"""The ledger as Markdown: the tables of docs/reproduction.md and a page for each row in docs/ledger/.

In reproduction.md the lines between `<!-- ledger: PAPER -->` and `<!-- end -->` are replaced; the rest is written by
hand. In the texts of a row, links are relative to docs/, `row:NAME` is the page of another row, and a number's name in
braces stands for its value.
"""

import importlib
import pathlib
import re
from collections.abc import Mapping, Sequence

from idmatters_tf._replacing import write_atomically
from trainers.cli.arguments import UsageError
from trainers.cli.settings import as_dict, parse
from trainers.reproduce.rows import NOT_RECORDED, Row, data_sets
from trainers.reproduce.running import shown, words_of
from trainers.training.program import free_on_resume, split

TABLES = "reproduction.md"
FOLDER = "ledger"
# What the block without a paper is called.
RUNS = "runs"
_SECTION = re.MULTILINE | re.DOTALL
_BLOCK = re.compile(r"(<!-- ledger: (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)
_GENERATED = "<!-- Written by `python -m trainers.reproduce --pages docs` from trainers/reproduce/rows/{}. -->\n"
_MARK = b"<!-- Written by `python -m trainers.reproduce"
_TASKS = {"trainers.cifar": "Cifar", "trainers.imagenet": "ImageNet"}


def write_pages(rows: Mapping[str, Row], docs: pathlib.Path) -> int:
    """Writes the tables and the pages, and removes pages of rows that no longer exist. Returns the exit code 0.

    Args:
        rows: the ledger.
        docs: the folder with reproduction.md.

    Raises:
        UsageError: there is no reproduction.md.
    """
    written = pages(rows, docs)
    (docs / FOLDER).mkdir(exist_ok=True)
    for path in (docs / FOLDER).glob("*.md"):
        generated = path.is_file() and path.read_bytes().startswith(_MARK)
        if generated and f"{FOLDER}/{path.name}" not in written:
            path.unlink()
    for name, text in written.items():
        write_atomically(docs / name, text)
    print(f"{docs / TABLES}, and {len(written) - 1} pages in {docs / FOLDER}")
    return 0


def pages(rows: Mapping[str, Row], docs: pathlib.Path) -> dict[str, str]:
    """What the files below docs/ should hold, by name.

    Args:
        rows: the ledger.
        docs: the folder with reproduction.md, whose hand-written parts are kept.
    """
    path = docs / TABLES
    if not path.is_file():
        raise UsageError(f"--pages {docs} has no {TABLES}. Name the docs/ folder of a checkout.")
    text = _BLOCK.sub(
        lambda match: match[1] + _table(rows, "" if match[2] == RUNS else match[2]) + match[3],
        path.read_text(encoding="utf-8"),
    )
    found = {TABLES: text, f"{FOLDER}/index.md": _index(rows)}
    return found | {f"{FOLDER}/{row.name}.md": page(row, rows, docs) for row in rows.values()}


def _table(rows: Mapping[str, Row], paper: str) -> str:
    """The table of a paper; "": of the package's own runs."""
    if paper:
        lines = [["item", "the paper's claim", "command or test", "cost", "measured here", "verdict"]]
    else:
        lines = [["run", "command", "seed, date", "cost", "measured"]]
    lines.append(["---"] * len(lines[0]))
    for row in (each for each in rows.values() if each.paper == paper):
        link, cost, measured = f"[{row.item}](row:{row.name})", row.cost_in_words(), filled(row, row.measured)
        if paper:
            cells = [link, row.claim, _in_short(row), cost if row.cost_in_minutes or row.cost else "", measured]
            cells.append(row.verdict)
        else:
            when = ", ".join([*map(str, row.seeds), row.date or "not run"])
            cells = [link, _in_short(row), when, cost, measured]
        lines.append([_in_a_cell(cell) for cell in cells])
    text = "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
    return re.sub(r"\]\(row:([\w.-]+)\)", rf"]({FOLDER}/\1.md)", text)


def _in_short(row: Row) -> str:
    """What reproduces a row, without where its results go."""
    commands = [re.sub(r" --out OUT\S*", "", command) for command in shown(row, "OUT") if " -m pytest" not in command]
    lines = [f"`{command}`" for command in commands] + [f"`{test}`" for test in row.tests]
    if not lines and row.rests_on:
        lines = [f"[{name}](row:{name})" for name in row.rests_on]
    return "; ".join(lines)


def _index(rows: Mapping[str, Row]) -> str:
    lines = [
        _GENERATED.format(""),
        "# The rows of the ledger\n",
        "A page for each: what runs it again, and the recorded numbers with their tolerances. The tables are in",
        "[What was reproduced](../reproduction.md).\n",
        "```{toctree}\n:maxdepth: 1\n",
        *rows,
        "```",
    ]
    return "\n".join(lines) + "\n"


def page(row: Row, rows: Mapping[str, Row], docs: pathlib.Path) -> str:
    """The page of a row.

    Args:
        row: whose page.
        rows: the ledger.
        docs: the folder of the documentation.
    """
    parts = [_GENERATED.format(f"{row.name}.toml"), f"# {row.item}{f' ({row.paper})' if row.paper else ''}\n"]
    for title, text in (("The paper's claim", row.claim), ("Measured", row.measured), ("Verdict", row.verdict)):
        if text:
            parts.append(f"{title}: {filled(row, text)}.\n")
    if row.figure:
        parts.append(f"![{row.item}]({row.figure})\n")
    if row.notes:
        parts.append(f"{filled(row, row.notes).strip()}\n")
    parts += [*_again(row, rows), *_facts(row), *_numbers(row), *_settings(row), *_data(row)]
    if row.model_card is not None:
        card = f"{row.model_card}/README.md"
        parts.append(
            f"## Model card\n\nThe weights are in [{row.model_card}](../{card}), ready for `keras.saving.load_model`.\n"
        )
        parts += re.findall(
            r"^## Error\n\n(.*?\n)(?=\n## )", (docs.parent / card).read_text(encoding="utf-8"), _SECTION
        )
    # Links are relative to docs/.
    text = re.sub(r"\]\((?!row:|https?:|#)", "](../", "\n".join(parts))
    return re.sub(r"\]\(row:([\w.-]+)\)", r"](\1.md)", text).rstrip("\n") + "\n"


def _again(row: Row, rows: Mapping[str, Row]) -> list[str]:
    parts = []
    if row.commands or row.tests or row.rests_on:
        needs_data = [row, *(rows[name] for name in row.rests_on)]
        data = " --data-dir DATA" if any("DATA" in command for each in needs_data for command in each.commands) else ""
        commands = shown(row, f"runs/reproduce/{row.name}")
        parts += ["## Run it again\n", f"```\npython -m trainers.reproduce {row.name}{data}\n```\n"]
        if commands:
            parts += ["runs\n", "```\n" + "\n".join(commands) + "\n```\n"]
        if row.exit_code:
            parts.append(f"which ends with exit code {row.exit_code}.\n")
    if row.rests_on:
        parts.append(f"It rests on {', '.join(f'[{rows[name].item}](row:{name})' for name in row.rests_on)}.\n")
    return parts


def _facts(row: Row) -> list[str]:
    if not row.commands and not row.tests:
        return []
    title = "" if row.data is None else data_sets()[row.data].title
    facts = {
        "seed": ", ".join(map(str, row.seeds)),
        "data": title,
        "versions": ", ".join(f"{package} {version}" for package, version in row.versions.items()),
        "hardware": row.hardware,
        "date": row.date,
        "cost": row.cost_in_words(),
    }
    if not row.date:
        facts["date"] = "not run"
    lines = [f"| {name} | {_in_a_cell(text or NOT_RECORDED)} |" for name, text in facts.items()]
    return ["| what | recorded |\n|---|---|\n" + "\n".join(lines) + "\n"]


def _numbers(row: Row) -> list[str]:
    lines = []
    for number in row.numbers:
        place = "not read from the run" if number.file is None else _place(number.file, number.key, number.where)
        lines.append(f"| {number.name} | {number.shown()} | {number.allowed() or '-'} | {_in_a_cell(place)} |")
    if row.weights is not None:
        note = f" {row.weights.note}" if row.weights.note else ""
        lines.append(
            f"| SHA-256 of the weights | `{row.weights.sha256}`{note} | not compared | the newest checkpoint |"
        )
    if not lines:
        return []
    return [
        "## Numbers\n",
        "| number | recorded | tolerance | read from |\n|---|---|---|---|\n" + "\n".join(lines) + "\n",
    ]


def _place(file: str, key: str | None, where: Mapping[str, object]) -> str:
    if file == "log":
        return "what the command prints"
    at = f", where {', '.join(f'{name} = {value}' for name, value in where.items())}" if where else ""
    return f"`{file}`{f', `{key}`' if key else ''}{at}"


def _settings(row: Row) -> list[str]:
    """Where the settings of a training differ from the defaults."""
    words = words_of(row.commands[0], "OUT", None) if row.commands else [""]
    if words[0] not in _TASKS:
        return []
    module = importlib.import_module(words[0])
    task = getattr(module, _TASKS[words[0]])
    command, typed = split(task, parse(module.parser(), words[1:]))
    settings = task.resolve(task.presets.get(getattr(command, "preset", ""), {}), typed)
    usual, free = as_dict(task.resolve({}, {})), free_on_resume(task)
    changed = {name: value for name, value in as_dict(settings).items() if value != usual.get(name)}
    differing = {name: value for name, value in changed.items() if name not in free}
    if not differing:
        return ["## Settings\n", "All are the defaults.\n"]
    lines = "\n".join(
        f"| `{name}` | {_value(value)} | {_value(usual.get(name))} |" for name, value in differing.items()
    )
    return ["## Settings that differ from the defaults\n", f"| setting | here | default |\n|---|---|---|\n{lines}\n"]


def _data(row: Row) -> list[str]:
    files = {} if row.data is None else data_sets()[row.data].files
    if not files:
        return []
    lines = "\n".join(f"| `{name}` | `{digest}` |" for name, digest in files.items())
    return ["## Data\n", f"| official file | SHA-256 |\n|---|---|\n{lines}\n"]


def filled(row: Row, text: str) -> str:
    """A text of a row with its numbers in their places. Raises UsageError where there is no such number."""
    numbers = {number.name: number for number in row.numbers}

    def value(match: re.Match[str]) -> str:
        if match[1] not in numbers:
            raise UsageError(f"rows/{row.name}.toml: there is no number {match[1]!r}.")
        return numbers[match[1]].shown()

    return re.sub(r"\{([^{}]+)\}", value, text)


def _value(value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " ".join(map(str, value))
    return "-" if value is None else str(value)


def _in_a_cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
