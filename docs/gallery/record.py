"""Records what the examples print and draw: a page for each, and the gallery's index.

    python docs/gallery/record.py [NAME ...] [--folder DIR] [--hardware TEXT] [--without-running]

Each example runs in a folder of its own below DIR, with the commands listed here; what it printed, the images it wrote,
the date and the versions go into docs/gallery/NAME.md. The site shows these pages, so that building it runs no example.
Without names all are recorded anew, in some minutes on two CPU cores. The notebook's cells run one after the other in
one process, and each is followed by its output.
"""

import argparse
import ast
import contextlib
import dataclasses
import datetime
import io
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys

from idmatters_tf._environment import version_of

PAGES = pathlib.Path(__file__).resolve().parent
ROOT = PAGES.parents[1]
EXAMPLES = ROOT / "examples"
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg", "COLUMNS": "100"}


@dataclasses.dataclass(frozen=True)
class Example:
    """A page of the gallery.

    Args:
        title: of its page and its card.
        commands: the options of each run of the script.
        images: what the runs write that is shown, relative to the folder; the first one is on the card.
        before: commands behind `python -m` that are run first and not shown.
        fails: whether the first command ends itself, as this one is meant to.
    """

    title: str
    commands: tuple[str, ...] = ("",)
    images: tuple[str, ...] = ()
    before: str = ""
    fails: bool = False


GALLERY = {
    "first_steps": Example("First steps: a notebook"),
    "layers_in_your_model": Example("The layers in your own model"),
    "cifar_with_fit": Example("CIFAR with Keras' fit"),
    "resume_your_fit": Example(
        "A fit that is killed and goes on", ("--kill-after 100", "", "--out runs/other"), fails=True
    ),
    "deepen_a_trained_model": Example("Deepen a trained model"),
    "watch_training": Example("Norms, distances and curvature in one fit", images=("runs/watched/distances.png",)),
    "curvature_of_your_model": Example("The curvature of your own model", images=("runs/curvature/density.png",)),
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
    "factorize_a_matrix": Example("A matrix as a product near the identity"),
    "certificate_along_descent": Example("Gradient dominance along a descent"),
    "memorize_your_data": Example("A network that memorises your table"),
    "serve_saved_model": Example("Serve an exported network", before="trainers.cifar --preset quick"),
    "draw_shapes": Example("The built-in images", images=("runs/shapes.png",)),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="of examples, without .py (default: all)")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "runs/gallery", help="(default: runs/gallery)")
    parser.add_argument(
        "--hardware", default=f"{os.cpu_count()} cores, {platform.machine()}", help="(default: %(default)s)"
    )
    parser.add_argument(
        "--without-running", action="store_true", help="only add pages that are missing, without output"
    )
    options = parser.parse_args()
    if unknown := set(options.names) - set(GALLERY):
        parser.error(f"no such example: {', '.join(sorted(unknown))}. There are {', '.join(GALLERY)}")
    for name in options.names or GALLERY:
        if not options.without_running:
            print(name, flush=True)
            record(name, options.folder.absolute() / name, options.hardware)
        elif not (PAGES / f"{name}.md").exists():
            (PAGES / f"{name}.md").write_text(not_recorded(name))
    (PAGES / "index.md").write_text(index())


def record(name: str, folder: pathlib.Path, hardware: str) -> None:
    """Runs an example and writes its page and images."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "examples").exists():
        (folder / "examples").symlink_to(EXAMPLES)
    notebook = EXAMPLES / f"{name}.ipynb"
    when = f"*Recorded on {datetime.date.today()} on {hardware}; {versions()}.*"
    if notebook.exists():
        text = f"# {GALLERY[name].title}\n\n{when}\n\n{of_notebook(notebook, folder)}"
    else:
        text = of_script(name, folder, when)
    (PAGES / f"{name}.md").write_text(re.sub(r"\n{3,}", "\n\n", text))


def versions() -> str:
    """Those of what the examples compute with."""
    names = {"tensorflow": "TensorFlow", "keras": "Keras", "numpy": "NumPy"}
    found = [f"{name} {version}" for package, name in names.items() if (version := version_of(package)) is not None]
    return ", ".join([f"Python {platform.python_version()}", *found])


def of_script(name: str, folder: pathlib.Path, when: str) -> str:
    """The page of a script: what it is about, what it prints and draws, its source."""
    example, path = GALLERY[name], EXAMPLES / f"{name}.py"
    if example.before and not (folder / "runs").exists():
        run([sys.executable, "-m", *example.before.split()], folder)
    shown = []
    for number, words in enumerate(example.commands):
        command = ["python", f"examples/{name}.py", *words.split()]
        output = run([sys.executable, *command[1:]], folder, fails=example.fails and number == 0)
        shown.append(f"$ {' '.join(command)}\n{output}")
    printed = "".join(shown).rstrip()
    text = f"# {example.title}\n\n{about(path)}\n\n## What it prints\n\n```text\n{printed}\n```\n\n{when}\n\n"
    for source in example.images:
        image = f"{name}-{pathlib.Path(source).name}"
        shutil.copy(folder / source, PAGES / image)
        text += f"![{pathlib.Path(source).stem}]({image})\n\n"
    return text + source_of(name)


def not_recorded(name: str) -> str:
    """The page of a script that has not been recorded yet."""
    commands = "\n".join(f"$ python examples/{name}.py {words}".rstrip() for words in GALLERY[name].commands)
    return (
        f"# {GALLERY[name].title}\n\n{about(EXAMPLES / f'{name}.py')}\n\n## What it prints\n\n"
        f"No output has been recorded yet. `python docs/gallery/record.py {name}` will record that of\n\n"
        f"```text\n{commands}\n```\n\n{source_of(name)}"
    )


def source_of(name: str) -> str:
    """The end of a script's page."""
    return f"## The script\n\n```{{literalinclude}} ../../examples/{name}.py\n:language: python\n```\n"


def about(path: pathlib.Path) -> str:
    """A script's docstring, its commands as a block of code."""
    lines, text = (ast.get_docstring(ast.parse(path.read_text())) or "").splitlines(), ""
    for line in lines:
        command = re.match(r"(\w+=\w+ )?python examples/", line.strip())
        text += f"```text\n{line.strip()}\n```\n" if command else f"{line}\n"
    return text.replace("```\n```text\n", "").rstrip()


def run(command: list[str], folder: pathlib.Path, fails: bool = False) -> str:
    """What a command prints on standard output, as a terminal would show it at the end."""
    done = subprocess.run(command, cwd=folder, env={**os.environ, **QUIET}, capture_output=True, text=True, check=False)
    if bool(done.returncode) != fails:
        raise SystemExit(f"{' '.join(command)} ended with exit code {done.returncode}\n{done.stderr[-3000:]}")
    return as_seen(done.stdout)


def as_seen(output: str) -> str:
    """Text without colours; of each line what was written last over it, and of Keras' progress bars the last state."""
    plain = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", output)
    lines = [re.split(r"[\r\b]+", line.rstrip("\r\b "))[-1].rstrip() for line in plain.split("\n")]
    # Where standard output is no terminal, Keras writes a line for each state.
    bars = [re.match(r" *(\d+)/(\d+) ━", line) for line in lines]
    unfinished = [bar is not None and bar[1] != bar[2] for bar in bars]
    return "\n".join(line for line, is_unfinished in zip(lines, unfinished, strict=True) if not is_unfinished)


def of_notebook(path: pathlib.Path, folder: pathlib.Path) -> str:
    """The cells of a notebook, each piece of code with what it prints, shows and draws."""
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(path.read_text())["cells"]]
    code = json.dumps([source for kind, source in cells if kind == "code"])
    run([sys.executable, str(pathlib.Path(__file__)), "--cells", code], folder)
    outputs = iter(json.loads((folder / "outputs.json").read_text()))
    pages = []
    for kind, source in cells:
        if kind == "markdown":
            # The page has a title already.
            pages.append(re.sub(r"^# .*\n", "", source))
            continue
        pages.append(f"```python\n{source}\n```")
        text, images = next(outputs)
        if text:
            pages.append(f"```text\n{text.rstrip()}\n```")
        for number in images:
            image = f"{path.stem}-{number}.png"
            shutil.copy(folder / f"{number}.png", PAGES / image)
            pages.append(f"![figure {number}]({image})")
    return "\n\n".join(pages) + "\n"


def run_cells(cells: list[str]) -> None:
    """Runs code in one namespace; writes [output, figures] of each cell to outputs.json, and the figures beside it."""
    import matplotlib.pyplot as plt

    namespace: dict[str, object] = {"__name__": "__main__"}
    found, figures = [], 0
    for source in cells:
        body = ast.parse(source).body
        last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(ast.Module(body, []), "cell", "exec"), namespace)
            if last is not None:
                value = eval(compile(ast.Expression(last.value), "cell", "eval"), namespace)
                if value is not None and not plt.get_fignums():
                    print(repr(value))
        numbers = []
        for number in plt.get_fignums():
            figures += 1
            plt.figure(number).savefig(f"{figures}.png", dpi=100, bbox_inches="tight")
            numbers.append(figures)
        plt.close("all")
        found.append([as_seen(printed.getvalue()), numbers])
    pathlib.Path("outputs.json").write_text(json.dumps(found))


def index() -> str:
    """The gallery: a card for each page, with its first image."""
    cards = []
    for name, example in GALLERY.items():
        page = PAGES / f"{name}.md"
        if not page.exists():
            continue
        image = re.search(r"^!\[.*\]\((.*)\)", page.read_text(), re.MULTILINE)
        top = f":img-top: {image[1]}\n" if image else ""
        cards.append(
            f":::{{grid-item-card}} {example.title}\n:link: {name}\n:link-type: doc\n{top}\n{summary(name)}\n:::"
        )
    names = "\n".join(name for name in GALLERY if (PAGES / f"{name}.md").exists())
    return (
        "# Examples\n\n"
        "Scripts to copy from, each with what it printed when it was last recorded. They lie in `examples/` and run\n"
        "as they stand from the project's folder; `--help` lists what can be changed, and results go to `runs/`.\n\n"
        "::::{grid} 1 2 2 3\n:gutter: 3\n\n" + "\n\n".join(cards) + "\n\n::::\n\n"
        f"```{{toctree}}\n:hidden:\n\n{names}\n```\n"
    )


def summary(name: str) -> str:
    """An example's first sentence."""
    script = EXAMPLES / f"{name}.py"
    if script.exists():
        return (ast.get_docstring(ast.parse(script.read_text())) or "").splitlines()[0]
    cells = json.loads((EXAMPLES / f"{name}.ipynb").read_text())["cells"]
    paragraph = "".join(cells[0]["source"]).split("\n\n")[1].replace("\n", " ")
    return re.split(r"(?<=\.) ", paragraph)[0]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--cells"]:
        run_cells(json.loads(sys.argv[2]))
    else:
        main()
