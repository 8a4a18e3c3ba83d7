"""First difference between the records of two runs."""

import dataclasses
from collections.abc import Mapping, Sequence

from idmatters_tf.doctor._runs import Against, Records
from idmatters_tf.doctor._summaries import Summary, constant_ratio, describe_size, differ, is_rounding

# Parts of the state before a step, in the order in which one determines the next, then the step.
PHASES = ("weights", "optimizer", "state", "generators", "callbacks", "attributes", "batch", "logs")
DETAIL = "detail"


@dataclasses.dataclass(frozen=True)
class Difference:
    """The first record that differs.

    Attributes:
        step: step in the first run, from 1 on.
        other_step: step in the second run.
        phase, path: the record.
        summaries: of both runs; None if a run lacks it.
        also: number of further records of the phase that differ at this step.
        phases: all phases that differ at this step.
        size: kind and size as a phrase.
    """

    step: int
    other_step: int
    phase: str
    path: str
    summaries: tuple[Summary | None, Summary | None]
    also: int
    phases: tuple[str, ...]
    size: str

    @property
    def ratio(self) -> float | None:
        """Exact factor between the values, if there is one."""
        first, second = self.summaries
        return None if first is None or second is None else constant_ratio(first, second)

    @property
    def is_rounding(self) -> bool:
        """True if the difference has the size of rounding errors."""
        first, second = self.summaries
        return first is not None and second is not None and "sample" in first and is_rounding(first, second)


def rank(phase: str) -> int:
    """Return the index of a phase in `PHASES`, or their number for others."""
    return PHASES.index(phase) if phase in PHASES else len(PHASES)


def is_result(difference: Difference, first: Records) -> bool:
    """Return True if the step before has computed what differs, False if it was there before.

    A model that its first step builds has no weights before it.
    """
    is_computed = difference.phase in ("weights", "optimizer", "state") and difference.other_step > 1
    return is_computed and (difference.step - 1, "weights") in first


def steps_of(records: Records) -> list[int]:
    """Return the recorded steps, those with a state."""
    return sorted({step for step, phase in records if phase == "weights"})


def first_offset(first: Records, second: Records, against: Against) -> int:
    """Return the step of the first run, minus one, that corresponds to the first step of the second run."""
    if not against.is_killed:
        return 0
    # The optimizer counts its steps. If it was not restored, either nothing was, or the script saves other parts.
    counts = {step: _iteration(first, step) for step in steps_of(first)}
    count = _iteration(second, 1)
    beginning = first.get((1, "weights"), {}), second.get((1, "weights"), {})
    if count is None or not differ(count, counts.get(1)):
        if all(not differ(row, beginning[1].get(path)) for path, row in beginning[0].items()):
            return 0
    else:
        same = [step for step, each in counts.items() if not differ(each, count)]
        return same[0] - 1 if same else 0
    if against.kind == "resume":
        return against.number
    epochs = [step for step in counts if first[step, "epoch"]["index"]["digest"] == "1"]
    return epochs[0] - 1 if epochs else 0


def _iteration(records: Records, step: int) -> Summary | None:
    rows = records.get((step, "optimizer"), {}).values()
    return next((row for row in rows if row["name"].endswith("iteration")), None)


def find_difference(
    first: Records, second: Records, offset: int = 0, tolerances: dict[tuple[int, str], float] | None = None
) -> Difference | None:
    """Return the first difference between two runs, or None.

    Args:
        first: records of the first run.
        second: records of the second run.
        offset: see `first_offset`.
        tolerances: relative tolerance by step and phase, for runs that may differ by rounding; None for equal bits.
    """
    for other in steps_of(second):
        step = other + offset
        if (step, "weights") not in first:
            continue
        # Before the last state, only batches that are read ahead were recorded.
        phases = PHASES if other < max(steps_of(second)) else PHASES[: rank("batch")]
        rows = {phase: _differing(first, second, (step, other), phase, tolerances) for phase in phases}
        differing = [phase for phase in phases if rows[phase]]
        if differing:
            phase = differing[0]
            key = rows[phase][0]
            pair = first.get((step, phase), {}).get(key), second.get((other, phase), {}).get(key)
            path = str((pair[0] or pair[1] or {}).get("name"))
            also = len(rows[phase]) - 1
            return Difference(step, other, phase, path, pair, also, tuple(differing), describe_size(*pair))
    return None


def find_generator(first: Records, seconds: Sequence[Records], against: Against) -> Difference | None:
    """Return a global generator that all second runs leave in one state, and the first run in another.

    A generator without a seed, and one from which a thread draws ahead of the steps, differs in all runs. It matters
    only where something else differs.
    """
    other = max(steps_of(seconds[0]))
    step = other + first_offset(first, seconds[0], against)
    rows = [records.get((other, "global generators"), {}) for records in seconds]
    for name, before in first.get((step, "global generators"), {}).items():
        after = [row.get(name) for row in rows]
        if len(after) > 1 and differ(before, after[0]) and not any(differ(after[0], each) for each in after[1:]):
            pair = before, after[0]
            return Difference(step, other, "global generators", name, pair, 0, ("global generators",), "another state")
    return None


def find_detail(first: Records, second: Records, step: int, other: int, against: Against) -> Difference | None:
    """Return the first layer output, loss or gradient that differs between two eager executions of a step.

    For several replicas it is the gradient whose sum over the replicas differs by more than rounding.
    """
    rows = first.get((step, DETAIL), {}), second.get((other, DETAIL), {})
    if against.kind != "replicas":
        return _first_in_order(*rows, step, other)
    one, several = (_sum_gradients(row) for row in rows)
    for name, summary in one.items():
        if name in several and not is_rounding(summary, several[name]):
            pair = summary, several[name]
            return Difference(step, other, DETAIL, name, pair, 0, (DETAIL,), describe_size(*pair))
    return None


def _sum_gradients(rows: Mapping[str, Summary]) -> Summary:
    """Return the sums of the sampled entries of gradients over the replicas, by path."""
    sums: Summary = {}
    for row in rows.values():
        name = row["name"].partition(" (call ")[0]
        if name.startswith("gradient:"):
            before = sums.get(name, {}).get("sample", [0.0] * len(row["sample"]))
            added = [a + b for a, b in zip(before, row["sample"], strict=True)]
            sums[name] = {**row, "sample": added, "digest": ""}
    return sums


def find_nondeterminism(records: Records, step: int) -> Difference | None:
    """Return the first part of a step that differs between its two executions in one process."""
    return _first_in_order(records.get((step, DETAIL), {}), records.get((step, "repetition"), {}), step, step)


def _first_in_order(a: Mapping[str, Summary], b: Mapping[str, Summary], step: int, other: int) -> Difference | None:
    for key in sorted({*a, *b}, key=int):
        pair = a.get(key), b.get(key)
        if differ(*pair):
            name = str((pair[0] or pair[1] or {}).get("name"))
            return Difference(step, other, DETAIL, name, pair, 0, (DETAIL,), describe_size(*pair))
    return None


def _differing(
    first: Records, second: Records, steps: tuple[int, int], phase: str, tolerances: dict[tuple[int, str], float] | None
) -> list[str]:
    """Return the paths of a phase that differ, in the order of the first run."""
    a, b = first.get((steps[0], phase), {}), second.get((steps[1], phase), {})
    found = []
    for path in [*a, *(name for name in b if name not in a)]:
        one, other = a.get(path), b.get(path)
        if not differ(one, other):
            continue
        if one is None or other is None:
            # What one of the runs lacks is derived, such as attributes that a callback sets at its first event.
            if phase not in ("callbacks", "attributes"):
                found.append(path)
        elif tolerances is None or not (
            one.get("sample") and is_rounding(one, other, tolerances.get((steps[0], phase), 0.0))
        ):
            found.append(path)
    return found
