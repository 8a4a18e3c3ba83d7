"""Data sets: shapes, and CIFAR from binary files, archives and TensorFlow Datasets."""

import dataclasses
import io
import re
import tarfile

import numpy as np
import pytest
import scipy.linalg

from idmatters_tf.data import cifar, shapes
from idmatters_tf.data.images import DataError

rng = np.random.default_rng(5)
OFFICIAL = cifar.VARIANTS


@pytest.fixture(autouse=True)
def few_records(monkeypatch):
    """Expect files of 10 records in the official layout."""
    few = {name: dataclasses.replace(variant, train_records=10, test_records=10) for name, variant in OFFICIAL.items()}
    monkeypatch.setattr(cifar, "VARIANTS", few)


def write_files(parent, name, count=10):
    """Write random files in the official layout. Return the folder and the contents by file."""
    variant = OFFICIAL[name]
    folder, tables = parent / variant.folder, {}
    folder.mkdir()
    for file in (*variant.train_files, variant.test_file):
        table = rng.integers(0, 256, (count, variant.record_bytes), dtype=np.uint8)
        table[:, 0] = rng.integers(0, 10, count)
        table[:, variant.label_bytes - 1] = rng.integers(0, len(variant.class_names), count)
        table.tofile(folder / file)
        tables[file] = table
    return folder, tables


def test_the_official_sizes_of_the_files():
    sizes = {
        name: [each.record_bytes * count for count in (each.train_records, each.test_records)]
        for name, each in OFFICIAL.items()
    }
    assert sizes == {"cifar10": [30_730_000, 30_730_000], "cifar100": [153_700_000, 30_740_000]}
    assert [len(OFFICIAL[name].train_files) for name in ("cifar10", "cifar100")] == [5, 1]


def test_binary_folder(tmp_path):
    folder, tables = write_files(tmp_path, "cifar10")
    for data_dir in (tmp_path, folder, tmp_path.parent):
        assert cifar.locate("cifar10", data_dir) == cifar.Location("folder", folder)
    data = cifar.load("cifar10", tmp_path)
    assert data.train_images.shape == (50, 32, 32, 3)
    assert data.test_images.shape == (10, 32, 32, 3)
    # Record 3 of the second file: red, green, blue planes, row by row.
    record = tables["data_batch_2.bin"][3]
    assert data.train_labels[13] == record[0]
    for channel, row, col in [(0, 0, 0), (1, 2, 30), (2, 31, 31)]:
        assert data.train_images[13, row, col, channel] == record[1 + 1024 * channel + 32 * row + col]
    assert data.class_names[3] == "cat"
    assert data.digest() != data.first(train=49).digest()


def test_cifar100_takes_the_fine_label(tmp_path):
    _, tables = write_files(tmp_path, "cifar100")
    data = cifar.load("cifar100", tmp_path)
    train = tables["train.bin"]
    assert data.classes == 100
    np.testing.assert_array_equal(data.train_labels, train[:, 1])
    assert data.train_images[7, 0, 1, 0] == train[7, 2 + 1]
    assert (data.class_names[0], data.class_names[55], data.class_names[99]) == ("apple", "otter", "worm")


def test_archive_is_read_in_place(tmp_path):
    (tmp_path / "unpacked").mkdir()
    folder, tables = write_files(tmp_path / "unpacked", "cifar10")
    path = tmp_path / "data" / "cifar-10-binary.tar.gz"
    path.parent.mkdir()
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, folder.name)
    data = cifar.load("cifar10", path.parent)
    np.testing.assert_array_equal(data.test_labels, tables["test_batch.bin"][:, 0])
    assert list(path.parent.iterdir()) == [path]
    assert cifar.locate("cifar10", path) == cifar.locate("cifar10", path.parent)
    path.write_bytes(b"not an archive")
    with pytest.raises(DataError, match=r"cannot be read as cifar-10-binary.tar.gz.*Download it again"):
        cifar.load("cifar10", path)


def test_an_archive_without_the_files_is_refused(tmp_path):
    with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("cifar-100-binary/train.bin"))
    message = r"cannot be read as cifar-10-binary.tar.gz: no cifar-10-batches-bin/data_batch_1.bin in it"
    with pytest.raises(DataError, match=message):
        cifar.load("cifar10", tmp_path)


@pytest.mark.parametrize("seed", range(8))
def test_flipped_bytes_in_an_archive_are_one_sentence(tmp_path, seed):
    rng = np.random.default_rng(seed)
    noise = rng.integers(0, 256, 10_000, dtype=np.uint8).tobytes()
    path = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo("cifar-10-batches-bin/readme.html")
        member.size = len(noise)
        archive.addfile(member, io.BytesIO(noise))
    content = bytearray(path.read_bytes())
    for place in rng.integers(0, len(content), 10):
        content[place] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"cannot be read as cifar-10-binary.tar.gz"):
        cifar.load("cifar10", tmp_path)


def test_wrong_lengths_and_labels_are_refused(tmp_path):
    folder, _ = write_files(tmp_path, "cifar10")
    path = folder / "data_batch_3.bin"
    whole = path.read_bytes()
    for content, message in (
        (whole[:-1], r"data_batch_3.bin must have 30,730 bytes.*Received: 30,729"),
        (whole[: 3073 * 5] + b"\x0a" + whole[3073 * 5 + 1 :], r"labels must be in 0..9. Received: 10 in record 5"),
        (None, r"data_batch_3.bin is missing"),
    ):
        path.unlink() if content is None else path.write_bytes(content)
        with pytest.raises(DataError, match=message):
            cifar.load("cifar10", tmp_path)


def test_missing_data_names_the_place_and_the_ways_on(tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"not found in .*Pass the folder that holds one of these as `data_dir`"):
        cifar.load("cifar10", tmp_path)
    with pytest.raises(DataError, match=r"pickles, is not supported: download cifar-100-binary.tar.gz"):
        cifar.load("cifar100", tmp_path)
    with pytest.raises(DataError, match=f"not found in {tmp_path}/nowhere, which does not exist"):
        cifar.load("cifar10", tmp_path / "nowhere")
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "elsewhere"))
    with pytest.raises(DataError, match="elsewhere"):
        cifar.load("cifar100")
    with pytest.raises(DataError, match="`name` must be one of 'cifar10', 'cifar100'"):
        cifar.load("cifar1000")


def test_tensorflow_datasets(tmp_path):
    """Use small files in the official layout, prepared by the builder of TensorFlow Datasets."""
    import tensorflow_datasets as tfds

    source, tables = write_files(tmp_path, "cifar10", 4)
    (source / "batches.meta.txt").write_text("\n".join(OFFICIAL["cifar10"].class_names) + "\n\n")

    class LocalFiles:
        @staticmethod
        def download_and_extract(_url):
            return str(tmp_path)

    prepared = tmp_path / "prepared"
    builder = tfds.builder("cifar10", data_dir=prepared)
    generators = type(builder)._split_generators
    builder._split_generators = lambda _manager: generators(builder, LocalFiles)
    builder.download_and_prepare()

    for folder in (prepared, prepared / "cifar10", *(prepared / "cifar10").iterdir()):
        assert cifar.locate("cifar10", folder) == cifar.Location("tfds", prepared)
        assert cifar.locate("cifar100", folder) is None
    data = cifar.load("cifar10", prepared)
    assert data.train_images.shape == (20, 32, 32, 3)
    expected = {record[1:].tobytes(): record[0] for record in tables["test_batch.bin"]}
    got = {
        image.transpose(2, 0, 1).tobytes(): label
        for image, label in zip(data.test_images, data.test_labels, strict=True)
    }
    assert got == expected
    assert data.class_names[9] == "truck"
    (info,) = (prepared / "cifar10").glob("*/dataset_info.json")
    info.write_text("garbage")
    with pytest.raises(DataError, match=f"cannot prepare or read cifar10 in {prepared} .* remove them"):
        cifar.load("cifar10", prepared)


def test_shapes_follow_from_the_seed():
    data, again, other = shapes.load(30, 20), shapes.load(30, 20), shapes.load(30, 20, seed=1)
    assert data.digest() == again.digest() != other.digest()
    assert data.train_images.shape == (30, 32, 32, 3)
    np.testing.assert_array_equal(np.bincount(data.train_labels), 3)
    assert not np.array_equal(data.train_images[:20], data.test_images)
    assert data.classes == len(set(data.class_names)) == 10
    for count in (0, -1, 1.5e16, "10"):
        with pytest.raises(ValueError, match="Argument `train` must be a positive integer"):
            shapes.load(count)


def test_a_linear_classifier_stays_under_60_percent_on_shapes():
    """Fit ridge regression on pixels, with the best of several strengths on the test set."""
    data = shapes.load(1500, 500)
    x, z = (images.reshape(len(images), -1) / np.float32(255) for images in (data.train_images, data.test_images))
    mean = x.mean(axis=0)
    x, z = x - mean, z - mean
    # The dual form has fewer unknowns: as many as images.
    gram, crossed, target = x @ x.T, z @ x.T, np.eye(10, dtype=np.float32)[data.train_labels]
    accuracies = []
    for strength in (1, 10, 100, 1000):
        duals = scipy.linalg.solve(gram + strength * np.eye(len(gram), dtype=np.float32), target, assume_a="pos")
        accuracies.append(np.mean(np.argmax(crossed @ duals, axis=1) == data.test_labels))
    assert 0.1 < max(accuracies) < 0.6


def test_held_out_images_are_training_images_and_leave_the_test_images_alone():
    data = shapes.load(train=50, test=20)
    held_out = data.hold_out(15)
    np.testing.assert_array_equal(held_out.train_images, data.train_images[:35])
    np.testing.assert_array_equal(held_out.test_images, data.train_images[35:])
    np.testing.assert_array_equal(held_out.test_labels, data.train_labels[35:])
    assert held_out.digest() != data.digest()
    for count in (0, 50, -1):
        with pytest.raises(ValueError, match="`count`"):
            data.hold_out(count)


def test_images_and_labels_that_do_not_fit_are_refused():
    data = shapes.load(train=2, test=1)
    for change, message in (
        ({"train_images": data.train_images / 255}, "train images must be a non-empty uint8 array"),
        ({"test_labels": data.train_labels}, "1 test images, but labels of shape (2,)"),
        ({"test_labels": np.array([10])}, "test labels must be in 0..9. Received: 10..10"),
    ):
        with pytest.raises(DataError, match=re.escape(message)):
            dataclasses.replace(data, **change)
