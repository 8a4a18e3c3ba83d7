"""MNIST from generated idx files, plain and compressed."""

import gzip
import struct

import numpy as np
import pytest

from idmatters_tf.data import mnist
from idmatters_tf.data.images import DataError

rng = np.random.default_rng(3)
SIZES = {"train": 12, "test": 7}


def idx(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def arrays():
    images = {f"{split}_images": rng.integers(0, 256, (n, 28, 28), dtype=np.uint8) for split, n in SIZES.items()}
    return images | {f"{split}_labels": rng.integers(0, 10, n, dtype=np.uint8) for split, n in SIZES.items()}


def write(folder, arrays, compressed=False, dotted=False):
    folder.mkdir(exist_ok=True)
    for part, array in arrays.items():
        name = mnist.FILES[part].replace("-idx", ".idx") if dotted else mnist.FILES[part]
        (folder / (f"{name}.gz" if compressed else name)).write_bytes(
            gzip.compress(idx(array)) if compressed else idx(array)
        )


@pytest.mark.parametrize(("compressed", "dotted"), [(False, False), (True, True)])
def test_idx_files(tmp_path, arrays, compressed, dotted):
    folder = tmp_path / "mnist"
    write(folder, arrays, compressed, dotted)
    for data_dir in (tmp_path, folder):
        assert mnist.locate(data_dir) == mnist.Location("folder", folder)
    data = mnist.load(tmp_path)
    assert (data.name, data.classes, data.image_shape) == ("mnist", 10, (28, 28, 1))
    for part, array in arrays.items():
        np.testing.assert_array_equal(getattr(data, part).squeeze(), array)
    assert data.train_labels.dtype == np.int32


def test_damaged_files_are_refused(tmp_path, arrays):
    write(tmp_path, arrays)
    path = tmp_path / mnist.FILES["train_images"]
    whole = path.read_bytes()
    for content, message in (
        (whole[:-1], r"entries of shape \(28, 28\), 9,424 bytes.*Received: 9,423 bytes"),
        (b"<html>", r"idx file of unsigned bytes"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=message):
            mnist.load(tmp_path)
    path.unlink()
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(whole)[:-20])
    with pytest.raises(DataError, match="cannot be decompressed"):
        mnist.load(tmp_path)
    with pytest.raises(DataError, match=r"mnist was not found in .*as `data_dir`.$"):
        mnist.load(tmp_path / "nowhere")


def test_data_of_tensorflow_datasets_are_found_and_downloaded(tmp_path, monkeypatch):
    monkeypatch.setattr(mnist._sources, "load_tfds", lambda *arguments: arguments)
    monkeypatch.setattr(mnist, "SERVER", "http://127.0.0.1:9/")
    with pytest.raises(DataError, match=r"127.0.0.1:9/ cannot be reached \(.*refused\). mnist was not found"):
        mnist.load(tmp_path, download=True)
    monkeypatch.setattr(mnist._sources, "require_download", lambda *_: None)
    assert mnist.load(tmp_path, download=True) == ("mnist", None, tmp_path)
    (tmp_path / "mnist" / "3.0.1").mkdir(parents=True)
    (tmp_path / "mnist" / "3.0.1" / "dataset_info.json").touch()
    assert mnist.load(tmp_path) == ("mnist", mnist.Location("tfds", tmp_path), tmp_path)
