"""Where data sets are looked for, and how TensorFlow Datasets gives or downloads them.

Finding files needs neither TensorFlow nor the network, so a program can say at once what is missing.
"""

import contextlib
import dataclasses
import os
import pathlib
import socket
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any, TypeAlias, cast

import numpy as np

from idmatters_tf.data.images import DataError, DataNotFound, ImageData

Path: TypeAlias = str | os.PathLike[str]


@dataclasses.dataclass(frozen=True)
class Location:
    """Where a data set was found: `kind` says as what ("tfds": prepared by TensorFlow Datasets)."""

    kind: str
    path: pathlib.Path


def default_data_dir() -> pathlib.Path:
    """The folder in which TensorFlow Datasets keeps its data: `$TFDS_DATA_DIR`, else `~/tensorflow_datasets`."""
    return pathlib.Path(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()


def data_root(data_dir: Path | None) -> pathlib.Path:
    """The folder to search: `data_dir`, or the default one for None."""
    return default_data_dir() if data_dir is None else pathlib.Path(data_dir).expanduser()


def folders(root: pathlib.Path) -> tuple[pathlib.Path, ...]:
    """A folder and those directly in it, the order of search; empty where there is no such folder."""
    return (root, *sorted(entry for entry in root.iterdir() if entry.is_dir())) if root.is_dir() else ()


def prepared_in(name: str, folder: pathlib.Path) -> pathlib.Path | None:
    """The `data_dir` in which TensorFlow Datasets has prepared the data set `name`, or None.

    Args:
        name: of the data set.
        folder: the `data_dir` itself, or in it the folder of the data set or of one of its versions.
    """
    for candidate in (folder, folder.parent, folder.parent.parent):
        versions = (candidate / name).glob("*/dataset_info.json")
        # Above the given folder only what leads down to it.
        if any(folder in (candidate, path.parent, path.parent.parent) for path in versions):
            return candidate
    return None


def load_tfds(name: str, data_dir: Path, download: bool) -> ImageData:
    """Loads a data set of images through TensorFlow Datasets.

    Args:
        name: of the data set there, with the splits "train" and "test".
        data_dir: its folder.
        download: whether to download and prepare what is not there.

    Returns:
        An `ImageData`.
    """
    import tensorflow_datasets as tfds

    tfds.display_progress_bar(download)
    splits = {}
    with explained(name, data_dir):
        builder = cast(Any, tfds.builder(name, data_dir=str(data_dir)))
        if download:
            builder.download_and_prepare()
        for split in ("train", "test"):
            # In the files' own order, so that the order of training depends on the seed alone.
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
def explained(name: str, data_dir: Path) -> Iterator[None]:
    """Makes a `DataError` of what TensorFlow Datasets raises in the block: it has no error of its own for bad files."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), "")
        raise DataError(
            f"TensorFlow Datasets cannot prepare or read {name} in {data_dir} ({type(error).__name__}: {reason}). If "
            f"its files are damaged, remove them, and prepare the data set again.",
            arguments=("data_dir",),
        ) from error


def server_answers(address: tuple[str, int], timeout: float = 1.0) -> bool:
    """Whether a server, or the proxy in front of it, accepts a connection in time, name look-up included.

    TensorFlow Datasets itself gives up only after minutes of retries.

    Args:
        address: (host, port).
        timeout: in seconds.
    """
    host, port = address
    proxy = urllib.request.getproxies().get("https")
    if proxy:
        parsed = urllib.parse.urlsplit(proxy if "//" in proxy else f"//{proxy}")
        host, port = parsed.hostname, parsed.port or 80
    answered = threading.Event()

    def connect():
        try:
            socket.create_connection((host, port), timeout=timeout).close()
        except OSError:
            return
        answered.set()

    # In a thread, for a name look-up has no time-out of its own.
    attempt = threading.Thread(target=connect, daemon=True)
    attempt.start()
    attempt.join(timeout)
    return answered.is_set()


def not_found(
    name: str, data_dir: Path | None, looked_for: str, silent_server: str | None = None, hint: str = ""
) -> DataNotFound:
    """The error that says that a data set was not found, and what to do.

    Args:
        name, data_dir: the data set and the folder that was searched; None is the default one.
        looked_for: the files that would have been read, in words.
        silent_server: the host that did not answer when a download was asked for, or None.
        hint: one more sentence, beginning with a space.
    """
    root = data_root(data_dir)
    tried = f", and {silent_server} does not answer, so it cannot be downloaded now" if silent_server else ""
    missing = "" if root.exists() else ", which does not exist"
    return DataNotFound(
        f"{name} was not found in {root}{missing} (looked for {looked_for} and a prepared TensorFlow data set "
        f"{name}/){tried}.{hint} Pass the folder that holds one of these as `data_dir`.",
        arguments=("data_dir",),
    )
