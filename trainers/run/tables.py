"""Tables of numbers, written as CSV."""

import csv
import io
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from idmatters_tf._replacing import write_atomically


def write_csv(path: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes rows with the same keys as a CSV file, entirely or not at all; None is an empty cell."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue())
