"""Baselines of Hardt & Ma's Table 2: published sizes and formulas."""

import keras
import numpy as np
import pytest

from idmatters_tf.layers import BasicBlock2D
from idmatters_tf.models.all_cnn import all_cnn_c
from idmatters_tf.models.densenet import densenet
from idmatters_tf.models.resnet import preresnet, resnet
from tests.layers.test_convolutional import naive_convolution
from tests.models.test_cifar import convolutions, trainable_parameters
from tests.support.checks import check_layer

rng = np.random.default_rng(5)


def images(n=2, size=16):
    return rng.normal(size=(n, size, size, 3)).astype("float32")


@pytest.mark.parametrize("network", [resnet, preresnet])
def test_sizes_of_residual_networks(network):
    model, deeper = network(depth=20), network(depth=26)
    assert [len(convolutions(each)) for each in (model, deeper)] == [19, 25]
    assert trainable_parameters(network(depth=20, shortcut="none")) == trainable_parameters(model)
    # The number is linear in the depth. Building 1,202 layers takes a minute.
    step = trainable_parameters(deeper) - trainable_parameters(model)
    published = {20: 269_722, 32: 464_154, 44: 658_586, 56: 853_018, 110: 1_727_962, 1202: 19_421_274}
    for depth, number in published.items():
        assert trainable_parameters(model) + step * (depth - 20) // 6 == number


@pytest.mark.parametrize(
    ("build", "published"),
    [
        (lambda: resnet((64, 64, 3), 1000, 18, shortcut="projection"), 11_689_512),
        pytest.param(lambda: resnet((64, 64, 3), 1000, 34, shortcut="projection"), 21_797_672, marks=pytest.mark.slow),
        (lambda: densenet((64, 64, 3), 1000, 121, 32, bottleneck=True), 7_978_856),
        pytest.param(lambda: densenet(depth=100, growth=24), 27_249_082, marks=pytest.mark.slow),
        (lambda: densenet(depth=40, growth=12), 1_019_722),
        pytest.param(lambda: densenet(depth=100, growth=12, bottleneck=True), 769_162, marks=pytest.mark.slow),
    ],
)
def test_sizes_are_those_of_torchvision_and_of_the_paper(build, published):
    assert trainable_parameters(build()) == published


def test_architecture_of_all_cnn():
    model = all_cnn_c()
    assert trainable_parameters(model) == 1_369_738
    assert [layer.output.shape[1:] for layer in convolutions(model)] == [
        (32, 32, 96), (32, 32, 96), (16, 16, 96), (16, 16, 192), (16, 16, 192), (8, 8, 192), (6, 6, 192), (6, 6, 192),
        (6, 6, 10),
    ]  # fmt: skip
    drops = [(layer.name, layer.rate) for layer in model.layers if isinstance(layer, keras.layers.Dropout)]
    assert drops == [("dropout0", 0.2), ("dropout3", 0.5), ("dropout6", 0.5)]
    x = images(4, 32)
    assert np.array_equal(model(x, training=False), model(x, training=False))
    assert not np.array_equal(model(x, training=True), model(x, training=True))


def relu(x):
    return np.maximum(x, 0)


@pytest.mark.parametrize("preactivation", [None, "branch", "both"])
@pytest.mark.parametrize(
    ("strides", "filters", "shortcut"), [(1, 4, "pad"), (2, 6, "pad"), (2, 6, "projection"), (2, 6, "none")]
)
def test_formula_of_the_basic_block(preactivation, strides, filters, shortcut):
    block = BasicBlock2D(filters, strides, preactivation, shortcut)
    x = rng.normal(size=(2, 8, 8, 4)).astype("float32")
    block.build(x.shape)
    for variable in block.weights:
        variable.assign(rng.uniform(0.2, 1.5, variable.shape))

    def norm(layer, features):
        gamma, beta, mean, variance = (np.array(weight) for weight in layer.get_weights())
        return gamma * (features - mean) / np.sqrt(variance + 1e-5) + beta

    def skip(features):
        if shortcut == "none":
            return 0
        if shortcut == "pad" or block.skip is None:
            return np.pad(features[:, ::strides, ::strides], [(0, 0)] * 3 + [((filters - 4) // 2, (filters - 3) // 2)])
        projected = naive_convolution(features, np.array(block.skip.kernel), strides)
        return norm(block.skip_norm, projected) if preactivation is None else projected

    assert isinstance(block.skip, keras.layers.Conv2D) == (shortcut == "projection" and strides == 2)
    kernels = [np.array(conv.kernel) for conv in (block.conv1, block.conv2)]
    if preactivation is None:
        branch = relu(norm(block.norm1, naive_convolution(x, kernels[0], strides)))
        branch = norm(block.norm2, naive_convolution(branch, kernels[1]))
        expected = relu(branch + skip(x))
    else:
        active = relu(norm(block.norm1, x))
        branch = relu(norm(block.norm2, naive_convolution(active, kernels[0], strides)))
        branch = naive_convolution(branch, kernels[1])
        expected = branch + skip(active if preactivation == "both" else x)
    np.testing.assert_allclose(block(x), expected, atol=1e-3 * np.abs(expected).max())
    if shortcut == "projection":
        check_layer(block, x)


def test_invalid_arguments_of_the_baselines():
    block = BasicBlock2D(6, 2, norm="synchronized", data_format="channels_first")
    assert block.compute_output_shape((None, 4, 9, None)) == (None, 6, 5, None)
    block.build((None, 4, 8, 8))
    assert block.norm1.gamma.shape == (6,)
    assert block.norm1.synchronized
    for build, message in (
        (lambda: resnet(depth=21), "`depth` must be 6 n . 2.*depth=21"),
        (lambda: resnet(depth=20, norm="layer"), "`norm` must be one of 'batch', 'synchronized'"),
        (lambda: densenet(depth=43, bottleneck=True), "6 n . 4 for n layers per block with bottlenecks"),
        (lambda: BasicBlock2D(8, preactivation="all"), "`preactivation` of BasicBlock2D must be one of None"),
    ):
        with pytest.raises(ValueError, match=message):
            build()
