"""Memorize a table exactly: a CSV file or NumPy arrays in, a Keras model out. Takes seconds on two CPU cores.

    python examples/memorize_your_data.py                               # a small synthetic table
    python examples/memorize_your_data.py --csv FILE [--label COLUMN]   # with a header; the label is the last column
    python examples/memorize_your_data.py --npz FILE                    # arrays `x` (n, d) and `labels` (n,)

Columns of a CSV file contain numbers or text. Each text column is one-hot encoded: one column of zeros and ones for
each of its values, in alphabetical order.
"""

import argparse
import csv
import pathlib

import quiet  # noqa: F401 - TensorFlow's start-up messages stay off the screen

# isort: split
import keras
import numpy as np

from idmatters_tf.expressivity import memorize, verify


def read_csv(path, label):
    """Return features (n, d), class indices (n,) and class names; the label column may contain any text."""
    with open(path, newline="", encoding="utf-8") as stream:
        header, *rows = [row for row in csv.reader(stream) if row]
    if label is not None and label not in header:
        raise SystemExit(f"error: --label {label} is not a column of {path}. Its columns are: {', '.join(header)}")
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise SystemExit(f"error: {path}: row {number} has {len(row)} cells, the header has {len(header)}.")
    target = len(header) - 1 if label is None else header.index(label)
    names, labels = np.unique([row[target] for row in rows], return_inverse=True)
    columns = [
        encode_column(header[column], [row[column] for row in rows])
        for column in range(len(header))
        if column != target
    ]
    return np.concatenate(columns, axis=1), labels, names


def encode_column(name, cells):
    """Return the features of a column: (n, 1) for numbers, (n, categories) with zeros and ones for text."""
    numbers = [parse_number(cell) for cell in cells]
    texts = [cell for cell, number in zip(cells, numbers, strict=True) if number is None]
    if not texts:
        return np.array(numbers)[:, None]
    if len(texts) < len(cells):
        raise SystemExit(
            f"error: column {name} has both numbers and text, such as {texts[0]!r}. Fill in missing numbers, or spell "
            f"categories as text."
        )
    categories, codes = np.unique(cells, return_inverse=True)
    print(f"column {name}: text with {len(categories)} categories, one-hot encoded")
    return np.eye(len(categories))[codes]


def parse_number(cell):
    """Return the number in a cell of a CSV file, or None for text."""
    try:
        return float(cell)
    except ValueError:
        return None


def make_table():
    """Return 500 rows of 4 numbers with random labels of 4 classes."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(500, 4)).round(2), rng.integers(0, 4, 500), np.array(["a", "b", "c", "d"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--csv", metavar="FILE", help="table with a header")
    source.add_argument("--npz", metavar="FILE", help="file with the arrays x and labels")
    parser.add_argument("--label", metavar="COLUMN", help="label column of the CSV file (default: the last)")
    parser.add_argument("--width", type=int, default=16, help="width of the blocks (default: %(default)s)")
    parser.add_argument(
        "--out", type=pathlib.Path, default="runs/memorized.keras", help="file of the model (default: %(default)s)"
    )
    options = parser.parse_args()

    if options.csv:
        x, labels, names = read_csv(options.csv, options.label)
    elif options.npz:
        with np.load(options.npz, allow_pickle=False) as arrays:
            x, labels = arrays["x"], arrays["labels"]
        names = np.arange(labels.max() + 1)
    else:
        x, labels, names = make_table()
    # Standardize the columns, so that none dominates: margins are relative to the norms of the rows.
    mean, deviation = x.mean(axis=0), x.std(axis=0)
    x = (x - mean) / np.where(deviation > 0, deviation, 1)

    try:
        model = memorize(x, labels, width=options.width, order="ridge")
    except ValueError as error:
        raise SystemExit(f"error: {error}") from error
    report = model.report
    print(
        f"{report.rows} rows ({report.distinct_rows} distinct), {report.classes} labels: {report.blocks} blocks of "
        f"width {report.width}, {report.parameters:,} parameters, smallest relative margin {report.smallest_margin:.1e}"
    )

    options.out.parent.mkdir(parents=True, exist_ok=True)
    model.save(options.out)
    loaded = keras.saving.load_model(options.out)
    checked = verify(loaded, x, labels)
    print(f"saved to {options.out} and reloaded: {checked.correct} of {checked.rows} rows right")
    # `predict` rounds the inputs to float32; calling the model does not.
    answers = np.argmax(loaded(x[:3]), axis=1)
    print(
        "the first rows:",
        ", ".join(f"{names[answer]} (label {names[label]})" for answer, label in zip(answers, labels[:3], strict=True)),
    )
    if checked.correct < checked.rows:
        raise SystemExit("error: the network is not exact. Use a larger --width.")


if __name__ == "__main__":
    main()
