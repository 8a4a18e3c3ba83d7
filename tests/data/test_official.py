"""Images in memory: CIFAR and MNIST from generated files and TensorFlow Datasets, and the built-in shapes."""

import dataclasses
import gzip
import re

import numpy as np
import pytest

from idmatters_tf.data import official, shapes
from idmatters_tf.data.images import DataError

rng = np.random.default_rng(5)
OFFICIAL = official.DATA_SETS
NAMES = {"cifar10": [f"class{label}" for label in range(10)], "cifar100": [f"class{label}" for label in range(100)]}


@pytest.fixture(autouse=True)
def few_records(monkeypatch):
    """Expect files of 10 records in the official layout."""
    few = {
        name: dataclasses.replace(known, files=tuple(dataclasses.replace(file, records=10) for file in known.files))
        for name, known in OFFICIAL.items()
    }
    monkeypatch.setattr(official, "DATA_SETS", few)


def write_files(folder, name, count=10):
    """Write random files in the official layout. Return the records by file."""
    folder.mkdir()
    tables = {}
    for file in official.DATA_SETS[name].files:
        table = rng.integers(0, 256, (count, file.record_bytes), dtype=np.uint8)
        if file.labels:
            table[:, 0] = rng.integers(0, 10, count)
            table[:, file.labels - 1] = rng.integers(0, len(NAMES.get(name, range(10))), count)
        (folder / file.name).write_bytes(file.header + table.tobytes())
        tables[file.name] = table
    if name in NAMES:
        (folder / OFFICIAL[name].names).write_text("\n".join(NAMES[name]) + "\n\n")
    return tables


def write_cifar(parent, name, count=10):
    """Write files in a folder of the official name. Return the folder and the records by file."""
    folder = parent / OFFICIAL[name].folder
    return folder, write_files(folder, name, count)


def test_binary_folder(tmp_path):
    folder, tables = write_cifar(tmp_path, "cifar10")
    for data_dir in (tmp_path, folder, tmp_path.parent):
        assert official.locate("cifar10", data_dir) == official.Location("folder", folder)
    data = official.load("cifar10", tmp_path)
    assert data.train_images.shape == (50, 32, 32, 3)
    assert data.test_images.shape == (10, 32, 32, 3)
    # Record 3 of the second file: red, green, blue planes, row by row.
    record = tables["data_batch_2.bin"][3]
    assert data.train_labels[13] == record[0]
    for channel, row, col in [(0, 0, 0), (1, 2, 30), (2, 31, 31)]:
        assert data.train_images[13, row, col, channel] == record[1 + 1024 * channel + 32 * row + col]
    assert data.class_names == tuple(NAMES["cifar10"])
    assert data.digest() != data.first(train=49).digest()
    sizes = {len(file.header) + file.records * file.record_bytes for known in OFFICIAL.values() for file in known.files}
    assert sizes == {30_730_000, 153_700_000, 30_740_000, 47_040_016, 60_008, 7_840_016, 10_008}


def test_cifar100_takes_the_fine_label(tmp_path):
    _, tables = write_cifar(tmp_path, "cifar100")
    data = official.load("cifar100", tmp_path)
    train = tables["train.bin"]
    assert data.classes == 100
    np.testing.assert_array_equal(data.train_labels, train[:, 1])
    assert data.train_images[7, 0, 1, 0] == train[7, 2 + 1]
    assert data.class_names == tuple(NAMES["cifar100"])


def test_damaged_and_missing_files_raise(tmp_path):
    with pytest.raises(DataError, match=r"pickles, is not supported: download cifar-10-binary.tar.gz and unpack"):
        official.load("cifar10", tmp_path)
    with pytest.raises(DataError, match=f"not found in {tmp_path}/nowhere, which does not exist"):
        official.load("cifar10", tmp_path / "nowhere")
    folder, _ = write_cifar(tmp_path, "cifar10")
    path = folder / "data_batch_3.bin"
    whole = path.read_bytes()
    for content, message in (
        (whole[:-1], r"data_batch_3.bin must have 30,730 bytes \(10 records of 3073\). Received: 30,729"),
        (whole[: 3073 * 5] + b"\x0a" + whole[3073 * 5 + 1 :], r"train labels must be in 0..9. Received: 0..10"),
        (None, r"data_batch_3.bin cannot be read: .*No such file"),
    ):
        path.unlink() if content is None else path.write_bytes(content)
        with pytest.raises(DataError, match=message):
            official.load("cifar10", tmp_path)
    path.write_bytes(whole)
    (folder / "batches.meta.txt").unlink()
    with pytest.raises(DataError, match=r"batches.meta.txt cannot be read: .*Download it again"):
        official.load("cifar10", tmp_path)


def test_tensorflow_datasets(tmp_path):
    """Use small files in the official layout, prepared by the builder of TensorFlow Datasets."""
    import tensorflow_datasets as tfds

    _, tables = write_cifar(tmp_path, "cifar10", 4)

    class LocalFiles:
        @staticmethod
        def download_and_extract(_url):
            return str(tmp_path)

    prepared = tmp_path / "prepared"
    builder = tfds.builder("cifar10", data_dir=prepared)
    generators = type(builder)._split_generators
    builder._split_generators = lambda _manager: generators(builder, LocalFiles)
    builder.download_and_prepare()

    assert official.locate("cifar10", prepared) == official.Location("tfds", prepared)
    assert official.locate("cifar100", prepared) is None
    data = official.load("cifar10", prepared)
    assert data.train_images.shape == (20, 32, 32, 3)
    expected = {record[1:].tobytes(): record[0] for record in tables["test_batch.bin"]}
    images = (image.transpose(2, 0, 1).tobytes() for image in data.test_images)
    assert dict(zip(images, data.test_labels, strict=True)) == expected
    assert data.class_names == tuple(NAMES["cifar10"])
    (info,) = (prepared / "cifar10").glob("*/dataset_info.json")
    info.write_text("garbage")
    with pytest.raises(DataError, match=f"cannot prepare or read cifar10 in {prepared} .* remove them"):
        official.load("cifar10", prepared)


@pytest.mark.parametrize("compressed", [False, True])
def test_idx_files(tmp_path, compressed):
    folder = tmp_path / "digits"
    tables = write_files(folder, "mnist")
    for path in list(folder.iterdir()):
        if compressed:
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    for data_dir in (tmp_path, folder):
        assert official.locate("mnist", data_dir) == official.Location("folder", folder)
    data = official.load("mnist", tmp_path)
    assert (data.name, data.classes, data.image_shape) == ("mnist", 10, (28, 28, 1))
    np.testing.assert_array_equal(data.train_images.reshape(10, -1), tables["train-images-idx3-ubyte"])
    np.testing.assert_array_equal(data.test_labels, tables["t10k-labels-idx1-ubyte"][:, 0])
    assert data.train_labels.dtype == np.int32


def test_damaged_idx_files_raise(tmp_path):
    write_files(tmp_path / "digits", "mnist")
    path = tmp_path / "digits" / "train-images-idx3-ubyte"
    whole = path.read_bytes()
    expected = r"train-images-idx3-ubyte must have 7,856 bytes \(10 records of 784 after the header of an idx file"
    for content, received in ((whole[:-1], "7,855"), (b"<html>", "6"), (b"1" + whole[1:], "7,856")):
        path.write_bytes(content)
        with pytest.raises(DataError, match=f"{expected}.*Received: {received} bytes"):
            official.load("mnist", tmp_path)
    path.unlink()
    with pytest.raises(DataError, match="train-images-idx3-ubyte cannot be read: .*No such file"):
        official.load("mnist", tmp_path)
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(whole)[:-20])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte.gz cannot be read"):
        official.load("mnist", tmp_path)


@pytest.mark.parametrize("name", OFFICIAL)
def test_missing_data_are_named(tmp_path, name):
    with pytest.raises(DataError, match=rf"^{name} was not found in .*as `data_dir`.$") as raised:
        official.load(name, tmp_path)
    assert raised.value.arguments == ("data_dir", "download")


def test_shapes_are_a_function_of_the_seed():
    data, again, other = shapes.load(30, 20), shapes.load(30, 20), shapes.load(30, 20, seed=1)
    assert data.digest() == again.digest() != other.digest()
    assert data.train_images.shape == (30, 32, 32, 3)
    np.testing.assert_array_equal(np.bincount(data.train_labels), 3)
    assert not np.array_equal(data.train_images[:20], data.test_images)
    with pytest.raises(ValueError, match="Argument `train` must be a positive integer"):
        shapes.load(0)


def test_held_out_images():
    data = shapes.load(train=50, test=20)
    held_out = data.hold_out(15)
    np.testing.assert_array_equal(held_out.train_images, data.train_images[:35])
    np.testing.assert_array_equal(held_out.test_images, data.train_images[35:])
    np.testing.assert_array_equal(held_out.test_labels, data.train_labels[35:])
    with pytest.raises(DataError, match="`count`"):
        data.hold_out(50)
    message = re.escape("train images must be a non-empty uint8 array (n, rows, cols, channels). Received: float64")
    with pytest.raises(DataError, match=message):
        dataclasses.replace(data, train_images=data.train_images / 255)
