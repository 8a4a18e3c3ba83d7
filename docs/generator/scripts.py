"""Pages with the scripts in examples/ and benchmarks/, the notebook with its outputs, and the model cards."""

import json
import pathlib
import re
from typing import Any

from generator import DOCS

FOLDERS = ("examples", "benchmarks")
# Longer than the fences in docstrings.
_FENCE = "`" * 8


def pages() -> dict[str, str]:
    """Return the pages by their path below docs/generated/."""
    paths = [path for folder in FOLDERS for path in sorted((DOCS.parent / folder).glob("*.[pi]*"))]
    texts = {f"{path.parent.name}/{path.stem}.md": _page(path) for path in paths}
    for card in sorted((DOCS.parent / "model_cards").glob("*/README.md")):
        # Without the metadata at the beginning, and with figures beside the card.
        text = re.sub(r"\A---\n.*?\n---\n", "", card.read_text(encoding="utf-8"), flags=re.DOTALL)
        folder = f"model_cards/{card.parent.name}"
        texts[f"{folder}.md"] = re.sub(r"\]\(([\w-]+\.png)\)", rf"](../../../{folder}/\1)", text)
    return {name: f"---\norphan: true\n---\n\n{text}" for name, text in texts.items()}


def _page(path: pathlib.Path) -> str:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        return "\n\n".join(map(_cell, json.loads(text)["cells"])) + "\n"
    return f"# {path.parent.name}/{path.name}\n\n{_block('python', text)}\n"


def _cell(cell: dict[str, Any]) -> str:
    source = "".join(cell["source"])
    return source if cell["cell_type"] == "markdown" else "\n\n".join([_block("python", source), *_outputs(cell)])


def _outputs(cell: dict[str, Any]) -> list[str]:
    """Return texts and figures that a cell has printed."""
    parts = []
    for output in cell["outputs"]:
        data = output.get("data", {"text/plain": output.get("text", "")})
        if "image/png" in data:
            parts.append(f"![Figure of the cell](data:image/png;base64,{''.join(data['image/png'].split())})")
        else:
            parts.append(_block("text", "".join(data["text/plain"])))
    return parts


def _block(language: str, text: str) -> str:
    return f"{_FENCE}{language}\n{text.rstrip()}\n{_FENCE}"
