"""Tables of the pages on the transfer of rates, from the results of `benchmarks/depth_transfer.py`."""

import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import TypeAlias

import numpy as np

from harness.blocks import OPTIMIZERS

RESULTS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "reference" / "results"
BEGIN, END = "<!-- cases: python benchmarks/depth_transfer.py --page -->", "<!-- end of the cases -->"
BLOCK_ORDER = ("near-identity", "standard", "pre-activation", "convnext", "mlp", "mixer", "pre-norm", "gated")
# Depth of the goals, at which rates are searched for.
SEARCHED = 32
# Numbers of each depth and scale, by block and optimizer.
Cases: TypeAlias = Mapping[tuple[str, str], Mapping[str, Mapping[str, float]]]


def write_pages(folder: pathlib.Path, results: pathlib.Path = RESULTS) -> None:
    """Rewrite the tables of both pages from the results of cases below a folder."""
    found = [json.loads(path.read_text()) for path in sorted(folder.rglob("result.json"))]
    order = [(block, optimizer) for block in BLOCK_ORDER for optimizer in OPTIMIZERS]
    cases = {
        (each["settings"]["block"], each["settings"]["optimizer"]): each["numbers"]
        for each in found
        if each["settings"]["measure"] == "scaling"
    }
    cases = {case: cases[case] for case in order if case in cases}
    for name, lines in (("depth", list_counts(cases)), ("depth_cases", list_cases(cases))):
        page = results / f"{name}.md"
        before, _, rest = page.read_text().partition(BEGIN)
        page.write_text(before + "\n".join([BEGIN, "", *lines, "", END]) + rest.partition(END)[2])


def list_counts(cases: Cases) -> Iterator[str]:
    """Yield the lines of a table with the numbers of cases that reach the goals at depth 32."""
    scales = {"α = 1": "alpha 1", "α = 1/2": "alpha 1/2", "as it is": "unscaled"}
    scales["as it is, rate × √(4 / 32)"] = "square root"
    yield f"| at depth 32, with the rate of depth 4 | {' | '.join(scales)} | goal for α = 1 |"
    yield f"|{'---|' * 6}"
    goals = {
        "at most 5 % of the decrease above the lowest loss over its own rates": "transfers",
        "loss not above that of depth 4": "not_worse",
    }
    for text, goal in goals.items():
        own = [[numbers[f"depth {SEARCHED}, {scale}"] for numbers in cases.values()] for scale in scales.values()]
        counts = [sum(each[goal] for each in column) for column in own]
        yield f"| {text} | {' | '.join(f'{count} of {len(cases)}' for count in counts)} | 20 of 24 |"


def list_cases(cases: Cases) -> Iterator[str]:
    """Yield the lines of a table with the losses of each case."""
    columns = ["blocks", "optimizer", "r", "first loss", "depth 4", "α = 1", "α = 1/2", "as it is"]
    yield f"| {' | '.join([*columns, 'r √(4 / 32)', 'depth 64'])} |"
    yield f"|{'---|' * 10}"
    for (block, optimizer), numbers in cases.items():
        base = numbers["depth 4"]
        cells = [block, optimizer, f"{base['rate']:g}", f"{base['first_loss']:.2f}", f"{base['loss']:.3f}"]
        for scale in ("alpha 1", "alpha 1/2", "unscaled", "square root"):
            own = numbers[f"depth {SEARCHED}, {scale}"]
            text = _plain(own["loss"]) + (f" ({_plain(own['lowest'])})" if "lowest" in own else "")
            text = f"**{text}**" if own["not_worse"] else text
            cells.append(text + ("" if own["transfers"] else " *"))
        deep = [numbers.get(f"depth 64, {scale}") for scale in ("alpha 1", "unscaled")]
        cells.append("; ".join(_plain(own["loss"]) for own in deep if own) or "not measured")
        yield f"| {' | '.join(cells)} |"


def _plain(loss: float) -> str:
    return f"{loss:.3f}" if np.isfinite(loss) else "diverges"
