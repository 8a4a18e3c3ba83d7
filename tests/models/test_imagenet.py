import keras
import numpy as np
import pytest

from idmatters_tf.models.imagenet import RESNET34_WIDTHS, identity_resnet34
from tests.support.checks import check_saving

rng = np.random.default_rng(5)


def trainable_parameters(model):
    return sum(int(np.prod(weight.shape)) for weight in model.trainable_weights)


def convolutions(blocks, widths, stem):
    """Return the number of trainable parameters of 3x3 blocks after a 7x7 stem on three channels."""
    total, inputs = 7 * 7 * 3 * stem, stem
    for count, width in zip(blocks, widths, strict=True):
        total += 9 * inputs * width + 9 * width * width * (2 * count - 1)
        inputs = width
    return total


def test_the_papers_number_of_parameters():
    model = identity_resnet34()
    assert trainable_parameters(model) == convolutions((3, 4, 6, 3), (80, 168, 328, 672), 64) == 35_694_336
    assert model.get_layer("head").kernel.shape == (672, 1000)
    sizes = [model.get_layer(f"stage{stage}_block1").output.shape[1:3] for stage in (1, 2, 3, 4)]
    assert sizes == [(56, 56), (28, 28), (14, 14), (7, 7)]


def test_he_et_al_s_widths():
    assert trainable_parameters(identity_resnet34(widths=RESNET34_WIDTHS)) == 21_095_616
    normalised = identity_resnet34(widths=RESNET34_WIDTHS, norm="batch", head="trained")
    # Two parameters for each channel of 33 convolutions, and the last layer with its biases.
    channels = 64 + 2 * (3 * 64 + 4 * 128 + 6 * 256 + 3 * 512)
    assert trainable_parameters(normalised) == 21_095_616 + 2 * channels + 512 * 1000 + 1000


def test_a_small_one_trains_and_saves(tmp_path):
    model = identity_resnet34((32, 40, 3), 7, blocks=(1, 2), widths=(6, 10), stem=4, norm="synchronized")
    images = rng.normal(size=(4, 32, 40, 3)).astype("float32")
    check_saving(model, images, tmp_path / "model.keras")
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    assert np.isfinite(model.fit(images, np.arange(4), verbose=0).history["loss"][0])


def test_the_loss_starts_at_log_classes():
    model = identity_resnet34((64, 64, 3), 1000)
    images = rng.normal(size=(4, 64, 64, 3)).astype("float32")
    logits = model.predict(images, verbose=0)
    loss = keras.losses.sparse_categorical_crossentropy(np.arange(4), logits, from_logits=True)
    np.testing.assert_allclose(np.mean(loss), np.log(1000), atol=0.1)


def test_bad_arguments():
    with pytest.raises(ValueError, match="`blocks` and `widths` must have the same length"):
        identity_resnet34(blocks=(1, 2))
    with pytest.raises(ValueError, match=r"`blocks\[1\]` must be a positive integer"):
        identity_resnet34(blocks=(1, 0), widths=(8, 8))
