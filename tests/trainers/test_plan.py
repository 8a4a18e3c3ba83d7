"""Computed training times against the networks and against formulas evaluated by hand."""

import dataclasses
import math

import keras
import pytest

from idmatters_tf.models.cost import Cost, identity_network_cost
from idmatters_tf.models.identity import identity_network
from idmatters_tf.models.imagenet import RESNET34_WIDTHS, identity_resnet34
from idmatters_tf.models.layout import IMAGENET, Layout
from trainers.cli.arguments import UsageError
from trainers.cli.settings import with_defaults
from trainers.plan import Settings, main, plan


@pytest.mark.parametrize("size", [32, 45])
def test_counts_equal_those_of_the_layers(size):
    layout = Layout(blocks=(1, 3), widths=(6, 10), strides=(1, 2), stem=4, stem_size=5, stem_strides=2)
    model = identity_network((size, size, 3), 7, layout)
    cost = identity_network_cost(layout, size, classes=7)
    parameters = sum(math.prod(weight.shape) for weight in model.trainable_weights)
    operations, kept = math.prod(model.get_layer("head").kernel.shape), size * size * 3
    features = keras.Model(model.inputs, [layer.output for layer in model.layers[:-2]])
    shapes = dict(zip([layer.name for layer in model.layers[:-2]], features.output_shape, strict=True))
    operations += math.prod(model.get_layer("stem").kernel.shape) * math.prod(shapes["stem"][1:3])
    inputs = shapes["stem"]
    for name, shape in shapes.items():
        if name.startswith("stage"):
            block = model.get_layer(name)
            weights = math.prod(block.conv1.kernel.shape) + math.prod(block.conv2.kernel.shape)
            operations += weights * math.prod(shape[1:3])
            kept += math.prod(inputs[1:]) + math.prod(shape[1:])
            inputs = shape
    kept += math.prod(inputs[1:])
    assert cost == Cost(parameters, operations, kept)


def test_the_papers_network():
    cost = identity_network_cost(IMAGENET, 224)
    model = identity_resnet34()
    assert cost.parameters == sum(math.prod(weight.shape) for weight in model.trainable_weights)
    # He et al. (2015), Table 1: 3.6 x 10^9 for their widths, with a max pooling and projections in addition.
    assert identity_network_cost(
        dataclasses.replace(IMAGENET, widths=RESNET34_WIDTHS), 224
    ).multiply_adds == pytest.approx(3.6e9, rel=0.03)


def planned(cost, **changes):
    return plan(cost, with_defaults(Settings, changes))


def test_a_plan_computed_by_hand():
    cost = Cost(parameters=1_000_000, multiply_adds=10**9, kept_values=2_000_000)
    machine = {"devices": 4, "batch_size": 64, "tflops": 1.0, "utilization": 0.5, "cores": 2, "decode_rate": 100.0}
    network = {"network_gbit": 8.0, "device_gbit": 80.0, "steps": 1000, "size": 100}
    ours = planned(cost, machines=3, strategy="multi-worker", **machine, **network)
    assert ours.compute == pytest.approx(6e9 * 16 / 0.5e12)
    # 4 MB: 1.5 times at 10 GB/s within a machine, 4/3 times at 1 GB/s between machines.
    assert ours.communicate == pytest.approx(1.5 * 4e6 / 1e10 + 4 / 3 * 4e6 / 1e9)
    assert ours.decode == pytest.approx(0.32)
    assert ours.bottleneck == "decoding images"
    assert ours.step == pytest.approx(0.32)
    assert ours.images_per_second == pytest.approx(3 * 64 / 0.32)
    assert ours.updates == pytest.approx(320)
    assert ours.epochs == pytest.approx(1000 * 192 / 1_281_167)
    assert ours.memory == pytest.approx(12e6 + 16 * (8e6 + 3 * 4 * 30_000))
    served = planned(cost, machines=3, strategy="parameter-server", servers=2, **machine, **network)
    assert served.communicate == pytest.approx(1.5 * 4e6 / 1e10 + 3 * 8e6 / 2e9)
    assert served.updates == pytest.approx(320 / 3)
    assert served.epochs == pytest.approx(1000 * 64 / 1_281_167)


# Everything else takes almost no time.
COMPUTE_BOUND = {"cores": 10**6, "network_gbit": 1e6, "device_gbit": 1e6}
NETWORK_BOUND = {"cores": 10**6, "tflops": 1e6, "device_gbit": 1e6}
DEVICE_LINK_BOUND = {"cores": 10**6, "tflops": 1e6, "network_gbit": 1e6}
DECODING_BOUND = {"tflops": 1e6, "network_gbit": 1e6, "device_gbit": 1e6}


@pytest.mark.parametrize(
    ("option", "better", "situation"),
    [
        ("tflops", 9.0, COMPUTE_BOUND),
        ("utilization", 0.6, COMPUTE_BOUND),
        ("devices", 16, COMPUTE_BOUND),
        ("network_gbit", 9.0, NETWORK_BOUND),
        ("servers", 3, NETWORK_BOUND),
        ("device_gbit", 100.0, DEVICE_LINK_BOUND),
        ("cores", 64, DECODING_BOUND),
        ("decode_rate", 400.0, DECODING_BOUND),
    ],
)
def test_more_of_the_limiting_resource_is_faster(option, better, situation):
    cost = identity_network_cost(IMAGENET, 224)
    before, after = (planned(cost, **{**situation, **changes}) for changes in ({}, {option: better}))
    assert after.updates < before.updates
    assert after.images_per_second > before.images_per_second


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"widths": (64, 128)}, "--blocks and --widths must have the same number of values"),
        ({"batch_size": 100}, "--batch-size must be a multiple of the 8 devices. Received: 100"),
    ],
)
def test_bad_settings(changes, message):
    with pytest.raises(UsageError, match=message):
        with_defaults(Settings, changes)


def test_the_program(capsys):
    assert main([]) == 0
    output = capsys.readouterr().out
    for text in ("35,694,336 parameters", "bottleneck", "700,000 updates", "140 epochs"):
        assert text in output
