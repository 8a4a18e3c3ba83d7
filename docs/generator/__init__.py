"""Generated pages of the site: the ledger, the command lines and the scripts.

`docs/conf.py` calls `write_pages` before Sphinx reads the sources. The pages are not committed.
"""

import pathlib
from collections.abc import Iterable, Sequence

DOCS = pathlib.Path(__file__).resolve().parents[1]
FOLDER = "generated"


def table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table. The cells contain Markdown."""
    first, *others = (f"| {' | '.join(cells)} |\n" for cells in (header, *lines))
    return "".join([first, f"|{'---|' * len(header)}\n", *others])


def pages() -> dict[str, str]:
    """Return the text of each generated page by its path below docs/generated/."""
    from generator import commands, ledger, scripts

    return {**ledger.pages(), **commands.pages(), **scripts.pages()}


def write_pages(folder: pathlib.Path = DOCS / FOLDER) -> None:
    """Write the pages that have changed, so that Sphinx builds only these again, and remove other pages.

    Args:
        folder: the folder to write to; it contains nothing but generated pages.
    """
    written = pages()
    for path in folder.rglob("*.md"):
        if path.relative_to(folder).as_posix() not in written:
            path.unlink()
    for name, text in written.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
