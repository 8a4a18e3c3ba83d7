"""How many faults were tried and survived: of one trial, of a whole journal, and as a table."""

import dataclasses
import json
import pathlib
from collections.abc import Iterable

# Between the name of a fault and a detail, over which `table` sums.
DETAIL = " | "


@dataclasses.dataclass
class Tally:
    """What came of some faults.

    Attributes:
        rows: (tried, survived) by the name of the fault.
        failures: a text for each thing that was not as it should be.
        notes: what was measured besides.
        cpu_seconds: what it cost.
    """

    rows: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    failures: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    cpu_seconds: float = 0.0

    def count(self, row: str, tried: int, survived: int, failure: str = "") -> None:
        """Adds faults of one kind, and what went wrong where not all were survived."""
        before = self.rows.get(row, (0, 0))
        self.rows[row] = (before[0] + tried, before[1] + survived)
        if survived < tried:
            self.failures.append(f"{row}: {failure}")

    def add(self, other: "Tally") -> None:
        """Adds all of another one."""
        for row, (tried, survived) in other.rows.items():
            before = self.rows.get(row, (0, 0))
            self.rows[row] = (before[0] + tried, before[1] + survived)
        self.failures += other.failures
        self.notes += other.notes
        self.cpu_seconds += other.cpu_seconds

    @property
    def tried(self) -> int:
        return sum(tried for tried, _ in self.rows.values())

    @property
    def survived(self) -> int:
        return sum(survived for _, survived in self.rows.values())


class Journal:
    """The trials that are done, one line of JSON each: what was interrupted goes on with the next one.

    Args:
        path: a file, which may exist.
    """

    def __init__(self, path: pathlib.Path):
        self.path = path
        self._done: dict[tuple[str, int], Tally] = {}
        # A line that was cut off by a kill is a trial that is made again.
        lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
        for line in lines:
            values = json.loads(line)
            rows = {row: (tried, survived) for row, (tried, survived) in values.pop("rows").items()}
            trial = values.pop("kind"), values.pop("number")
            self._done[trial] = Tally(rows, **values)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def find(self, kind: str, number: int) -> Tally | None:
        """A trial that is done, or None."""
        return self._done.get((kind, number))

    def add(self, kind: str, number: int, tally: Tally) -> None:
        """Notes a trial."""
        self._done[kind, number] = tally
        with open(self.path, "a", encoding="utf-8") as stream:
            stream.write(json.dumps({"kind": kind, "number": number, **dataclasses.asdict(tally)}) + "\n")

    def total(self, kinds: Iterable[str]) -> Tally:
        """All trials of some kinds, in their order."""
        total = Tally()
        for kind in kinds:
            for each, number in sorted(self._done):
                if each == kind:
                    total.add(self._done[each, number])
        return total


def table(tally: Tally) -> str:
    """Return the rows as a Markdown table, those that differ in a detail as one."""
    total = Tally()
    for row, (tried, survived) in tally.rows.items():
        total.add(Tally({row.partition(DETAIL)[0]: (tried, survived)}))
    lines = ["| fault | tried | survived |", "|---|---|---|"]
    return "\n".join(
        [*lines, *(f"| {row} | {tried:,} | {survived:,} |" for row, (tried, survived) in total.rows.items())]
    )
