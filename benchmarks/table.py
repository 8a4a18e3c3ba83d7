"""Write the table of benchmarks/README.md from the files in benchmarks/results.

python benchmarks/table.py [--check]
"""

import argparse
import pathlib
import sys

from harness import results

README = pathlib.Path(__file__).with_name("README.md")
BEGIN, END = "<!-- table: python benchmarks/table.py -->", "<!-- end of the table -->"
VERSION_NAMES = {
    "curvlinops-for-pytorch": "curvlinops",
    "keras": "Keras",
    "numpy": "NumPy",
    "scipy": "SciPy",
    "tensorflow": "TensorFlow",
    "torch": "PyTorch",
}


def row(name: str, against: str, meaning: str, result: results.Result) -> str:
    """Return the table row of one result."""
    lines = [measurement.sentence() for measurement in result.measurements]
    if result.notes:
        lines.append(result.notes)
    options = result.command.removeprefix(f"python benchmarks/{name}.py").strip()
    command = f"[`{name}.py`]({name}.py)" + (f" `{options}`" if options else "")
    versions = [f"{VERSION_NAMES.get(package, package)} {version}" for package, version in result.versions.items()]
    rounds = [f"{result.rounds} round{'s' if result.rounds > 1 else ''}"] if result.rounds else []
    where = ", ".join([result.hardware, *versions, *rounds, result.date])
    where += f"; {result.load}" if result.load else ""
    compared = against + (f".<br>Ratio: {meaning}" if meaning else "")
    return f"| {command} | {compared} | {'<br>'.join(lines)} | {where} |\n"


def table() -> str:
    """Return the table in Markdown."""
    text = "| benchmark | compared with | last result: median (lowest to highest) | measured on |\n|---|---|---|---|\n"
    for path in sorted(results.FOLDER.glob("*.json")):
        against, meaning, runs = results.load(path.stem)
        text += "".join(row(path.stem, against, meaning, result) for result in runs)
    return text


def insert_table(page: str) -> str:
    """Return the page with the table between its two markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"error: {README} lacks the lines {BEGIN} and {END}")
    return f"{before}{begin}\n\n{table()}\n{end}{after}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="exit with an error if the page is out of date; write nothing"
    )
    options = parser.parse_args()
    page = README.read_text()
    expected = insert_table(page)
    if options.check:
        if page != expected:
            sys.exit(f"error: {README} is out of date: run python benchmarks/table.py")
    else:
        README.write_text(expected)


if __name__ == "__main__":
    main()
