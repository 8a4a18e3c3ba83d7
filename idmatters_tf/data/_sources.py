"""Locations of data sets, and loading and downloading through TensorFlow Datasets.

Finding files requires neither TensorFlow nor the network.
"""

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Iterator
from typing import Any, TypeAlias, cast

import numpy as np

from idmatters_tf.data.images import DataError, DataNotFound, ImageData

Path: TypeAlias = str | os.PathLike[str]


@dataclasses.dataclass(frozen=True)
class Location:
    """Path and kind of a data set that was found. The kind "tfds" is one prepared by TensorFlow Datasets."""

    kind: str
    path: pathlib.Path


def data_root(data_dir: Path | None) -> pathlib.Path:
    """Return the folder to search: `data_dir`, or for None `$TFDS_DATA_DIR`, or else `~/tensorflow_datasets`."""
    if data_dir is None:
        data_dir = os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    return pathlib.Path(data_dir).expanduser()


def folders(root: pathlib.Path) -> tuple[pathlib.Path, ...]:
    """Return a folder and the folders directly below, in order of search, or () if the folder does not exist."""
    return (root, *sorted(entry for entry in root.iterdir() if entry.is_dir())) if root.is_dir() else ()


def prepared_in(name: str, folder: pathlib.Path) -> pathlib.Path | None:
    """Return the `data_dir` in which TensorFlow Datasets has prepared a data set, or None.

    Args:
        name: name of the data set.
        folder: the `data_dir`, or the folder of the data set or of one of its versions in it.
    """
    for candidate in (folder, folder.parent, folder.parent.parent):
        versions = (candidate / name).glob("*/dataset_info.json")
        # Folders above the given one count only if they contain the data set through it.
        if any(folder in (candidate, path.parent, path.parent.parent) for path in versions):
            return candidate
    return None


def load_tfds(name: str, data_dir: Path, download: bool) -> ImageData:
    """Load a data set of images through TensorFlow Datasets.

    Args:
        name: name of a data set with the splits "train" and "test".
        data_dir: folder of TensorFlow Datasets.
        download: True downloads and prepares missing data.
    """
    import tensorflow_datasets as tfds

    tfds.display_progress_bar(download)
    splits = {}
    with as_data_error(name, data_dir):
        builder = cast(Any, tfds.builder(name, data_dir=str(data_dir)))
        if download:
            builder.download_and_prepare()
        for split in ("train", "test"):
            # The order of the files, so that the order of training depends on the seed only.
            everything = builder.as_dataset(split=split, batch_size=-1, shuffle_files=False)
            splits[split] = everything["image"].numpy(), everything["label"].numpy().astype(np.int32)
    return ImageData(
        name=name,
        train_images=splits["train"][0],
        train_labels=splits["train"][1],
        test_images=splits["test"][0],
        test_labels=splits["test"][1],
        class_names=tuple(builder.info.features["label"].names),
        origin=f"TensorFlow Datasets {builder.info.full_name}, {builder.data_dir}",
    )


@contextlib.contextmanager
def as_data_error(name: str, data_dir: Path) -> Iterator[None]:
    """Convert errors of TensorFlow Datasets, which has no class for invalid files, to `DataError`."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), "")
        raise DataError(
            f"TensorFlow Datasets cannot prepare or read {name} in {data_dir} ({type(error).__name__}: {reason}). If "
            f"its files are damaged, remove them and prepare the data set again.",
            arguments=("data_dir",),
        ) from error


def not_found(name: str, data_dir: Path | None, looked_for: str, hint: str = "") -> DataNotFound:
    """Return the error for a data set that was not found.

    Args:
        name: name of the data set.
        data_dir: searched folder, or None for the default folder.
        looked_for: description of the files that were searched.
        hint: a further sentence that starts with a space.
    """
    root = data_root(data_dir)
    missing = "" if root.exists() else ", which does not exist"
    return DataNotFound(
        f"{name} was not found in {root}{missing} (looked for {looked_for} and a prepared TensorFlow data set "
        f"{name}/).{hint} Pass the folder that holds one of these as `data_dir`.",
        arguments=("data_dir",),
    )
