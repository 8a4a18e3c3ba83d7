"""Counts of faults tried and survived: of one trial, of a journal, and as a table."""

import dataclasses
import json
import pathlib
from collections.abc import Iterable

# Separates the name of a fault from a detail. `table` sums over the details.
DETAIL = " | "


@dataclasses.dataclass
class Tally:
    """Results of some faults.

    Attributes:
        rows: (tried, survived) by the name of the fault.
        failures: a description of each failure.
        notes: additional measurements.
        cpu_seconds: CPU time in seconds.
    """

    rows: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    failures: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    cpu_seconds: float = 0.0

    def count(self, row: str, tried: int, survived: int, failure: str = "") -> None:
        """Add faults of one kind, with a description of the failure if not all were survived."""
        before = self.rows.get(row, (0, 0))
        self.rows[row] = (before[0] + tried, before[1] + survived)
        if survived < tried:
            self.failures.append(f"{row}: {failure}")

    def add(self, other: "Tally") -> None:
        """Add the results of another tally."""
        for row, (tried, survived) in other.rows.items():
            before = self.rows.get(row, (0, 0))
            self.rows[row] = (before[0] + tried, before[1] + survived)
        self.failures += other.failures
        self.notes += other.notes
        self.cpu_seconds += other.cpu_seconds

    @property
    def tried(self) -> int:
        """Number of faults."""
        return sum(tried for tried, _ in self.rows.values())

    @property
    def survived(self) -> int:
        """Number of faults that were survived."""
        return sum(survived for _, survived in self.rows.values())


class Journal:
    """Record of completed trials, one line of JSON each, so that an interrupted program continues with the next one.

    Args:
        path: path of the file. An existing file is read and extended.
    """

    def __init__(self, path: pathlib.Path):
        self.path = path
        self._done: dict[tuple[str, int], Tally] = {}
        # A line that was truncated by a kill is dropped, and its trial is repeated.
        lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
        for line in lines:
            values = json.loads(line)
            rows = {row: (tried, survived) for row, (tried, survived) in values.pop("rows").items()}
            trial = values.pop("kind"), values.pop("number")
            self._done[trial] = Tally(rows, **values)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def find(self, kind: str, number: int) -> Tally | None:
        """Return the result of a completed trial, or None."""
        return self._done.get((kind, number))

    def add(self, kind: str, number: int, tally: Tally) -> None:
        """Record a trial."""
        self._done[kind, number] = tally
        with open(self.path, "a", encoding="utf-8") as stream:
            stream.write(json.dumps({"kind": kind, "number": number, **dataclasses.asdict(tally)}) + "\n")

    def total(self, kinds: Iterable[str]) -> Tally:
        """Return the sum of all trials of the given kinds."""
        total = Tally()
        for kind in kinds:
            for each, number in sorted(self._done):
                if each == kind:
                    total.add(self._done[each, number])
        return total


def table(tally: Tally) -> str:
    """Return the rows as a Markdown table, summed over details."""
    total = Tally()
    for row, (tried, survived) in tally.rows.items():
        total.add(Tally({row.partition(DETAIL)[0]: (tried, survived)}))
    lines = ["| fault | tried | survived |", "|---|---|---|"]
    return "\n".join(
        [*lines, *(f"| {row} | {tried:,} | {survived:,} |" for row, (tried, survived) in total.rows.items())]
    )
