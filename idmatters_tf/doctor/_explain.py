"""Comparisons of scripts in processes of their own, and of functions in this one."""

import pathlib
import tempfile
from collections.abc import Callable, Sequence

from idmatters_tf._arguments import positive_integer
from idmatters_tf.doctor._causes import find_cause
from idmatters_tf.doctor._differences import find_difference, steps_of
from idmatters_tf.doctor._report import Finding, examine
from idmatters_tf.doctor._runs import Against, Runner, read_records


def explain_differences(
    main: str | pathlib.Path | Callable[[], object],
    against: str | Sequence[str] = "again",
    steps: int = 3,
    *,
    arguments: Sequence[str] = (),
    repetitions: int = 5,
    show: Callable[[str], None] = lambda text: None,
) -> list[Finding]:
    """Compare a run of `fit` with changed runs of the same script, and explain the first difference of each.

    Args:
        main: path of a script that calls `fit` of a Keras model, which is run in processes of its own, in copies of
            the working folder, or of the script's if it is elsewhere. Or a function, which is called in this process,
            up to `repetitions` times; then `against` must be "again".
        against: kinds of second runs: "again", "restart" (killed after the first epoch and started again), "resume=N"
            (killed after step N), "workers=N", "replicas=N", "threads=N", "hashseed", "listdir", "folder".
        steps: number of steps to compare. Only the first `fit` is observed.
        arguments: command-line arguments of the script.
        repetitions: number of second runs. A single pair proves nothing.
        show: function that receives messages about the progress.

    Returns:
        A `Finding` for each kind, whose text is the report.

    Raises:
        ValueError: an argument is wrong.
        RuntimeError: the script has failed or does not call `fit`.
    """
    kinds = [Against.parse(word) for word in ([against] if isinstance(against, str) else against)]
    positive_integer("steps", steps)
    positive_integer("repetitions", repetitions)
    if isinstance(main, (str, pathlib.Path)):
        runner = Runner(pathlib.Path(main), arguments, steps)
        if not runner.script.is_file():
            raise ValueError(f"Argument `main` must be the path of a script. Received: {main}, which does not exist.")
        return [examine(runner, kind, repetitions, show) for kind in kinds]
    if [str(kind) for kind in kinds] != ["again"]:
        raise ValueError(
            f"Argument `against` must be 'again' for a function, which is called in this process. Received: "
            f"against={against!r}. Write the function into a script."
        )
    return [_call_again(main, kinds[0], steps, repetitions)]


def _call_again(main: Callable[[], object], against: Against, steps: int, repetitions: int) -> Finding:
    """Compare two or more calls of a function."""
    from idmatters_tf.doctor._recorder import Plan, observed

    with tempfile.TemporaryDirectory(prefix="doctor-") as folder:
        records = []
        for number in range(1 + repetitions):
            path = pathlib.Path(folder) / f"{number}.jsonl"
            with observed(Plan(str(path), steps), lambda: None):
                main()
            records.append(read_records(path))
    found = [find_difference(records[0], other) for other in records[1:]]
    different = [part for part in found if part is not None]
    compared = len(steps_of(records[0])) - 1
    if not different:
        return Finding(str(against), compared, len(found), 0)
    difference = different[0]
    pair = records[0], records[1 + found.index(difference)]
    cause = find_cause(difference, None, None, pair, against, len(different) < len(found))
    return Finding(str(against), compared, len(found), len(different), difference, None, cause)
