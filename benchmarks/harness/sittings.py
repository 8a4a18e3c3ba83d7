"""Benchmarks of many trainings that go on after a stop: their data, and their results as lines of JSON."""

import argparse
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

from idmatters_tf.data import cifar, shapes
from idmatters_tf.data.images import DataError, ImageData
from trainers.run.records import objects


def load(options: argparse.Namespace) -> ImageData:
    """CIFAR-10 from `--data-dir`, or the built-in images; ends the program with a sentence where they are missing."""
    try:
        return cifar.load("cifar10", options.data_dir) if options.dataset == "cifar10" else shapes.load()
    except DataError as error:
        sys.exit(f"error: {error}")


def finished(path: pathlib.Path, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of an earlier sitting with the same settings; ends the program with a sentence where they differ."""
    rows = objects(path)
    if rows and rows[0]["settings"] != settings:
        sys.exit(f"error: {path} holds runs with other settings: {rows[0]['settings']}. Give another --out.")
    return rows
