"""Tables of numbers as CSV files."""

import csv
import io
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from idmatters_tf.checkpointing import write_atomically


def write_csv(path: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows with the same keys atomically as a CSV file. None is an empty cell."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue())
