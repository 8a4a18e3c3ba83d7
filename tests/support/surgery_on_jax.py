"""Insertion and removal of blocks as a program for KERAS_BACKEND=jax, with a path for a model."""

import sys

import keras
import numpy as np
from keras import layers

from idmatters_tf.surgery import deepen, remove_identities
from tests.support import surgery_state_cases


def main(path):
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 6, 6, 2)).astype("float32"), rng.integers(0, 3, 8)
    inputs = keras.Input((6, 6, 2))
    features = layers.Dropout(0.1)(layers.BatchNormalization()(layers.Conv2D(4, 3, name="conv")(inputs)))
    features = layers.Dense(5, "relu", name="dense")(layers.GlobalAveragePooling2D()(features))
    model = keras.Model(inputs, layers.Dense(3, name="logits")(features))
    model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(x, y, verbose=0)

    deeper = deepen(model, ["conv", "dense"], optimizer=model.optimizer)
    assert np.array_equal(model(x), deeper(x))
    assert int(deeper.optimizer.iterations) == int(model.optimizer.iterations) == 1

    # The copy shares no buffers, although `fit` on JAX donates those of its model.
    start = np.array(model(x))
    held = deepen(model, ["conv", "dense"], optimizer=model.optimizer)
    for trained in (model, deeper):
        trained.fit(x, y, verbose=0)
    assert not np.array_equal(model(x), start)
    assert np.array_equal(held(x), start)
    deeper.save(path)
    assert np.array_equal(keras.saving.load_model(path)(x), deeper(x))

    removed = remove_identities(held, 0.0, (x, y))
    assert removed.removed == ("conv_deeper1", "dense_deeper1"), removed
    assert np.array_equal(removed.model(x), start)
    assert np.isclose(removed.before["loss"], removed.after["loss"], rtol=1e-6)
    for case in surgery_state_cases.CASES:
        case()
    print(keras.backend.backend())


if __name__ == "__main__":
    main(sys.argv[1])
