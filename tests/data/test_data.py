"""Data sets: shapes, and CIFAR from binary files, archives and TensorFlow Datasets."""

import io
import socket
import tarfile

import numpy as np
import pytest
import scipy.linalg

from idmatters_tf.data import _sources, cifar, shapes
from idmatters_tf.data.images import DataError

rng = np.random.default_rng(5)


def records(count, label_bytes, classes):
    table = rng.integers(0, 256, (count, label_bytes + 3072), dtype=np.uint8)
    table[:, :label_bytes] = rng.integers(0, classes, (count, label_bytes))
    return table


@pytest.fixture(scope="module")
def ten(tmp_path_factory):
    """Return a folder with random files in the official layout of CIFAR-10, and their contents."""
    folder = tmp_path_factory.mktemp("data") / "cifar-10-batches-bin"
    folder.mkdir()
    tables = {
        name: records(10_000, 1, 10) for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
    }
    for name, table in tables.items():
        table.tofile(folder / name)
    return folder, tables


def test_binary_folder(ten):
    folder, tables = ten
    for data_dir in (folder.parent, folder, folder.parent.parent):
        assert cifar.locate("cifar10", data_dir) == cifar.Location("folder", folder)
    data = cifar.load("cifar10", folder.parent)
    assert data.train_images.shape == (50_000, 32, 32, 3)
    assert data.test_images.shape == (10_000, 32, 32, 3)
    # Record 3 of the second file: red, green, blue planes, row by row.
    record = tables["data_batch_2.bin"][3]
    assert data.train_labels[10_003] == record[0]
    for channel, row, col in [(0, 0, 0), (1, 2, 30), (2, 31, 31)]:
        assert data.train_images[10_003, row, col, channel] == record[1 + 1024 * channel + 32 * row + col]
    assert data.class_names[3] == "cat"
    assert data.digest() != data.first(train=49_999).digest()


def test_archive_is_read_in_place(ten, tmp_path):
    folder, tables = ten
    # Noise, which cannot be compressed.
    with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz", compresslevel=0) as archive:
        archive.add(folder, folder.name)
    data = cifar.load("cifar10", tmp_path)
    np.testing.assert_array_equal(data.test_labels, tables["test_batch.bin"][:, 0])
    assert [entry.name for entry in tmp_path.iterdir()] == ["cifar-10-binary.tar.gz"]
    assert cifar.locate("cifar10", tmp_path / "cifar-10-binary.tar.gz") == cifar.locate("cifar10", tmp_path)
    with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz") as archive:
        # Folders in place of the files.
        archive.add(tmp_path, "cifar-10-batches-bin/data_batch_1.bin", recursive=False)
    with pytest.raises(DataError, match=r"data_batch_1.bin in it must be a file of .* Download it again"):
        cifar.load("cifar10", tmp_path)
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(b"not an archive")
    with pytest.raises(DataError, match=r"cannot be read as cifar-10-binary.tar.gz.*Download it again"):
        cifar.load("cifar10", tmp_path)


class Zeros(io.RawIOBase):
    """Endless stream of zeros."""

    def read(self, size=-1):
        return bytes(size)


@pytest.mark.parametrize(
    ("name", "kind", "size", "message"),
    [
        ("data_batch_1.bin", tarfile.REGTYPE, 200_000_000, "has 200,000,000 bytes"),
        ("readme.html", tarfile.REGTYPE, 200_000_000, "has 200,000,000 bytes"),
        ("data_batch_1.bin", tarfile.REGTYPE, 7, "must be a file of 30,730,000 bytes, has 7"),
        ("data_batch_1.bin", tarfile.DIRTYPE, 0, "must be a file of"),
        ("data_batch_1.bin", tarfile.FIFOTYPE, 0, "must be a file of"),
        ("data_batch_1.bin", tarfile.CHRTYPE, 0, "must be a file of"),
        ("data_batch_1.bin", tarfile.SYMTYPE, 0, "must be a file of"),
        ("data_batch_1.bin", tarfile.LNKTYPE, 0, "must be a file of"),
        ("other.bin", tarfile.REGTYPE, 7, "no cifar-10-batches-bin/data_batch_1.bin in it"),
    ],
)
def test_odd_members_of_an_archive_are_refused_before_they_are_read(tmp_path, name, kind, size, message):
    member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
    # A link leads to itself.
    member.type, member.size, member.linkname = kind, size, member.name
    with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz", compresslevel=1) as archive:
        archive.addfile(member, Zeros() if size else None)
    with pytest.raises(DataError, match=rf"cannot be read as cifar-10-binary.tar.gz: .*{message}"):
        cifar.load("cifar10", tmp_path)


@pytest.mark.parametrize("seed", range(8))
def test_flipped_bytes_in_an_archive_are_one_sentence(tmp_path, seed):
    rng = np.random.default_rng(seed)
    noise = rng.integers(0, 256, 100_000, dtype=np.uint8).tobytes()
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


def test_cifar100_takes_the_fine_label(tmp_path):
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    train, test = records(50_000, 2, 20), records(10_000, 2, 20)
    train[:, 1], test[:, 1] = rng.integers(0, 100, 50_000), rng.integers(0, 100, 10_000)
    train.tofile(folder / "train.bin")
    test.tofile(folder / "test.bin")
    data = cifar.load("cifar100", tmp_path)
    assert data.classes == 100
    np.testing.assert_array_equal(data.train_labels, train[:, 1])
    assert data.train_images[7, 0, 1, 0] == train[7, 2 + 1]
    assert (data.class_names[0], data.class_names[55], data.class_names[99]) == ("apple", "otter", "worm")


def test_wrong_lengths_and_labels_are_refused(ten, tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for file in ten[0].iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    whole = (folder / "data_batch_3.bin").read_bytes()
    (folder / "data_batch_3.bin").write_bytes(whole[:-1])
    with pytest.raises(DataError, match=r"data_batch_3.bin must have 30,730,000 bytes.*Received: 30,729,999"):
        cifar.load("cifar10", tmp_path)
    (folder / "data_batch_3.bin").write_bytes(whole[: 3073 * 5] + b"\x0a" + whole[3073 * 5 + 1 :])
    with pytest.raises(DataError, match=r"labels must be in 0..9. Received: 10 in record 5"):
        cifar.load("cifar10", tmp_path)
    (folder / "data_batch_3.bin").unlink()
    with pytest.raises(DataError, match=r"data_batch_3.bin is missing"):
        cifar.load("cifar10", tmp_path)


def test_missing_data_names_the_place_and_the_ways_on(tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"not found in .*Pass the folder that holds one of these as `data_dir`"):
        cifar.load("cifar10", tmp_path)
    (tmp_path / "cifar-10-python.tar.gz").touch()
    (tmp_path / "cifar-100-python").mkdir()
    for name, folder, pickles in (
        ("cifar10", tmp_path, "cifar-10-python.tar.gz"),
        ("cifar10", tmp_path / "cifar-10-python.tar.gz", "cifar-10-python.tar.gz"),
        ("cifar100", tmp_path / "cifar-100-python", "cifar-100-python"),
    ):
        with pytest.raises(DataError, match=f"{pickles} contains pickles, which are never loaded"):
            cifar.load(name, folder)
    with pytest.raises(DataError, match=f"not found in {tmp_path}/nowhere, which does not exist"):
        cifar.load("cifar10", tmp_path / "nowhere")
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "elsewhere"))
    with pytest.raises(DataError, match="elsewhere"):
        cifar.load("cifar100")
    with pytest.raises(DataError, match="`name` must be one of 'cifar10', 'cifar100'"):
        cifar.load("cifar1000")


@pytest.mark.parametrize(("name", "other"), [("cifar10", "cifar100"), ("cifar100", "cifar10")])
def test_the_data_of_the_other_data_set_are_recognized(name, other, tmp_path, monkeypatch):
    variant = cifar.VARIANTS[other]
    folder = tmp_path / "binary" / variant.folder
    folder.mkdir(parents=True)
    (folder / variant.test_file).touch()
    prepared = tmp_path / "tfds" / other / "3.0.2"
    prepared.mkdir(parents=True)
    (prepared / "dataset_info.json").touch()
    archive = tmp_path / "archive" / cifar.VARIANTS[name].archive
    archive.parent.mkdir()
    with tarfile.open(archive, "w:gz", compresslevel=1) as members:
        member = tarfile.TarInfo(f"{variant.folder}/{variant.train_files[0]}")
        member.size = variant.train_records * variant.record_bytes
        members.addfile(member, Zeros())
    message = f"contains {other}, not {name}. Load {other}, or pass the folder of {name} as `data_dir`"
    # The data set itself, whose folder is not a place to download the other one to.
    monkeypatch.setattr(_sources, "server_answers", lambda _: True)
    monkeypatch.setattr(_sources, "load_tfds", lambda name, folder, download: (name, folder, download))
    for place in (folder, prepared, prepared.parent, archive, archive.parent):
        with pytest.raises(DataError, match=message) as caught:
            cifar.load(name, place, download=True)
        assert caught.value.arguments == ("dataset", "data_dir")
    # A folder with several data sets.
    for place in (tmp_path / "binary", tmp_path / "tfds"):
        with pytest.raises(DataError, match=message):
            cifar.load(name, place)
        assert cifar.load(name, place, download=True) == (name, place, True)


def test_a_server_that_does_not_answer_is_noticed(tmp_path, monkeypatch):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = listener.getsockname()
        monkeypatch.setattr(cifar, "DOWNLOAD_HOST", address)
        for variable in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(variable, raising=False)
        assert not _sources.server_answers(address)  # bound, but not listening
        with pytest.raises(DataError, match=r"127.0.0.1 does not answer"):
            cifar.load("cifar10", tmp_path, download=True)
        listener.listen()
        assert _sources.server_answers(address)
        # With a proxy set, the proxy is what has to answer.
        monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
        assert not _sources.server_answers(address)


def test_tensorflow_datasets(tmp_path):
    """Use small files in the official layout, prepared by the builder of TensorFlow Datasets."""
    import tensorflow_datasets as tfds

    source = tmp_path / "cifar-10-batches-bin"
    source.mkdir()
    tables = {}
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        tables[name] = records(4, 1, 10)
        tables[name].tofile(source / name)
    (source / "batches.meta.txt").write_text("\n".join(cifar.VARIANTS["cifar10"].class_names) + "\n\n")

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


def test_shapes_follow_from_the_seed():
    data, again, other = shapes.load(30, 20), shapes.load(30, 20), shapes.load(30, 20, seed=1)
    assert data.digest() == again.digest() != other.digest()
    assert data.train_images.shape == (30, 32, 32, 3)
    np.testing.assert_array_equal(np.bincount(data.train_labels), 3)
    assert not np.array_equal(data.train_images[:20], data.test_images)
    assert data.classes == len(set(data.class_names)) == 10
    with pytest.raises(DataError, match="`train` must be a positive"):
        shapes.load(0, 1)


def test_a_linear_classifier_stays_under_60_percent_on_shapes():
    """Fit ridge regression on pixels, with the best of several strengths on the test set."""
    data = shapes.load(4000, 1000)
    x, z = (images.reshape(len(images), -1) / np.float32(255) for images in (data.train_images, data.test_images))
    mean = x.mean(axis=0)
    x, z = x - mean, z - mean
    gram, target = x.T @ x, x.T @ np.eye(10, dtype=np.float32)[data.train_labels]
    accuracies = []
    for strength in (1, 10, 100, 1000):
        weights = scipy.linalg.solve(gram + strength * np.eye(len(gram), dtype=np.float32), target, assume_a="pos")
        accuracies.append(np.mean(np.argmax(z @ weights, axis=1) == data.test_labels))
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


def test_garbage_where_tensorflow_datasets_should_be_is_one_sentence(tmp_path):
    folder = tmp_path / "cifar10" / "3.0.2"
    folder.mkdir(parents=True)
    (folder / "dataset_info.json").write_text("garbage")
    with pytest.raises(DataError, match=f"cannot prepare or read cifar10 in {tmp_path} .* remove them"):
        cifar.load("cifar10", tmp_path)


@pytest.mark.parametrize("count", [0, -1, 1.5e16, "10"])
def test_an_impossible_number_of_images(count):
    with pytest.raises(DataError, match="Argument `train` must be a positive number of images"):
        shapes.load(count)
