"""Comparison of a script with a changed run of itself, and its result."""

import dataclasses
from collections.abc import Callable, Sequence

from idmatters_tf.doctor._causes import Cause, find_cause
from idmatters_tf.doctor._differences import (
    PHASES,
    Difference,
    find_detail,
    find_difference,
    find_generator,
    find_nondeterminism,
    first_offset,
    is_result,
    rank,
    steps_of,
)
from idmatters_tf.doctor._runs import Against, Records, Runner
from idmatters_tf.doctor._summaries import differ, relative_size

# Multiple of the differences of a run with permuted examples that counts as rounding.
MARGIN = 20.0
UNEXAMINED = (
    "values inside of the compiled step, other calls of `fit`, validation, files, and steps after these; attributes of "
    "callbacks that are not plain data"
)
ALSO_UNCHANGED = "the same command without this change differs as well; compare again after the remedy"
BEGAN_AGAIN = "after the restart, the script began at its first step again: nothing was restored"


@dataclasses.dataclass(frozen=True)
class Finding:
    """Result of one comparison.

    Attributes:
        against: the second run, such as "restart" or "workers=2".
        steps: number of steps that were compared.
        repetitions: number of pairs of runs, and `differing`, those that differ.
        difference: the first difference, or None.
        detail: the first part of the step that differs, or None.
        cause: cause and remedy, or None.
        note: what the reader must know about the comparison, or an empty string.
    """

    against: str
    steps: int
    repetitions: int
    differing: int
    difference: Difference | None = None
    detail: Difference | None = None
    cause: Cause | None = None
    note: str = ""

    def __str__(self) -> str:
        lines = [f"{self.against}: {self.steps} steps compared, {self.differing} of {self.repetitions} runs differ"]
        found = self.difference
        if found is None or self.cause is None:
            lines.append("  no difference")
        else:
            further = f" and {found.also} more" if found.also else ""
            lines.append(f"  first difference: step {found.step}, {found.phase}: {found.path}{further}")
            lines.append(f"  size:             {(self.detail or found).size}")
            equal = PHASES[: rank(found.phase)]
            if equal:
                lines.append(f"  equal before it:  {', '.join(equal)}")
            if self.detail is not None:
                lines.append(f"  within the step:  {self.detail.path.replace(':', ' ', 1)}")
            lines += [f"  cause:            {self.cause.text}", f"  remedy:           {self.cause.remedy}"]
        lines += [f"  note:             {self.note}"] if self.note else []
        return "\n".join([*lines, f"  not examined:     {UNEXAMINED}"])

    def as_dict(self) -> dict[str, object]:
        """Return the result as JSON values."""
        return {**dataclasses.asdict(self), "not_examined": UNEXAMINED}


def examine(runner: Runner, against: Against, repetitions: int, show: Callable[[str], None]) -> Finding:
    """Compare a script with a changed run of itself.

    Args:
        runner: see `Runner`.
        against: the second run.
        repetitions: number of second runs if the first of them differs.
        show: function that receives messages about the progress.
    """
    show(f"{against}: first run")
    first = runner.plain(against)
    tolerances = None
    if not against.has_equal_bits:
        show(f"{against}: run with permuted examples, for the size of rounding errors")
        tolerances = _calibrate(first, runner.plain(against, is_reversed=True))
    found: list[tuple[list[Records], Difference | None]] = []
    for number in range(repetitions):
        show(f"{against}: second run {number + 1}")
        second = runner.changed(against)
        each = [find_difference(first, part, first_offset(first, part, against), tolerances) for part in second]
        found.append((second, next((part for part in each if part is not None), None)))
        # A race shows in some repetitions only.
        if number == 1 and all(part is None for _, part in found) and against.kind != "again":
            break
    different = [(second, part) for second, part in found if part is not None]
    seconds = found[0][0]
    compared = min(runner.steps, max(len(steps_of(seconds[0])) - 1, 0))
    note = BEGAN_AGAIN if against.is_killed and not first_offset(first, seconds[0], against) else ""
    generator = find_generator(first, [second[0] for second, _ in found], against) if not different else None
    if generator is not None:
        different = [(second, generator) for second, _ in found]
    if not different:
        return Finding(str(against), compared, len(found), 0, note=note)
    second, difference = min(different, key=lambda pair: (pair[1].step, rank(pair[1].phase)))
    if against.kind != "again":
        show(f"{against}: the first run again")
        same = runner.plain(against)
        plain = find_difference(first, same, 0, tolerances)
        if plain is not None and (plain.step, rank(plain.phase)) <= (difference.step, rank(difference.phase)):
            cause = find_cause(plain, None, None, (first, same), Against("again"), False)
            return Finding(str(against), compared, len(found), len(different), plain, None, cause, ALSO_UNCHANGED)
    detail = noise = None
    at = _step_to_repeat(difference, first)
    is_race = len(different) < len(found)
    if difference.phase == "batch" and str(against) == "again" and not is_race:
        show(f"{against}: two runs with one thread for the data")
        batches = [runner.plain(is_serial=True).get((difference.step, "batch"), {}) for _ in range(2)]
        is_race = not any(differ(batches[0].get(name), batches[1].get(name)) for name in batches[0])
    if at is not None:
        show(f"{against}: step {at[0]} again, with layers and gradients")
        again = runner.plain(against, detail=at[0]), runner.changed(against, detail=at[1])[0]
        noise = find_nondeterminism(again[0], at[0]) if against.kind != "replicas" else None
        detail = None if noise is not None else find_detail(*again, *at, against)
    cause = find_cause(difference, detail, noise, (first, second[0]), against, is_race)
    return Finding(str(against), compared, len(found), len(different), difference, detail or noise, cause, note)


def _step_to_repeat(difference: Difference, first: Records) -> tuple[int, int] | None:
    """Return the steps, in both runs, that computed a difference from equal states and batches."""
    if difference.phase in ("logs", "attributes"):
        return difference.step, difference.other_step
    is_computed = is_result(difference, first)
    return (difference.step - 1, difference.other_step - 1) if is_computed else None


def _calibrate(first: Records, permuted: Records) -> dict[tuple[int, str], float]:
    """Return tolerances by step and phase: a multiple of the differences between two orders of the same sums."""
    tolerances: dict[tuple[int, str], float] = {}
    for key, rows in first.items():
        pairs = [(row, permuted.get(key, {}).get(path)) for path, row in rows.items() if row.get("sample")]
        sizes = [relative_size(row, other) for row, other in pairs if other is not None and other.get("sample")]
        tolerances[key] = MARGIN * max((size for size in sizes if size < 1), default=0.0)
    return tolerances


def exit_code(findings: Sequence[Finding]) -> int:
    """Return 1 if a comparison has found a difference, otherwise 0."""
    return int(any(finding.difference is not None for finding in findings))
