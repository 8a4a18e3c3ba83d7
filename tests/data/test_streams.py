"""Images from files: decoding compared with Pillow, and an order that is a function of (seed, step)."""

import io

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from idmatters_tf.data import _decoding, imagenet
from idmatters_tf.data._folders import list_classes
from idmatters_tf.data.protocols import Share
from idmatters_tf.data.streams import StreamEvaluationBatches, StreamTrainBatches, decode_all, find_broken
from tests.support.images import encoded, make_tree

rng = np.random.default_rng(8)
SIZE = 24


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return list_classes(make_tree(tmp_path_factory.mktemp("data"), each=5, splits=("train",)) / "train")


def contents(files, index):
    return (files.root / files.names[index]).read_bytes()


def in_memory(files, index, size=SIZE):
    """Return the image with the preprocessing of the paper, without the flip."""
    return tf.image.resize(tf.io.decode_jpeg(contents(files, index)), [size, size]).numpy()


@pytest.mark.parametrize(
    ("kind", "mode"), [("JPEG", "RGB"), ("JPEG", "L"), ("JPEG", "CMYK"), ("PNG", "RGB"), ("PNG", "RGBA"), ("PNG", "P")]
)
def test_images_of_every_format_are_decoded(kind, mode):
    data = encoded(rng, 40, 56, kind, mode)
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), int)
    got = _decoding.decode(tf.constant(data)).numpy().astype(int)
    assert np.abs(got - expected).mean() < 2
    shapes = []

    def window(shape):
        shapes.append(shape)
        return tf.constant([3, 5, 20, 30])

    # A JPEG's colours are stored at half the resolution and interpolated: near the window's border this differs.
    inner = _decoding.decode(tf.constant(data), window).numpy().astype(int)[2:-2, 2:-2]
    assert np.abs(inner - got[5:21, 7:33]).mean() < 1
    np.testing.assert_array_equal(shapes[0][:2], [40, 56])


@pytest.mark.parametrize("augmentation", ["paper", "standard"])
def test_loaded_images_equal_those_of_evaluations(files, augmentation):
    batches = StreamEvaluationBatches(files, 5, augmentation, SIZE)
    evaluated, _, _ = next(iter(batches.dataset(standardized=False)))
    for index, expected in enumerate(evaluated.numpy()):
        loaded = imagenet.load_image(files.describe(index), SIZE, augmentation)
        assert loaded.dtype == np.uint8
        assert np.abs(loaded - expected).max() <= 0.5 + 1e-4


@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 10**6))
def test_windows_are_inside_of_the_image(rows, cols, number):
    shape = tf.constant([rows, cols, 3])
    top, left, height, width = _decoding.random_window(shape, tf.constant([5, number], tf.int64)).numpy()
    assert 0 <= top <= top + height <= rows
    assert 0 <= left <= left + width <= cols
    whole = (height, width) == (rows, cols)
    # Whole pixels: a row more or less at either end.
    area = height * width / (rows * cols)
    assert whole or 0.07 - 2 / min(rows, cols) < area <= 1
    assert whole or 3 / 4 - 4 / min(height, width) < width / height < 4 / 3 + 4 / min(height, width)
    large = _decoding.random_window(shape, tf.constant([5, number], tf.int64), 0.6).numpy()
    assert np.prod(large[2:]) / (rows * cols) > 0.59 - 2 / min(rows, cols)
    top, left, height, width = _decoding.central_window(shape).numpy()
    assert height == width == max(1, round(min(rows, cols) * 0.875))
    assert abs(2 * top + height - rows) <= 1
    assert abs(2 * left + width - cols) <= 1


def test_order_and_flips_of_training_batches(files):
    ours = StreamTrainBatches(files, 6, seed=3, size=SIZE)
    flips = []
    for step in (0, 4):
        images, labels = ours.batch(step)
        indices = ours.indices(tf.range(6 * step, 6 * step + 6, dtype=tf.int64)).numpy()
        np.testing.assert_array_equal(labels, [files.labels[index] for index in indices])
        for image, index in zip(images.numpy(), indices, strict=True):
            plain = tf.image.per_image_standardization(in_memory(files, index)).numpy()
            same = [np.allclose(image, each, atol=1e-4) for each in (plain, plain[:, ::-1])]
            assert sum(same) == 1
            flips.append(same[1])
    assert 2 <= sum(flips) <= 10


def test_steps_shares_and_strides_equal_the_stream(files):
    ours = StreamTrainBatches(files, 8, 1, "standard", SIZE)
    stream = [images.numpy() for images, _ in ours.dataset(2, 4)]
    whole = dict(zip(range(2, 6), stream, strict=True))
    # Windows differ between epochs.
    assert len({image.tobytes() for images in stream for image in images}) > 28
    np.testing.assert_array_equal(StreamTrainBatches(files, 8, 1, "standard", SIZE).batch(4)[0], whole[4])
    shares = [iter(ours.dataset(2, 2, Share(4, first, 2))) for first in (0, 2)]
    for step in (2, 3):
        parts = [next(share)[0].numpy() for share in shares for _ in range(2)]
        np.testing.assert_allclose(np.concatenate(parts), whole[step], atol=2e-6)
    turns = [images.numpy() for images, _ in ours.dataset(tf.constant(2, tf.int64), 2, stride=3)]
    np.testing.assert_array_equal(turns, [whole[2], whole[5]])


def test_evaluation_contains_every_image_once(files):
    ours = StreamEvaluationBatches(files, 8, "none", SIZE)
    seen = []
    for first in range(2):
        for images, labels, weights in ours.dataset(Share(2, first, 1)):
            seen += [(int(x), y.tobytes()) for x, y, w in zip(labels, images.numpy(), weights, strict=True) if w]
    assert len(seen) == len(set(seen)) == 15
    assert sorted(label for label, _ in seen) == files.labels
    _, (images, labels, weights) = ours.dataset(standardized=False)
    # The thread that tunes delays the end of an iterator.
    assert not ours.dataset().options().autotune.enabled
    assert sum(weights) == 7
    for image, label, index in zip(images[:7], labels, range(8, 15), strict=False):
        assert label == files.labels[index]
        np.testing.assert_allclose(image, in_memory(files, index), atol=1e-3)


def test_broken_files_are_found(tmp_path):
    files = list_classes(make_tree(tmp_path, each=3, splits=("train",)) / "train")
    path = files.root / files.names[4]
    path.write_bytes(path.read_bytes()[:200])
    (files.root / files.names[7]).write_bytes(b"")
    # A BMP file with a palette, whose indices TensorFlow takes for gray values.
    palette = Image.fromarray(np.full((9, 9, 3), 181, np.uint8)).quantize(4)
    palette.save(files.root / files.names[8], "BMP")
    assert find_broken(files) == [4, 7, 8]
    assert find_broken(files, indices=[1, 4, 4]) == [4]
    intact = files.without([4, 7, 8])
    assert len(intact) == 6
    assert find_broken(intact) == []


def test_decoded_images_equal_streamed_ones(files):
    data = imagenet.StreamedImageData("some", files, files.without(range(1, 15)), "here", SIZE)
    once = decode_all(data)
    assert (once.class_names, once.image_shape, once.origin) == (data.class_names, data.image_shape, "here")
    for index in (0, 7, 14):
        np.testing.assert_allclose(once.train_images[index], in_memory(files, index), atol=0.501)
    np.testing.assert_array_equal(once.train_labels, [0] * 5 + [1] * 5 + [2] * 5)
    np.testing.assert_array_equal(once.test_images, once.train_images[:1])
