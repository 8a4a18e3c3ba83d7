"""Locations of data sets. Finding files requires neither TensorFlow nor the network."""

import contextlib
import os
import pathlib
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from idmatters_tf.data.images import DataError

Path: TypeAlias = str | os.PathLike[str]


class Location(NamedTuple):
    """Path and kind of a data set that was found. The kind "tfds" is one prepared by TensorFlow Datasets."""

    kind: str
    path: pathlib.Path


def data_root(data_dir: Path | None) -> pathlib.Path:
    """Return the folder to search: `data_dir`, or for None `$TFDS_DATA_DIR`, or else `~/tensorflow_datasets`."""
    if data_dir is None:
        data_dir = os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    return pathlib.Path(data_dir).expanduser()


def is_prepared(name: str, folder: pathlib.Path) -> bool:
    """Return True if TensorFlow Datasets has prepared a data set in this `data_dir`."""
    return any((folder / name).glob("*/dataset_info.json"))


@contextlib.contextmanager
def as_data_error(name: str, data_dir: Path) -> Iterator[None]:
    """Convert errors of TensorFlow Datasets, which has no class for invalid files, to `DataError`."""
    try:
        yield
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), "")
        raise DataError(
            f"TensorFlow Datasets cannot prepare or read {name} in {data_dir} ({type(error).__name__}: {reason}). If "
            f"its files are damaged, remove them and prepare the data set again.",
            arguments=("data_dir",),
        ) from error
