import keras
import numpy as np

from idmatters_tf.models.imagenet import identity_resnet34
from tests.models.test_cifar import trainable_parameters

rng = np.random.default_rng(5)


def convolutions(blocks, widths, stem):
    """Return the number of trainable parameters of 3x3 blocks after a 7x7 stem on three channels."""
    total = 7 * 7 * 3 * stem
    inputs = stem
    for count, width in zip(blocks, widths, strict=True):
        total += 9 * inputs * width + 9 * width * width * (2 * count - 1)
        inputs = width
    return total


def test_number_of_parameters_and_initial_loss():
    model = identity_resnet34()
    assert trainable_parameters(model) == convolutions((3, 4, 6, 3), (80, 168, 328, 672), 64) == 35_694_336
    assert model.get_layer("head").kernel.shape == (672, 1000)
    sizes = [model.get_layer(f"stage{stage}_block1").output.shape[1:3] for stage in (1, 2, 3, 4)]
    assert sizes == [(56, 56), (28, 28), (14, 14), (7, 7)]
    logits = model(rng.normal(size=(1, 224, 224, 3)).astype("float32"))
    loss = keras.losses.sparse_categorical_crossentropy(np.array([7]), logits, from_logits=True)
    np.testing.assert_allclose(loss, np.log(1000), atol=0.1)
