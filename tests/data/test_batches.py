import numpy as np
import pytest
import tensorflow as tf

from idmatters_tf.data.batches import AUGMENTATIONS, CropAndFlip, EvaluationBatches, TrainBatches, standardize
from idmatters_tf.data.protocols import Share
from idmatters_tf.layers import PerImageStandardization

rng = np.random.default_rng(4)
IMAGES = rng.integers(0, 256, (50, 6, 8, 3), dtype=np.uint8)
LABELS = np.arange(50)
ALL = CropAndFlip(1, "reflect", "alternate", 3)


def batches(batch_size=16, seed=0, augmentation=AUGMENTATIONS["paper"]):
    return TrainBatches(IMAGES, LABELS, batch_size, seed, augmentation)


def test_standardization_equals_that_of_tensorflow_and_of_exports():
    blank = np.full((1, 6, 8, 3), 77, np.uint8)
    images = np.concatenate([IMAGES, blank, 0 * blank])
    np.testing.assert_allclose(standardize(images), tf.image.per_image_standardization(images), atol=2e-5)
    nearly_blank = np.full((3, 8, 8, 3), 250.0, "float32")
    nearly_blank[1, 0, 0, 0], nearly_blank[2, :4] = 251, 249
    exported = PerImageStandardization()(nearly_blank)
    np.testing.assert_allclose(standardize(nearly_blank), exported, atol=1e-3)


def test_each_epoch_is_another_permutation():
    order = batches().indices(np.arange(150)).reshape(3, 50)
    for epoch in order:
        np.testing.assert_array_equal(np.sort(epoch), np.arange(50))
    assert not np.array_equal(order[0], order[1])
    assert not np.array_equal(order[0], batches(seed=1).indices(np.arange(50)))
    # A batch that spans two epochs contains the labels of its images.
    images, labels = batches(augmentation=None).batch(3)
    np.testing.assert_array_equal(labels, order.ravel()[48:64])
    np.testing.assert_array_equal(images, standardize(IMAGES[labels]))


@pytest.mark.parametrize("augmentation", [*AUGMENTATIONS.values(), CropAndFlip(0, flips="alternate")], ids=str)
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_images_are_crops_and_mirror_images(dtype, augmentation):
    pad = 0 if augmentation is None else augmentation.padding
    mode = "reflect" if augmentation is not None and augmentation.padding_mode == "reflect" else "constant"
    source = TrainBatches(IMAGES.astype(dtype), LABELS, 10, 3, augmentation)
    prepare = standardize if dtype == "uint8" else np.asarray
    # 1 for mirrored images, -1 for others, 0 for crops that both contain, because the padding is mirrored.
    mirrored = np.zeros((4, 50))
    for step in range(20):
        for image, label in zip(*source.batch(step), strict=True):
            padded = np.pad(IMAGES[label], [(pad, pad)] * 2 + [(0, 0)], mode)
            crops = [padded[i : i + 6, j : j + 8] for i in range(2 * pad + 1) for j in range(2 * pad + 1)]
            both = prepare(np.concatenate([crops, np.array(crops)[:, :, ::-1]]))
            distances = np.abs(both - image).max((1, 2, 3)).reshape(2, -1).min(1)
            assert image.dtype == np.float32
            assert distances.min() < (1e-5 if dtype == "uint8" else 1e-30)
            mirrored[step // 5, label] = np.sign(np.round(distances[0] - distances[1], 3))
    if augmentation is None:
        assert (mirrored < 0).all()
        return
    assert 5 < (mirrored[0] > 0).sum() < 40
    assert not np.array_equal(mirrored[0], mirrored[1])
    if augmentation.flips == "alternate":
        assert (mirrored[0] * mirrored[1] <= 0).all()
        assert (mirrored[0] * mirrored[2] >= 0).all()


def test_augmentation_differs_between_epochs_and_seeds():
    one, other = (TrainBatches(IMAGES[:1], LABELS[:1], 64, seed) for seed in (0, 1))
    first = one.batch(0)[0]
    assert not np.array_equal(first, one.batch(1)[0])
    crops = {image.tobytes() for step in range(8) for image in one.batch(step)[0]}
    assert len(crops) == 5 * 5 * 2
    assert not np.array_equal(first, other.batch(0)[0])


@pytest.mark.parametrize("side", [2, 5])
def test_cutout(side):
    plain, cut = (batches(50, 3, CropAndFlip(1, cutout=size)) for size in (0, side))
    centres = set()
    for step in range(6):
        for whole, image in zip(plain.batch(step)[0], cut.batch(step)[0], strict=True):
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


@pytest.mark.parametrize("augmentation", [AUGMENTATIONS["paper"], ALL])
def test_shares_equal_the_global_batch(augmentation):
    ours = batches(augmentation=augmentation)
    streams = [iter(ours.dataset(2, 2, Share(4, first, 2))) for first in (0, 2)]
    for step in (2, 3):
        parts = [next(stream) for stream in streams for _ in range(2)]
        assert all(len(part) == 4 for part, _ in parts)
        for one, whole in zip(zip(*parts, strict=True), ours.batch(step), strict=True):
            np.testing.assert_array_equal(np.concatenate(one), whole)
    whole = ours.dataset(tf.constant(2, tf.int64), 2, stride=2)
    assert [spec.shape for spec in whole.element_spec] == [(16, 6, 8, 3), (16,)]
    for step, (images, labels) in zip((2, 4), whole.as_numpy_iterator(), strict=True):
        for alone, streamed in zip(ours.batch(step), (images, labels), strict=True):
            np.testing.assert_array_equal(alone, streamed)
    with pytest.raises(ValueError, match="multiple of 3"):
        ours.dataset(0, 1, Share(3, 0, 3))


@pytest.mark.parametrize(("batch_size", "pipelines"), [(12, 2), (64, 1)])
def test_evaluation_contains_every_image_once(batch_size, pipelines):
    evaluation = EvaluationBatches(IMAGES, LABELS, batch_size)
    count = 4 // pipelines
    counted = np.zeros((2, 50))
    for first in range(pipelines):
        dataset = evaluation.dataset(Share(4, first * count, count))
        assert len(dataset) == evaluation.steps * count
        for _, labels, weights in dataset:
            np.add.at(counted[0], labels.numpy(), weights.numpy())
    whole = [images for images, _, _ in evaluation.dataset()]
    for number, (images, labels, weights) in enumerate(evaluation):
        np.add.at(counted[1], labels, weights)
        np.testing.assert_array_equal(images, standardize(IMAGES[labels]))
        np.testing.assert_array_equal(images, whole[number])
    np.testing.assert_array_equal(counted, 1)
    floats = EvaluationBatches(IMAGES.astype(np.float32), LABELS, 50)
    np.testing.assert_array_equal(floats.batch(0)[0], IMAGES)
