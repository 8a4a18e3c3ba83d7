"""Layers, networks, distances and monitors in pure Keras, for comparisons between backends.

`python -m tests.support.backend_cases FOLDER` prints the results as JSON.
"""

import json
import pathlib
import sys

import keras
import numpy as np

from idmatters_tf import layers
from idmatters_tf.callbacks import BlockNorms, IsometryMonitor
from idmatters_tf.expressivity import memorize
from idmatters_tf.isometry import JacobianOperator, extreme_singular_values, jacobian, measure, spectral_norm
from idmatters_tf.models import linear
from idmatters_tf.models.cifar import identity_resnet
from idmatters_tf.optimizers import Momentum


def randomize(model, rng, scale=0.2):
    for variable in model.trainable_variables:
        variable.assign(scale * rng.normal(size=variable.shape))
    return model


def networks(folder, rng):
    """Return the numbers of convolutional networks and of networks on vectors."""
    results = {}
    images = rng.normal(size=(4, 15, 16, 3)).astype("float32")
    for shortcut in ("projection", "pad"):
        model = identity_resnet((None, None, 3), blocks=1, widths=(8, 12), stem=4, bias=True, shortcut=shortcut)
        results[f"head {shortcut}"] = np.array(model.get_layer("head").kernel).tolist()
        results[f"logits {shortcut}"] = np.array(randomize(model, rng)(images)).tolist()
    convolution = model.get_layer("stage2_block1").conv1
    results["spectral"] = spectral_norm(JacobianOperator(convolution, np.zeros((1, 15, 16, 8), "float32")))
    model.compile(Momentum(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    results["loss"] = model.fit(images, np.arange(4), epochs=2, shuffle=False, verbose=0).history["loss"]
    path = pathlib.Path(folder) / f"{keras.backend.backend()}.keras"
    model.save(path)
    np.testing.assert_array_equal(keras.saving.load_model(path)(images), model(images))
    vectors = rng.normal(size=(4, 10)).astype("float32")
    residual = [layers.ResidualDense(7), layers.LinearResidual("ones"), layers.ShortcutUnit(2, mid="tanh")]
    dense = randomize(keras.Sequential([keras.Input((10,)), *residual]), rng)
    results["dense"] = np.array(dense(vectors)).tolist()
    shortcuts = linear.shortcut_network(10, 3, 2, mid="relu")
    linear.assign_weights(shortcuts, 0.3 * rng.normal(size=(3, 2, 10, 10)))
    results["shortcuts"] = np.array(shortcuts(vectors)).tolist()
    pixels = rng.integers(0, 256, (2, 5, 5, 3)).astype("uint8")
    results["pixels"] = np.array(layers.PerImageStandardization()(pixels)).tolist()
    keras.config.set_dtype_policy("mixed_bfloat16")
    half = identity_resnet((15, 16, 3), blocks=1, widths=(8, 12), stem=4)
    keras.config.set_dtype_policy("float32")
    assert keras.backend.standardize_dtype(half(images).dtype) == half.output.dtype == "float32"
    return results


def check_memorizer(rng):
    points, labels = rng.normal(size=(60, 5)), rng.integers(0, 4, 60)
    memorizer = memorize(points, labels, width=8, dtype="float32")
    exact = memorizer.report.verified["float32"]
    assert exact.correct == 60, exact
    assert exact.largest_error < 1e-3, exact
    memorizer.compile(keras.optimizers.SGD(1e-3), "mse")
    memorizer.fit(points, np.eye(4)[labels], epochs=1, verbose=0)


def distances(rng):
    """Return the numbers of the monitors in one step of `fit`, and those of single measurements."""
    inputs = keras.Input((6, 6, 3))
    hidden = layers.ResidualConv2D(3, norm="batch", name="one")(inputs)
    hidden = layers.ResidualConv2D(4, strides=2, name="two")(hidden)
    model = keras.Model(inputs, keras.layers.Dense(2, name="head")(keras.layers.GlobalAveragePooling2D()(hidden)))
    randomize(model, rng, 0.3)
    images, targets = rng.normal(size=(2, 6, 6, 3)).astype("float32"), rng.normal(size=(2, 2)).astype("float32")
    model.compile(keras.optimizers.SGD(0.01), "mse")
    isometry, norms = IsometryMonitor(images[:1]), BlockNorms()
    history = model.fit(images, targets, epochs=1, shuffle=False, verbose=0, callbacks=[isometry, norms])
    assert set(history.history) >= {"isometry_mean_distance", "norms_largest_spectral"}
    results = {"norms": [measured.blocks["two"]["spectral"] for measured in norms.measurements.values()]}
    for epoch, measured in isometry.measurements.items():
        results[f"end to end {epoch}"] = measured.end_to_end.tolist()
        for name, block in measured.blocks.items():
            results[f"{name} {epoch}"] = [block.distance.tolist(), block.smallest.tolist(), block.relative.tolist()]
    block = measure(model, images, ["one"], training=True, end_to_end=False).blocks["one"]
    results["training"] = [block.distance.tolist(), block.largest.tolist()]
    # Products in chunks, on copies of the inputs.
    results["block"] = (jacobian(model, images[:1], "two", chunk=8) @ np.eye(108, dtype="float32")).tolist()
    large = keras.Sequential([keras.Input((300,)), keras.layers.Dense(300, kernel_initializer="zeros", name="wide")])
    large.get_layer("wide").kernel.assign(np.diag(np.linspace(1, 2, 300)))
    ends = extreme_singular_values(jacobian(large, np.ones((1, 300), "float32")), tolerance=1e-4)
    return {**results, "ends": [ends.largest.tolist(), ends.smallest.tolist()]}


def numbers(folder):
    """Return lists of numbers by name."""
    rng = np.random.default_rng(0)
    results = {"backend": keras.backend.backend(), **networks(folder, rng), **distances(rng)}
    check_memorizer(rng)
    return results


if __name__ == "__main__":
    print(json.dumps(numbers(sys.argv[1])))
