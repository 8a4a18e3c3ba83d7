"""A network that memorises your own table, exactly: a CSV file or NumPy arrays in, a Keras model out.

python examples/memorize_your_data.py                                 a small synthetic table
python examples/memorize_your_data.py --csv FILE [--label COLUMN]     numbers with a header; by default the last column
python examples/memorize_your_data.py --npz FILE                      arrays `x` (n, d) and `labels` (n,)
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
    """Features (n, d), class indices (n,) and class names; the label column may hold any text."""
    with open(path, newline="", encoding="utf-8") as stream:
        header, *rows = [row for row in csv.reader(stream) if row]
    if label is not None and label not in header:
        raise SystemExit(f"--label {label} is not a column of {path}. Its columns are: {', '.join(header)}")
    column = len(header) - 1 if label is None else header.index(label)
    names, labels = np.unique([row[column] for row in rows], return_inverse=True)
    try:
        x = np.array([[float(value) for number, value in enumerate(row) if number != column] for row in rows])
    except ValueError as error:
        raise SystemExit(f"{path}: every column but the label's must hold numbers, in each row: {error}") from error
    return x, labels, names


def synthetic():
    """500 rows of 4 numbers with random labels of 4 classes."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(500, 4)).round(2), rng.integers(0, 4, 500), np.array(["a", "b", "c", "d"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--csv", metavar="FILE", help="with a header")
    source.add_argument("--npz", metavar="FILE", help="with the arrays x and labels")
    parser.add_argument("--label", metavar="COLUMN", help="of the CSV file (default: the last)")
    parser.add_argument("--width", type=int, default=16, help="k (default: %(default)s)")
    parser.add_argument("--out", type=pathlib.Path, default="runs/memorized.keras", help="(default: %(default)s)")
    options = parser.parse_args()

    if options.csv:
        x, labels, names = read_csv(options.csv, options.label)
    elif options.npz:
        with np.load(options.npz, allow_pickle=False) as arrays:
            x, labels = arrays["x"], arrays["labels"]
        names = np.arange(labels.max() + 1)
    else:
        x, labels, names = synthetic()
    # Standardised columns, so that none dominates: margins are relative to the norms of the rows.
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
    # `predict` would round the inputs to float32; calling the model does not.
    answers = np.argmax(loaded(x[:3]), axis=1)
    print(
        "the first rows:",
        ", ".join(f"{names[answer]} (label {names[label]})" for answer, label in zip(answers, labels[:3], strict=True)),
    )
    if checked.correct < checked.rows:
        raise SystemExit("not exact: use a larger --width")


if __name__ == "__main__":
    main()
