"""Index of the public names in docs/reference/api/index.md, from the modules that the pages beside it document.

    python docs/generator/api.py

The index is committed, because code hosts do not show docstrings. Links have no numbers of lines, which change often.
"""

import importlib
import inspect
import os
import pathlib
import re
import sys
from collections.abc import Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs/reference/api"
INDEX = FOLDER / "index.md"
COMMAND = "python docs/generator/api.py"
_INTRODUCTION = """# All public names

Each name has its signature, one sentence and a link to its source. The docstring there has arguments, shapes, errors
and examples. The site that `make docs` builds shows the docstrings, on one page for each heading.
"""
_DIRECTIVE = re.compile(r"^\.\. auto(module|class|function|exception):: (\S+)\n((?: +:.*\n)*)", re.MULTILINE)


def documented_names() -> Iterator[tuple[str, str, str]]:
    """Yield (page, module, name) of each public name, in the order of the pages in docs/index.md."""
    pages = re.findall(r"^reference/api/(\w+)$", (ROOT / "docs/index.md").read_text(encoding="utf-8"), re.MULTILINE)
    for page in pages:
        if page == INDEX.stem:
            continue
        for kind, path, options in _DIRECTIVE.findall((FOLDER / f"{page}.md").read_text(encoding="utf-8")):
            if kind != "module":
                yield page, *path.rsplit(".", 1)
            elif ":no-members:" not in options:
                excluded = re.findall(r"\w+", options.partition(":exclude-members:")[2])
                yield from ((page, path, name) for name in public_names(path) if name not in excluded)


def public_names(path: str) -> list[str]:
    """Return the classes and functions in `__all__` of a module, or its own public ones."""
    module = importlib.import_module(path)
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == path
    ]
    values = {name: getattr(module, name) for name in names}
    return [name for name, value in values.items() if inspect.isclass(value) or inspect.isroutine(value)]


def text(on_site: bool = False) -> str:
    """Return the index. On the site each name has a link to its documentation, elsewhere to its source."""
    lines, heading = [_INTRODUCTION], ("", "")
    for page, path, name in documented_names():
        if page != heading[0]:
            title = (FOLDER / f"{page}.md").read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
            lines.append(f"\n## [{title}]({page}.md)\n" if len(lines) > 1 else f"## [{title}]({page}.md)\n")
        if (page, path) != heading:
            lines.append(f"\n`{path}`\n" if page == heading[0] else f"`{path}`\n")
        heading = page, path
        value = getattr(importlib.import_module(path), name)
        link = f"{{py:obj}}`details <{path}.{name}>`" if on_site else f"[source]({_source(path, value)})"
        lines.append(f"- `{name}{_signature(value)}` ({link}): {_first_sentence(value)}")
    return "\n".join(lines) + "\n"


def _source(path: str, value: Any) -> str:
    """Return the file that defines a value, relative to the index."""
    module = sys.modules[getattr(value, "__module__", None) or path]
    file = pathlib.Path(inspect.getfile(module)).resolve()
    return pathlib.PurePath(os.path.relpath(file, FOLDER)).as_posix()


def _signature(value: Any) -> str:
    """Return the parameters of a function or class in parentheses, without annotations."""
    # The `__new__` of Keras' classes hides the arguments.
    own = inspect.isclass(value) and value.__init__ is not object.__init__
    parameters = list(inspect.signature(value.__init__ if own else value).parameters.values())[own:]
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
    # Functions and markers of missing arguments have no short representation.
    for number, parameter in enumerate(plain):
        if parameter.default is not parameter.empty and repr(parameter.default).startswith("<"):
            plain[number] = parameter.replace(default=...)
    text = str(inspect.Signature(plain)).replace("Ellipsis", "...")
    return "" if text == "(*args, **kwargs)" else text


def _first_sentence(value: Any) -> str:
    """Return the first sentence of a docstring."""
    paragraph = " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())
    return re.split(r"(?<=[^.]\.) (?=[A-Z`])", paragraph, maxsplit=1)[0]


def main() -> None:
    """Write the index."""
    INDEX.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
