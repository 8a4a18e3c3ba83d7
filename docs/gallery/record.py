"""Record the output of the examples for the gallery.

    python docs/gallery/record.py [NAME ...] [--folder DIR] [--hardware TEXT]

Each example runs in a separate folder below DIR, with the commands listed in `docs/generator/gallery.py`. Output, date
and versions are written to docs/gallery/NAME.json, images to the same folder. Building the site therefore runs no
example. Without names all examples are recorded, in a few minutes on two CPU cores.
"""

import argparse
import ast
import contextlib
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

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from generator.gallery import EXAMPLES, GALLERY, RECORDED, cells, image_name, source
from idmatters_tf._environment import get_version

ROOT = EXAMPLES.parent
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg", "COLUMNS": "100"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="names of examples without .py (default: all)")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "runs/gallery", help="(default: runs/gallery)")
    parser.add_argument(
        "--hardware", default=f"{os.cpu_count()} cores, {platform.machine()}", help="(default: %(default)s)"
    )
    options = parser.parse_args()
    if unknown := set(options.names) - set(GALLERY):
        parser.error(f"unknown example: {', '.join(sorted(unknown))}. Available: {', '.join(GALLERY)}")
    for name in options.names or GALLERY:
        print(name, flush=True)
        record(name, options.folder.absolute() / name, options.hardware)


def record(name: str, folder: pathlib.Path, hardware: str) -> None:
    """Run an example and save its output and images."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "examples").exists():
        (folder / "examples").symlink_to(EXAMPLES)
    output = run_script(name, folder) if source(name).suffix == ".py" else run_notebook(name, folder)
    recorded = {"date": str(datetime.date.today()), "hardware": hardware, "versions": versions(), **output}
    text = json.dumps(recorded, indent=1, ensure_ascii=False)
    (RECORDED / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")


def versions() -> str:
    """Return the versions of Python and of the numerical packages."""
    names = {"tensorflow": "TensorFlow", "keras": "Keras", "numpy": "NumPy"}
    found = [f"{name} {version}" for package, name in names.items() if (version := get_version(package)) is not None]
    return ", ".join([f"Python {platform.python_version()}", *found])


def run_script(name: str, folder: pathlib.Path) -> dict[str, list[str]]:
    """Run a script with each of its commands and copy its images. Return the lines shown by a terminal."""
    example = GALLERY[name]
    if example.before and not (folder / "runs").exists():
        run([sys.executable, "-m", *example.before.split()], folder)
    shown = []
    for number, words in enumerate(example.commands):
        command = ["python", f"examples/{name}.py", *words.split()]
        output = run([sys.executable, *command[1:]], folder, fails=example.fails and number == 0)
        shown.append(f"$ {' '.join(command)}\n{output}")
    for image in example.images:
        shutil.copy(folder / image, RECORDED / image_name(name, image))
    return {"output": "".join(shown).rstrip().split("\n")}


def run_notebook(name: str, folder: pathlib.Path) -> dict[str, list[dict[str, list]]]:
    """Run the code cells of a notebook in one process and copy the figures. Return output and figures of each cell."""
    code = json.dumps([text for kind, text in cells(source(name)) if kind == "code"])
    run([sys.executable, str(pathlib.Path(__file__)), "--cells", code], folder)
    found = json.loads((folder / "outputs.json").read_text())
    for _, figures in found:
        for number in figures:
            shutil.copy(folder / f"{number}.png", RECORDED / f"{name}-{number}.png")
    return {"cells": [{"output": text.rstrip().splitlines(), "figures": figures} for text, figures in found]}


def run(command: list[str], folder: pathlib.Path, fails: bool = False) -> str:
    """Run a command. Return its standard output as shown by a terminal."""
    done = subprocess.run(command, cwd=folder, env={**os.environ, **QUIET}, capture_output=True, text=True, check=False)
    if bool(done.returncode) != fails:
        raise SystemExit(f"{' '.join(command)} ended with exit code {done.returncode}\n{done.stderr[-3000:]}")
    return as_seen(done.stdout)


def as_seen(output: str) -> str:
    """Return text without colors, overwritten parts of lines and unfinished states of Keras' progress bars."""
    plain = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", output)
    lines = [re.split(r"[\r\b]+", line.rstrip("\r\b "))[-1].rstrip() for line in plain.split("\n")]
    # Keras writes a line for each state if standard output is not a terminal.
    bars = [re.match(r" *(\d+)/(\d+) ━", line) for line in lines]
    unfinished = [bar is not None and bar[1] != bar[2] for bar in bars]
    return "\n".join(line for line, is_unfinished in zip(lines, unfinished, strict=True) if not is_unfinished)


def run_cells(code: list[str]) -> None:
    """Run cells in one namespace. Write [output, figures] of each to outputs.json, and the figures to image files."""
    import matplotlib.pyplot as plt

    namespace: dict[str, object] = {"__name__": "__main__"}
    found, figures = [], 0
    for text in code:
        body = ast.parse(text).body
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


if __name__ == "__main__":
    if sys.argv[1:2] == ["--cells"]:
        run_cells(json.loads(sys.argv[2]))
    else:
        main()
