"""Pages of the command-line reference: one page for each program, generated from its argument parser."""

import argparse
import importlib
import importlib.util
import re
import textwrap
from collections.abc import Iterator

import trainers
from generator import table
from trainers.cli.settings import Parser
from trainers.report import cell

_INTRODUCTION = """# Command lines

`--help` prints the options of a page below. The training programs list their common options with `--help` and all
options with `--help-all`.

## Programs

"""
_TITLES = {"options": "General options", "positional arguments": "Arguments"}


def pages() -> dict[str, str]:
    """Return the pages by their path below docs/generated/."""
    modules = programs()
    lines = []
    for name, module in modules.items():
        lines.append((f"[`python -m trainers.{name}`]({name}.md)", _prose(module_summary(module))))
    names = "\n".join(modules)
    index = f"{_INTRODUCTION}{table(('program', 'purpose'), lines)}"
    index += f"\n```{{toctree}}\n:hidden:\n\n{names}\n```\n"
    return {"commands/index.md": index} | {
        f"commands/{name}.md": page(name, module) for name, module in modules.items()
    }


def programs() -> dict[str, str]:
    """Return the module of each program in the docstring of `trainers`, in alphabetical order."""
    modules = {}
    for name in sorted(re.findall(r"^trainers\.(\w+)", trainers.__doc__ or "", re.MULTILINE)):
        module = f"trainers.{name}"
        found = importlib.util.find_spec(module)
        is_package = found is not None and found.submodule_search_locations is not None
        modules[name] = f"{module}.__main__" if is_package else module
    return modules


def module_summary(name: str) -> str:
    """Return the first paragraph of a module's docstring as one line."""
    return " ".join((importlib.import_module(name).__doc__ or "").split("\n\n")[0].split())


def page(name: str, path: str) -> str:
    """Return the page of the program `trainers.NAME` in the module `path`."""
    module = importlib.import_module(path)
    parser = module.parser()
    parts = [f"# trainers.{name}\n", f"{_prose(' '.join((parser.description or '').split()))}\n"]
    usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
    wrapped = textwrap.fill(usage, 100, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    parts += ["## Usage\n", f"```text\n{wrapped}\n```\n"]
    parts += _groups(parser)
    parts += _epilog(parser.epilog or "")
    return "\n".join(parts)


def _groups(parser: Parser) -> Iterator[str]:
    """Yield a heading and a table of options for each group of a parser."""
    formatter = argparse.HelpFormatter(parser.prog)
    for group in parser._action_groups:
        lines = []
        for action in group._group_actions:
            description, default = _described(action)
            choices = _choices(action)
            value = "" if choices else formatter._format_args(action, "")
            if action.nargs == argparse.REMAINDER:
                value = str(action.metavar)
            option = f"`{' '.join(filter(None, [', '.join(action.option_strings), value]))}`"
            lines.append((option, ". ".join(filter(None, [description, choices])), default))
        if lines:
            title = _TITLES.get(group.title or "", group.title or "")
            yield f"## {title[:1].upper()}{title[1:]}\n"
            yield table(("option", "description", "default"), lines)


def _described(action: argparse.Action) -> tuple[str, str]:
    """Return (description, default) of an option from its help text, as Markdown."""
    text = (action.help or "").replace("%%", "%")
    before, marker, default = text.rpartition(" (default: ")
    if not marker or not default.endswith(")"):
        return _prose(text), ""
    return _prose(before), _prose(default[:-1])


def _choices(action: argparse.Action) -> str:
    """Return the values of an option whose metavar lists them as "{a,b}"."""
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    choices = metavar.strip("{}").split(",") if metavar.startswith("{") else []
    return f"One of {', '.join(f'`{choice}`' for choice in choices)}." if choices else ""


def _prose(text: str) -> str:
    """Return text as Markdown, the names of options as code."""
    return re.sub(r"(?<![\w`-])(--[a-z][\w-]*|\$[A-Z_]+|--(?= ))", r"`\1`", cell(text))


def _epilog(text: str) -> Iterator[str]:
    """Yield the sections of an epilog: examples in fenced blocks, paragraphs, exit codes as a list."""
    for paragraph in re.split(r"\n\s*\n", text.strip("\n")):
        first, _, others = paragraph.partition("\n")
        title, colon, codes = " ".join(paragraph.split()).partition(": ")
        if re.fullmatch(r"\w+:", first) and others:
            yield f"## {first[:-1].capitalize()}\n\n```text\n{_dedented(others)}\n```\n"
        elif title == "exit codes" and colon:
            yield "## Exit codes\n\n" + "".join(f"- {_prose(code)}\n" for code in codes.split("; "))
        elif paragraph:
            yield f"{_prose(' '.join(paragraph.split()))}\n"


def _dedented(text: str) -> str:
    return "\n".join(line.removeprefix("  ") for line in text.splitlines())
