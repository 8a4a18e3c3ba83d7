"""Write the table of benchmarks/README.md from the files in benchmarks/results.

python benchmarks/table.py [--check]
"""

import argparse
import json
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


def row(name: str, saved: dict, result: dict) -> str:
    """Return the table row of one result in a file of results."""
    lines = [*map(results.describe, result["measurements"]), result.get("notes")]
    options = result["command"].removeprefix(f"python benchmarks/{name}.py").strip()
    command = f"[`{name}.py`]({name}.py)" + (f" `{options}`" if options else "")
    versions = [
        f"{VERSION_NAMES.get(package, package)} {version}" for package, version in result.get("versions", {}).items()
    ]
    rounds = [f"{result['rounds']} round{'s' if result['rounds'] > 1 else ''}"] if "rounds" in result else []
    where = ", ".join([result["hardware"], *versions, *rounds, result["date"]])
    where += f"; {result['load']}" if "load" in result else ""
    compared = saved["against"] + (f".<br>Ratio: {saved['ratio']}" if saved["ratio"] else "")
    return f"| {command} | {compared} | {'<br>'.join(filter(None, lines))} | {where} |\n"


def table() -> str:
    """Return the table in Markdown."""
    text = "| benchmark | compared with | last result: median (lowest to highest) | measured on |\n|---|---|---|---|\n"
    for path in sorted(results.FOLDER.glob("*.json")):
        saved = json.loads(path.read_text())
        text += "".join(row(path.stem, saved, result) for result in saved["results"])
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
