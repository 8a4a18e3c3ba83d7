import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from idmatters_tf.data.augment import InMemoryImages, standardize
from idmatters_tf.data.augmentations import AUGMENTATIONS, CropAndFlip
from idmatters_tf.data.batches import EvaluationBatches, TrainBatches
from idmatters_tf.data.numpy_batches import NumpyBatches
from idmatters_tf.data.protocols import Share
from idmatters_tf.layers import PerImageStandardization

rng = np.random.default_rng(4)
IMAGES = rng.integers(0, 256, (50, 6, 8, 3), dtype=np.uint8)
LABELS = np.arange(50)


def batches(batch_size=16, seed=0, augmentation=AUGMENTATIONS["paper"]):
    return TrainBatches(IMAGES, LABELS, batch_size, seed, augmentation)


@given(
    st.integers(1, 4),
    st.sampled_from(["zero", "reflect"]),
    st.lists(st.tuples(st.integers(0, 49), st.integers(0, 99)), min_size=1, max_size=6),
)
def test_crops_and_flips_equal_plain_slicing(padding, mode, wanted):
    indices = np.array([index for index, _ in wanted])
    draws = np.array([[7 * number, 3 * number + 1, number] for _, number in wanted], np.int32)
    # Images in float32 are not standardized.
    images = IMAGES.astype(np.float32)
    got = InMemoryImages(images, CropAndFlip(padding, mode)).batch(tf.constant(indices, tf.int64), tf.constant(draws))
    for image, index, (row, col, flip) in zip(got.numpy(), indices, draws, strict=True):
        source = IMAGES[index][:, ::-1] if flip % 2 else IMAGES[index]
        padded = np.pad(source, [(padding, padding)] * 2 + [(0, 0)], mode=mode.replace("zero", "constant"))
        top, left = row % (2 * padding + 1), col % (2 * padding + 1)
        np.testing.assert_array_equal(image, padded[top : top + 6, left : left + 8])


def test_standardization_equals_that_of_tensorflow():
    images = tf.cast(np.concatenate([IMAGES, np.full((1, 6, 8, 3), 77), np.zeros((1, 6, 8, 3))]), tf.float32)
    np.testing.assert_allclose(standardize(images), tf.image.per_image_standardization(images), atol=2e-5)
    nearly_blank = np.full((3, 8, 8, 3), 250.0, "float32")
    nearly_blank[1, 0, 0, 0], nearly_blank[2, :4] = 251, 249
    exported = PerImageStandardization()(nearly_blank)
    np.testing.assert_allclose(standardize(tf.constant(nearly_blank)), exported, atol=1e-3)


def test_each_epoch_is_another_permutation():
    order = batches().indices(tf.range(150, dtype=tf.int64)).numpy().reshape(3, 50)
    for epoch in order:
        np.testing.assert_array_equal(np.sort(epoch), np.arange(50))
    assert not np.array_equal(order[0], order[1])
    other = batches(seed=1).indices(tf.range(50, dtype=tf.int64)).numpy()
    assert not np.array_equal(order[0], other)
    # A batch that spans two epochs contains the labels of its images.
    images, labels = batches(augmentation=None).batch(3)
    np.testing.assert_array_equal(labels, order.ravel()[48:64])
    np.testing.assert_allclose(images, standardize(tf.cast(IMAGES[labels.numpy()], tf.float32)), atol=1e-6)


def test_single_steps_equal_those_of_the_dataset():
    ours = batches()
    dataset = ours.dataset(0, 7)
    # The thread that tunes delays the end of an iterator.
    assert dataset.options().autotune.enabled is False
    stream = [(x.numpy(), y.numpy()) for x, y in dataset]
    for step in (0, 3, 6):
        for alone, streamed in zip(ours.batch(step), stream[step], strict=True):
            np.testing.assert_array_equal(alone, streamed)
    resumed = [x.numpy() for x, _ in batches().dataset(4, 3)]
    np.testing.assert_array_equal(resumed, [x for x, _ in stream[4:]])


def test_augmentation_differs_between_epochs_and_seeds():
    one = TrainBatches(IMAGES[:1], LABELS[:1], 64, 0, AUGMENTATIONS["paper"])
    first, second = one.batch(0)[0].numpy(), one.batch(1)[0].numpy()
    assert not np.array_equal(first, second)
    crops = {image.tobytes() for step in range(8) for image in one.batch(step)[0].numpy()}
    assert len(crops) == 5 * 5 * 2
    other = TrainBatches(IMAGES[:1], LABELS[:1], 64, 1, AUGMENTATIONS["paper"])
    assert not np.array_equal(first, other.batch(0)[0])


def test_alternating_flips():
    ours = TrainBatches(IMAGES, LABELS, 50, 3, CropAndFlip(0, flips="alternate"))
    flipped = []
    for epoch in range(4):
        images, labels = (tensor.numpy() for tensor in ours.batch(epoch))
        plain = standardize(tf.cast(IMAGES[labels], tf.float32)).numpy()
        is_plain = np.isclose(images, plain, atol=1e-5).all(axis=(1, 2, 3))
        is_flipped = np.isclose(images, plain[:, :, ::-1], atol=1e-5).all(axis=(1, 2, 3))
        assert (is_plain ^ is_flipped).all()
        flipped.append(is_flipped[np.argsort(labels)])
    np.testing.assert_array_equal(flipped[0], ~flipped[1])
    np.testing.assert_array_equal(flipped[0], flipped[2])
    assert 10 < flipped[0].sum() < 40


@pytest.mark.parametrize("kind", [TrainBatches, NumpyBatches])
@pytest.mark.parametrize("side", [2, 5])
def test_cutout(side, kind):
    plain, cut = (kind(IMAGES, LABELS, 50, 3, CropAndFlip(1, cutout=size)) for size in (0, side))
    centres = set()
    for step in range(6):
        for whole, image in zip(*(np.array(batches.batch(step)[0]) for batches in (plain, cut)), strict=True):
            rows, cols = np.nonzero((image == 0).all(axis=-1))
            top, left = rows.min(), cols.min()
            bottom, right = rows.max() + 1, cols.max() + 1
            # A square of full size, or one that the border cuts off.
            assert bottom - top == side or top == 0 or bottom == 6
            assert right - left == side or left == 0 or right == 8
            expected = whole.copy()
            expected[top:bottom, left:right] = 0
            np.testing.assert_array_equal(image, expected)
            centres.add((top, left))
    assert len(centres) > 15


def test_shares_equal_the_global_batch():
    ours = batches()
    streams = [iter(ours.dataset(2, 2, Share(4, first, 2))) for first in (0, 2)]
    for step in (2, 3):
        parts = [next(stream)[0].numpy() for stream in streams for _ in range(2)]
        assert all(len(part) == 4 for part in parts)
        # Up to rounding: sums over a smaller batch may be taken in another order.
        np.testing.assert_allclose(np.concatenate(parts), ours.batch(step)[0], atol=2e-6)
    with pytest.raises(ValueError, match="multiple of 3"):
        ours.dataset(0, 1, Share(3, 0, 3))


@pytest.mark.parametrize(("batch_size", "pipelines"), [(12, 2), (64, 1)])
def test_evaluation_contains_every_image_once(batch_size, pipelines):
    evaluation = EvaluationBatches(IMAGES, LABELS, batch_size)
    count = 4 // pipelines
    counted = np.zeros(50)
    for first in range(pipelines):
        dataset = evaluation.dataset(Share(4, first * count, count))
        assert len(dataset) == evaluation.steps * count
        assert dataset.options().autotune.enabled is False
        for _, labels, weights in dataset:
            np.add.at(counted, labels.numpy(), weights.numpy())
    np.testing.assert_array_equal(counted, 1)


@pytest.mark.parametrize("name", list(AUGMENTATIONS))
def test_batches_of_numpy_are_crops_and_mirror_images_in_the_order_of_epochs(name):
    augmentation = AUGMENTATIONS[name]
    pad = 0 if augmentation is None else augmentation.padding
    mode = "reflect" if augmentation is not None and augmentation.padding_mode == "reflect" else "constant"
    source = NumpyBatches(IMAGES, LABELS, 10, 3, augmentation)
    # 1 for mirrored images, -1 for others, 0 for crops that both contain, because the padding is mirrored.
    mirrored = np.zeros((4, 50))
    for step in range(20):
        images, labels = source.batch(step)
        for image, label in zip(images, labels, strict=True):
            padded = np.pad(IMAGES[label], [(pad, pad)] * 2 + [(0, 0)], mode)
            crops = [padded[i : i + 6, j : j + 8] for i in range(2 * pad + 1) for j in range(2 * pad + 1)]
            both = standardize(tf.cast(np.array([crops, np.array(crops)[:, :, ::-1]]).reshape(-1, 6, 8, 3), tf.float32))
            distances = np.abs(both.numpy() - image).max((1, 2, 3)).reshape(2, -1).min(1)
            assert distances.min() < 1e-5
            mirrored[step // 5, label] = np.sign(np.round(distances[0] - distances[1], 3))
    orders = [np.concatenate([source.batch(step)[1] for step in range(first, first + 5)]) for first in (0, 5)]
    assert all(np.array_equal(np.sort(order), np.arange(50)) for order in orders)
    assert (orders[0] != orders[1]).any()
    assert 5 < (mirrored[0] > 0).sum() < 40 or (name == "none" and (mirrored < 0).all())
    if name == "alternating":
        assert (mirrored[0] * mirrored[1] <= 0).all()
        assert (mirrored[0] * mirrored[2] >= 0).all()
