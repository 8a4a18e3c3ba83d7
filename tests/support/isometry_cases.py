"""Distances, singular values and callbacks in pure Keras, for comparisons between backends.

`python -m tests.support.isometry_cases` prints the results as JSON.
"""

import json

import keras
import numpy as np


def fitted():
    """Return the measurements of the monitors on a convolutional network in one step of `fit`."""
    from idmatters_tf.callbacks import BlockNorms, IsometryMonitor
    from idmatters_tf.layers import ResidualConv2D

    rng = np.random.default_rng(0)
    inputs = keras.Input((6, 6, 3))
    hidden = ResidualConv2D(3, norm="batch", name="one")(inputs)
    hidden = ResidualConv2D(4, strides=2, name="two")(hidden)
    model = keras.Model(inputs, keras.layers.Dense(2, name="head")(keras.layers.GlobalAveragePooling2D()(hidden)))
    for variable in model.trainable_variables:
        variable.assign(0.3 * rng.normal(size=variable.shape))
    images, targets = rng.normal(size=(4, 6, 6, 3)).astype("float32"), rng.normal(size=(4, 2)).astype("float32")
    model.compile(keras.optimizers.SGD(0.01), "mse")
    isometry, norms = IsometryMonitor(images[:2]), BlockNorms()
    history = model.fit(images, targets, batch_size=4, epochs=1, shuffle=False, verbose=0, callbacks=[isometry, norms])
    assert set(history.history) >= {"isometry_mean_distance", "norms_largest_spectral"}
    return model, images, isometry, norms


def numbers():
    """Return lists of numbers by name."""
    from idmatters_tf.isometry import extreme_singular_values, jacobian, measure

    model, images, isometry, norms = fitted()
    found = {"backend": keras.backend.backend()}
    for epoch, measured in isometry.measurements.items():
        found[f"end to end {epoch}"] = measured.end_to_end.tolist()
        for name, block in measured.blocks.items():
            found[f"{name} {epoch}"] = [block.distance.tolist(), block.smallest.tolist(), block.relative.tolist()]
    found["tau"] = [measured.bounds["two"] for measured in norms.measurements.values()]
    batch = measure(model, images, training=True)
    found["of the batch"] = [batch.blocks["one"].distance.tolist(), batch.blocks["one"].largest.tolist()]
    # Products in chunks, on copies of the inputs.
    found["block"] = (jacobian(model, images[:1], "two", chunk=8) @ np.eye(108, dtype="float32")).tolist()
    large = keras.Sequential([keras.Input((300,)), keras.layers.Dense(300, kernel_initializer="zeros", name="wide")])
    large.get_layer("wide").kernel.assign(np.diag(np.linspace(1, 2, 300)))
    ends = extreme_singular_values(jacobian(large, np.ones((1, 300), "float32")), tolerance=1e-4)
    found["ends"] = [ends.largest.tolist(), ends.smallest.tolist()]
    return found


if __name__ == "__main__":
    print(json.dumps(numbers()))
