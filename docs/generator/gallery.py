"""Pages of the gallery: each example with its recorded output and images, and an index of cards.

`docs/gallery/record.py` runs the examples and writes their output and images to docs/gallery/.
"""

import ast
import dataclasses
import json
import pathlib
import re

from generator import DOCS

RECORDED = DOCS / "gallery"
EXAMPLES = DOCS.parent / "examples"


@dataclasses.dataclass(frozen=True)
class Example:
    """An example of the gallery.

    Attributes:
        title: title of the page and the card.
        commands: options of each run of the script.
        images: images that the runs write, relative to their folder. The page shows all, the card the first one.
        before: command after `python -m` that is run first and not shown.
        fails: True if the first command is expected to fail.
    """

    title: str
    commands: tuple[str, ...] = ("",)
    images: tuple[str, ...] = ()
    before: str = ""
    fails: bool = False


GALLERY = {
    "first_steps": Example("First steps: a notebook"),
    "layers_in_your_model": Example("Residual layers in your own model"),
    "cifar_with_fit": Example("CIFAR with Keras' fit"),
    "resume_your_fit": Example("Resume a killed fit", ("--kill-after 100", "", "--out runs/other"), fails=True),
    "deepen_a_trained_model": Example("Deepen a trained model"),
    "watch_training": Example("Norms, distances and curvature in one fit", images=("runs/watched/distances.png",)),
    "curvature_of_your_model": Example("Curvature of your own model", images=("runs/curvature/density.png",)),
    "isometry_against_depth": Example(
        "Distance from the identity against depth",
        ("--depths 1 3 9 --steps 0",),
        ("runs/isometry/isometry-blocks.png",),
    ),
    "edge_of_stability": Example(
        "The edge of stability",
        ("--images 200 --steps 100",),
        ("runs/edge-of-stability/sharpness.png", "runs/edge-of-stability/couplings.png"),
    ),
    "factorize_a_matrix": Example("Factorize a matrix near the identity"),
    "memorize_your_data": Example("Memorize your own table"),
    "serve_saved_model": Example("Serve an exported network", before="trainers.cifar --preset quick"),
    "draw_shapes": Example("The built-in images", images=("runs/shapes.png",)),
}
_INTRODUCTION = """# Examples

Scripts with their recorded output. They are in `examples/` and run without changes from the root of the repository.
`--help` lists their options. Results are written to `runs/`.

::::{grid} 1 2 2 3
:gutter: 3

"""


def pages() -> dict[str, str]:
    """Return the gallery's pages by their path below docs/generated/."""
    found = {f"gallery/{name}.md": page(name) for name in GALLERY}
    cards = "\n\n".join(_card(name, found[f"gallery/{name}.md"]) for name in GALLERY)
    names = "\n".join(GALLERY)
    index = f"{_INTRODUCTION}{cards}\n\n::::\n\n```{{toctree}}\n:hidden:\n\n{names}\n```\n"
    return {"gallery/index.md": index, **found}


def page(name: str) -> str:
    """Return the page of an example."""
    path = RECORDED / f"{name}.json"
    recorded = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    text = _script(name, recorded) if source(name).suffix == ".py" else _notebook(name, recorded)
    return re.sub(r"\n{3,}", "\n\n", f"# {GALLERY[name].title}\n\n{text}")


def source(name: str) -> pathlib.Path:
    """Return the path of the script or notebook of an example."""
    notebook = EXAMPLES / f"{name}.ipynb"
    return notebook if notebook.exists() else notebook.with_suffix(".py")


def cells(path: pathlib.Path) -> list[tuple[str, str]]:
    """Return (type, source) of each cell of a notebook."""
    found = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [(cell["cell_type"], "".join(cell["source"])) for cell in found]


def image_name(name: str, image: str) -> str:
    """Return the name of the recorded copy of an image in docs/gallery."""
    return f"{name}-{pathlib.Path(image).name}"


def _script(name, recorded):
    example = GALLERY[name]
    if recorded is None:
        printed = "\n".join(f"$ python examples/{name}.py {words}".rstrip() for words in example.commands)
        images = f"No output has been recorded yet. `python docs/gallery/record.py {name}` records it.\n\n"
    else:
        printed = "\n".join(recorded["output"])
        images = f"{_circumstances(recorded)}\n\n"
        for image in example.images:
            images += f"![{pathlib.Path(image).stem}](../../gallery/{image_name(name, image)})\n\n"
    return (
        f"{_description(name)}\n\n## Output\n\n```text\n{printed}\n```\n\n{images}"
        f"## Script\n\n```{{literalinclude}} ../../../examples/{name}.py\n:language: python\n```\n"
    )


def _notebook(name, recorded):
    """Return the cells of a notebook, each code cell with its recorded output."""
    parts = [_circumstances(recorded)] if recorded else []
    outputs = iter(recorded["cells"] if recorded else ())
    for kind, text in cells(source(name)):
        if kind == "markdown":
            # The page already has a title.
            parts.append(re.sub(r"^# .*\n", "", text))
            continue
        parts.append(f"```python\n{text}\n```")
        output = next(outputs, {"output": (), "figures": ()})
        if output["output"]:
            parts.append("```text\n" + "\n".join(output["output"]) + "\n```")
        parts += [f"![figure {number}](../../gallery/{name}-{number}.png)" for number in output["figures"]]
    return "\n\n".join(parts) + "\n"


def _circumstances(recorded):
    return f"*Recorded on {recorded['date']} on {recorded['hardware']}; {recorded['versions']}.*"


def _description(name):
    """Return the docstring of a script with its indented lines as code blocks."""
    text = ""
    for line in (ast.get_docstring(ast.parse(source(name).read_text(encoding="utf-8"))) or "").splitlines():
        text += f"```text\n{line[4:]}\n```\n" if line.startswith("    ") else f"{line}\n"
    return text.replace("```\n```text\n", "").rstrip()


def _card(name, page):
    """Return the card of an example, with the first image of its page."""
    image = re.search(r"^!\[.*\]\((.*)\)", page, re.MULTILINE)
    top = f":img-top: {image[1]}\n" if image else ""
    return f":::{{grid-item-card}} {GALLERY[name].title}\n:link: {name}\n:link-type: doc\n{top}\n{_summary(name)}\n:::"


def _summary(name):
    """Return the first sentence of an example's description."""
    if source(name).suffix == ".py":
        return _description(name).splitlines()[0]
    paragraph = cells(source(name))[0][1].split("\n\n")[1].replace("\n", " ")
    return re.split(r"(?<=\.) ", paragraph)[0]
