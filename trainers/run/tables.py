"""Tables of numbers: driven to their end piece by piece, and written as CSV."""

import csv
import io

from trainers.run.files import write_atomically


def finish(work, progress):
    """Drives a generator that yields once for each piece of work to its end; returns what it returns.

    Args:
        work: a generator; what it yields, if anything, is shown beside the bar.
        progress: a `trainers.run.progress.Progress`.
    """
    while True:
        try:
            note = next(work)
        except StopIteration as end:
            return end.value
        progress.advance()
        progress.show(note or "")


def write_csv(path, rows):
    """Writes dicts with the same keys as a CSV file, beside its place, then renamed."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue())
