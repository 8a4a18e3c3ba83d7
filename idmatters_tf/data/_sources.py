"""Locations of data sets, and loading and downloading through TensorFlow Datasets.

Finding files requires neither TensorFlow nor the network.
"""

import contextlib
import dataclasses
import os
import pathlib
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any, TypeAlias, cast

import numpy as np

from idmatters_tf.data.images import DataError, ImageData

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


def is_prepared(name: str, folder: pathlib.Path) -> bool:
    """Return True if TensorFlow Datasets has prepared a data set in this `data_dir`."""
    return any((folder / name).glob("*/dataset_info.json"))


def load_tfds(name: str, location: Location | None, data_dir: Path | None) -> ImageData:
    """Load a data set of images through TensorFlow Datasets.

    Args:
        name: name of a data set with the splits "train" and "test".
        location: location of the prepared data; None to download and prepare them.
        data_dir: folder for downloaded data, see `data_root`.
    """
    import tensorflow_datasets as tfds

    folder = data_root(data_dir) if location is None else location.path
    tfds.display_progress_bar(location is None)
    arrays = {}
    with as_data_error(name, folder):
        builder = cast(Any, tfds.builder(name, data_dir=str(folder)))
        if location is None:
            builder.download_and_prepare()
        for split in ("train", "test"):
            # The order of the files, so that the order of training depends on the seed only.
            everything = builder.as_dataset(split=split, batch_size=-1, shuffle_files=False)
            arrays[f"{split}_images"] = everything["image"].numpy()
            arrays[f"{split}_labels"] = everything["label"].numpy().astype(np.int32)
    origin = f"TensorFlow Datasets {builder.info.full_name}, {builder.data_dir}"
    return ImageData(name, **arrays, class_names=tuple(builder.info.features["label"].names), origin=origin)


def require_download(
    name: str, data_dir: Path | None, looked_for: str, server: str | None = None, hint: str = ""
) -> None:
    """Raise DataError for a data set that was not found, unless the server for its download answers within seconds.

    TensorFlow Datasets would retry for minutes.

    Args:
        name: name of the data set.
        data_dir: searched folder, or None for the default folder.
        looked_for: description of the files that were searched.
        server: address from which TensorFlow Datasets downloads. None always raises.
        hint: a further sentence that starts with a space.
    """
    root = data_root(data_dir)
    missing = (
        f"{name} was not found in {root}{'' if root.exists() else ', which does not exist'} (looked for {looked_for} "
        f"and a prepared TensorFlow data set {name}/).{hint} Pass the folder that holds one of these as `data_dir`."
    )
    if server is None:
        raise DataError(missing, arguments=("data_dir",))
    try:
        urllib.request.urlopen(urllib.request.Request(server, method="HEAD"), timeout=5).close()
    except urllib.error.HTTPError:
        return
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise DataError(f"{server} cannot be reached ({reason}). {missing}", arguments=("data_dir",)) from error


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
