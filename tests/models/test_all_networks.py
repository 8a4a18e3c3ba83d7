"""Files, seeds, data formats and dtypes of all image classifiers."""

import functools

import keras
import numpy as np
import pytest

from idmatters_tf.models.all_cnn import all_cnn_c
from idmatters_tf.models.cifar import identity_resnet
from idmatters_tf.models.densenet import densenet
from idmatters_tf.models.imagenet import identity_resnet34
from idmatters_tf.models.normalizer_free import normalizer_free_resnet
from idmatters_tf.models.resnet import preresnet, resnet
from tests.support.checks import check_saving, skip_without_channels_first

rng = np.random.default_rng(0)

SMALL = {"blocks": 1, "widths": (8, 12), "stem": 4}
NETWORKS = {
    "identity": functools.partial(identity_resnet, **SMALL),
    "identity, batch": functools.partial(identity_resnet, **SMALL, norm="batch", shortcut="projection"),
    "identity, batch-first": functools.partial(
        identity_resnet, **SMALL, norm="batch", norm_first=True, negative_slope=0.1, head="trained"
    ),
    "identity, Fixup": functools.partial(
        identity_resnet, **SMALL, initializer="fixup", branch_scale=1.0, bias=True, shortcut="none"
    ),
    "identity, ImageNet": functools.partial(identity_resnet34, blocks=(1, 1), widths=(8, 12), stem=4, norm="batch"),
    "normalizer-free": functools.partial(normalizer_free_resnet, **SMALL),
    "resnet": functools.partial(resnet, depth=8),
    "preresnet": functools.partial(preresnet, depth=8, shortcut="projection"),
    "resnet, ImageNet": functools.partial(resnet, depth=18),
    "densenet": functools.partial(densenet, depth=10, growth=4, bottleneck=True),
    "all-cnn": all_cnn_c,
}


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    """Give ResNet-18 few channels, because most of the time is that of its initial kernels."""
    monkeypatch.setattr("idmatters_tf.models.resnet.IMAGENET_WIDTHS", (4, 6, 8, 10))


@pytest.fixture
def channels_first():
    skip_without_channels_first()
    keras.config.set_image_data_format("channels_first")
    yield
    keras.config.set_image_data_format("channels_last")


@pytest.mark.parametrize("name", NETWORKS)
def test_channels_may_come_first(name, channels_first):
    model = NETWORKS[name]((3, 20, 12))
    keras.config.set_image_data_format("channels_last")
    expected = NETWORKS[name]((20, 12, 3))
    expected.set_weights([rng.uniform(0.1, 0.2, size=weight.shape) for weight in expected.get_weights()])
    model.set_weights(expected.get_weights())
    images = rng.normal(size=(2, 20, 12, 3)).astype("float32")
    outputs = np.array(expected(images))
    np.testing.assert_allclose(model(np.moveaxis(images, 3, 1)), outputs, rtol=1e-4)
    assert np.ptp(outputs, axis=0).all()


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_depend_on_the_seed_decay_their_weights_and_are_saved(name, tmp_path):
    """Networks near the identity decay kernels, the baselines all variables."""
    model = NETWORKS[name]((None, None, 3), classes=5, weight_decay=0.02)
    again = NETWORKS[name]((16, 16, 3), classes=5, weight_decay=0)
    assert not again.losses
    again, other = again.get_weights(), NETWORKS[name]((16, 16, 3), classes=5, seed=1).get_weights()
    assert all(np.array_equal(a, b) for a, b in zip(model.get_weights(), again, strict=True))
    kernels = [(a, b) for a, b in zip(again, other, strict=True) if a.ndim > 1 and np.any(a)]
    assert kernels
    assert not any(np.array_equal(a, b) for a, b in kernels)

    is_near_identity = name.startswith(("identity", "normalizer-free"))
    decayed = [v for v in model.trainable_weights if v.path.endswith("kernel") or not is_near_identity]
    assert len(decayed) == len(model.losses)
    expected = sum(0.02 / 2 * np.sum(np.square(variable)) for variable in decayed)
    np.testing.assert_allclose(sum(np.array(loss) for loss in model.losses), expected, rtol=1e-4)

    model.set_weights([rng.uniform(0.1, 0.2, size=weight.shape) for weight in again])
    check_saving(model, rng.normal(size=(2, 16, 16, 3)).astype("float32"), tmp_path / "model.keras")


@pytest.mark.parametrize(
    ("name", "policy", "dtype"),
    [("identity", "float64", "float64"), *((name, "bfloat16", "float32") for name in NETWORKS)],
)
def test_logits_and_head_have_at_least_32_bits(name, policy, dtype):
    keras.config.set_dtype_policy(policy)
    model = NETWORKS[name]((32, 32, 3))
    assert model.output.dtype == dtype
    # The logits of All-CNN are averages over a convolution.
    head = [variable.dtype for layer in model.layers if layer.name == "head" for variable in layer.variables]
    assert head or name == "all-cnn"
    assert set(head) <= {dtype}
