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


def write(parent, name, count=10):
    """Write random files in the official layout. Return their folder and the records by file."""
    folder = parent / (OFFICIAL[name].folder or "digits")
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
    return folder, tables


@pytest.mark.parametrize(
    ("name", "compressed", "file", "labels"),
    [
        ("cifar10", False, "test_batch.bin", "test_batch.bin"),
        # The coarse label is the first one.
        ("cifar100", False, "test.bin", "test.bin"),
        ("mnist", False, "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
        ("mnist", True, "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
    ],
)
def test_official_files(tmp_path, name, compressed, file, labels):
    folder, tables = write(tmp_path, name)
    for path in list(folder.iterdir()) if compressed else ():
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    for data_dir in (tmp_path, folder, *([tmp_path.parent] if OFFICIAL[name].folder else [])):
        assert official.locate(name, data_dir) == official.Location("folder", folder)
    data = official.load(name, tmp_path)
    pixels, first = tables[file], {"cifar10": 1, "cifar100": 2, "mnist": 0}[name]
    rows, cols, channels = data.image_shape
    # Planes of red, green and blue, row by row.
    for image, channel, row, col in [(0, 0, 0, 0), (3, channels - 1, 2, 7), (9, 0, rows - 1, cols - 1)]:
        assert data.test_images[image, row, col, channel] == pixels[image, first + (channel * rows + row) * cols + col]
    np.testing.assert_array_equal(data.test_labels, tables[labels][:, max(first - 1, 0)])
    assert len(data.train_images) == (50 if name == "cifar10" else 10)
    assert data.class_names == tuple(NAMES.get(name, map(str, range(10))))
    assert (data.name, data.train_labels.dtype) == (name, np.int32)
    assert data.digest() != data.first(train=9).digest()


def test_lengths_of_the_official_files():
    sizes = {len(file.header) + file.records * file.record_bytes for known in OFFICIAL.values() for file in known.files}
    assert sizes == {30_730_000, 153_700_000, 30_740_000, 47_040_016, 60_008, 7_840_016, 10_008}


IDX = r"train-images-idx3-ubyte must have 7,856 bytes \(10 records of 784 after the header of an idx file"


@pytest.mark.parametrize(
    ("name", "file", "change", "message"),
    [
        (
            "cifar10",
            "data_batch_3.bin",
            lambda whole: whole[:-1],
            r"3.bin must have 30,730 bytes \(10 records of 3073\)",
        ),
        ("cifar10", "data_batch_3.bin", lambda whole: b"\x0a" + whole[1:], "labels must be in 0..9. Received: 0..10"),
        ("cifar10", "data_batch_3.bin", None, "data_batch_3.bin cannot be read: .*No such file"),
        ("cifar10", "batches.meta.txt", None, "batches.meta.txt cannot be read: .*Download it again"),
        ("mnist", "train-images-idx3-ubyte", lambda _: b"<html>", f"{IDX}.*Received: 6 bytes"),
        ("mnist", "train-images-idx3-ubyte", lambda whole: b"1" + whole[1:], f"{IDX}.*Received: 7,856 bytes"),
        ("mnist", "train-images-idx3-ubyte.gz", lambda whole: gzip.compress(whole)[:-20], "ubyte.gz cannot be read"),
    ],
)
def test_damaged_files_raise(tmp_path, name, file, change, message):
    folder, _ = write(tmp_path, name)
    whole = (folder / file.removesuffix(".gz")).read_bytes()
    (folder / file).unlink() if change is None else (folder / file).write_bytes(change(whole))
    with pytest.raises(DataError, match=message):
        official.load(name, tmp_path)


@pytest.mark.parametrize("name", OFFICIAL)
def test_missing_data_are_named(tmp_path, name):
    for folder, message in ((tmp_path, rf"^{name} was not found in .*as `data_dir`.$"), (tmp_path / "x", "not exist")):
        with pytest.raises(DataError, match=message) as raised:
            official.load(name, folder)
    assert raised.value.arguments == ("data_dir", "download")


def test_download_without_a_network(tmp_path, monkeypatch):
    # A port without a server.
    known = {"mnist": dataclasses.replace(OFFICIAL["mnist"], server="http://127.0.0.1:9")}
    monkeypatch.setattr(official, "DATA_SETS", known)
    with pytest.raises(DataError, match=r"^http://127.0.0.1:9 cannot be reached \(ConnectionError\)") as raised:
        official.load("mnist", tmp_path, download=True)
    assert raised.value.arguments == ("data_dir",)


def test_tensorflow_datasets(tmp_path):
    """Use small files in the official layout, prepared by the builder of TensorFlow Datasets."""
    import tensorflow_datasets as tfds

    _, tables = write(tmp_path, "cifar10", 4)

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


def test_shapes_are_a_function_of_the_seed():
    data, again, other = shapes.load(30, 20), shapes.load(30, 20), shapes.load(30, 20, seed=1)
    assert data.digest() == again.digest() != other.digest()
    assert data.train_images.shape == (30, 32, 32, 3)
    np.testing.assert_array_equal(np.bincount(data.train_labels), 3)
    assert not np.array_equal(data.train_images[:20], data.test_images)
    with pytest.raises(ValueError, match="Argument `train` must be a positive integer"):
        shapes.load(0)


def test_areas_of_shapes():
    x, y = np.meshgrid(*[np.linspace(-1.2, 1.2, 481, dtype="float32")] * 2)
    # Where the circle around (0.45, 0) with the square of the radius 0.62 meets the unit circle.
    across = (1 + 0.45**2 - 0.62) / 0.9
    lens = np.arccos(across) + 0.62 * np.arccos((0.45 - across) / 0.62**0.5) - 0.45 * np.sqrt(1 - across**2)
    areas = {"disc": 0.8 * np.pi, "ring": (0.92**2 - 0.52**2) * np.pi, "half disc": np.pi / 2, "crescent": np.pi - lens}
    areas |= {"square": 2, "bar": 1.12, "triangle": 0.75 * 3**0.5, "star": 2.1 * np.sin(np.pi / 5)}
    areas |= {"cross": 2 * 1.8 * 0.48 - 0.48**2}
    for name, area in areas.items():
        assert shapes.CLASSES[name](x, y).mean() * 2.4**2 == pytest.approx(area, rel=0.02), name


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
