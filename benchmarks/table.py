"""Write the results in benchmarks/README.md from the files in benchmarks/results.

python benchmarks/table.py [--check]
"""

import argparse
import ast
import json
import pathlib
import sys
from collections.abc import Iterator

from harness import results

README = pathlib.Path(__file__).with_name("README.md")
BEGIN, END = "<!-- results: python benchmarks/table.py -->", "<!-- end of the results -->"
VERSION_NAMES = {
    "curvlinops-for-pytorch": "curvlinops",
    "grain": "Grain",
    "keras": "Keras",
    "numpy": "NumPy",
    "scipy": "SciPy",
    "tensorflow": "TensorFlow",
    "torch": "PyTorch",
}


def page() -> str:
    """Return the results in Markdown, with a section for each script."""
    paths = sorted(results.FOLDER.glob("*.json"))
    return "\n".join(line for path in paths for line in section(path.stem, json.loads(path.read_text())))


def section(name: str, saved: dict) -> Iterator[str]:
    """Yield the lines of a script's section: its claim, the alternative, and a table for each command."""
    source = pathlib.Path(__file__).with_name(f"{name}.py").read_text()
    claim = (ast.get_docstring(ast.parse(source)) or "").splitlines()[0]
    yield f"### [`{name}.py`]({name}.py)\n"
    yield f"{claim} Compared with {saved['against']}.\n"
    if saved["ratio"]:
        yield f"Ratio: {saved['ratio']}.\n"
    for result in saved["results"]:
        yield f"```\n{result['command']}\n```\n"
        yield from table(result["measurements"])
        yield f"\n{conditions(result)}\n"


def table(measurements: list[dict]) -> Iterator[str]:
    """Yield the lines of a table of measurements, without columns that are empty."""
    columns = {"measurement": [each["name"] for each in measurements]}
    columns["median"] = [value(each) for each in measurements]
    columns["lowest to highest"] = [
        f"{results.plain(each['low'])} to {results.plain(each['high'])}" if "low" in each else ""
        for each in measurements
    ]
    columns["ratio"] = [results.plain(each["ratio"]) if "ratio" in each else "" for each in measurements]
    filled = {name: cells for name, cells in columns.items() if any(cells)}
    yield f"| {' | '.join(filled)} |"
    yield f"|{'---|' * len(filled)}"
    for cells in zip(*filled.values(), strict=True):
        yield f"| {' | '.join(cells)} |"


def value(measurement: dict) -> str:
    """Return the median with its unit, which is not separated from it if it is short."""
    unit = measurement.get("unit", "")
    space = "&nbsp;" if len(unit) <= 2 else " "
    return results.plain(measurement["median"]) + (f"{space}{unit}" if unit else "")


def conditions(result: dict) -> str:
    """Return the notes on a result, its hardware, versions, rounds and date."""
    versions = [
        f"{VERSION_NAMES.get(package, package)} {version}" for package, version in result.get("versions", {}).items()
    ]
    rounds = [f"{result['rounds']} round{'s' if result['rounds'] > 1 else ''}"] if "rounds" in result else []
    load = [result["load"]] if "load" in result else []
    where = ", ".join([result["hardware"], *versions, *rounds, result["date"]])
    return " ".join(filter(None, [result.get("notes"), f"{'; '.join([where, *load])}."]))


def insert_results(text: str) -> str:
    """Return the text of README.md with the results between its two markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"error: {README} lacks the lines {BEGIN} and {END}")
    return f"{before}{begin}\n\n{page()}\n{end}{after}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="exit with an error if the page is out of date; write nothing"
    )
    options = parser.parse_args()
    text = README.read_text()
    expected = insert_results(text)
    if options.check:
        if text != expected:
            sys.exit(f"error: {README} is out of date: run python benchmarks/table.py")
    else:
        README.write_text(expected)


if __name__ == "__main__":
    main()
