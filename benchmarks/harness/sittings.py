"""Data and resumable results, as lines of JSON, of benchmarks that consist of many training runs."""

import argparse
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

from idmatters_tf.data import cifar, shapes
from idmatters_tf.data.images import DataError, ImageData
from trainers.run.records import read_objects


def load(options: argparse.Namespace) -> ImageData:
    """Load CIFAR-10 from `--data-dir` or the built-in images; exit with an error message if they are missing."""
    try:
        return cifar.load("cifar10", options.data_dir) if options.dataset == "cifar10" else shapes.load()
    except DataError as error:
        sys.exit(f"error: {error}")


def load_finished(path: pathlib.Path, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Load the rows that earlier runs with the same settings wrote; exit with an error message if settings differ."""
    rows = read_objects(path)
    if rows and rows[0]["settings"] != settings:
        sys.exit(f"error: {path} contains runs with other settings: {rows[0]['settings']}. Use another --out.")
    return rows
