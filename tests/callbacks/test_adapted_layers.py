"""Preprocessing layers that only the first process has adapted to its data."""

import keras
import numpy as np
import pytest

from idmatters_tf.callbacks import ArrayBatches, CurvatureMonitor, ExactResume, load_weights

X = 5 + 3 * np.random.default_rng(0).normal(size=(24, 2)).astype("float32")
Y = X.sum(1, keepdims=True)
WORDS = np.array(["a", "b", "c", "b", "c", "c"] * 4)[:, None]


def normalization(adapts):
    layer = keras.layers.Normalization()
    layer.adapt(X) if adapts else layer.build((None, 2))
    return [keras.Input((2,)), layer, keras.layers.Dense(1)], X


def discretization(adapts):
    layer = keras.layers.Discretization(num_bins=4)
    layer.adapt(X if adapts else X + 2)
    return [keras.Input((2,)), layer, keras.layers.Rescaling(1.0), keras.layers.Dense(1)], X


def lookup(adapts):
    layer = keras.layers.StringLookup(max_tokens=5, output_mode="tf_idf", pad_to_max_tokens=True)
    layer.adapt(WORDS if adapts else WORDS[:2])
    return [keras.Input((1,), dtype="string"), layer, keras.layers.Dense(1)], WORDS


def text(adapts):
    layer = keras.layers.TextVectorization(max_tokens=5, output_mode="multi_hot", pad_to_max_tokens=True)
    layer.adapt(WORDS if adapts else WORDS[:2])
    return [keras.Input((1,), dtype="string"), layer, keras.layers.Dense(1)], WORDS


CASES = [normalization, discretization]
if keras.backend.backend() == "tensorflow":
    CASES += [lookup, text]


def make(case, adapts):
    keras.utils.set_random_seed(0)
    layers, x = case(adapts)
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(1e-3), "mse")
    return model, x


@pytest.mark.parametrize("case", CASES)
def test_a_model_that_is_not_adapted(case, tmp_path):
    def fit(model, x, folder, epochs):
        model.fit(x, epochs=epochs, callbacks=[ExactResume(folder, every=3)], verbose=0)
        return model.predict(x, verbose=0)

    def dataset(x):
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            return tf.data.Dataset.from_tensor_slices((x, Y)).batch(6)
        return ArrayBatches(x, Y, batch_size=6, shuffle=False)

    model, x = make(case, True)
    data = dataset(x)
    expected = fit(model, data, tmp_path / "first", 2)
    other, _ = make(case, False)
    # Compiled functions contain the constants of the layer.
    assert (other.predict(data, verbose=0) != expected).any()
    load_weights(other, tmp_path / "first")
    np.testing.assert_array_equal(other.predict(data, verbose=0), expected)
    if case is not normalization:
        with pytest.raises(
            ValueError, match=r"(Discretization.bin_boundaries|StringLookup.vocabulary_size).* was .*, now"
        ):
            fit(make(case, False)[0], data, tmp_path / "first", 3)
        return
    resumed = fit(make(case, False)[0], data, tmp_path / "first", 3)
    np.testing.assert_array_equal(resumed, fit(make(case, True)[0], dataset(x), tmp_path / "whole", 3))


def test_a_copy_whose_curvature_is_measured():
    model, _ = make(normalization, True)
    copy, _ = make(normalization, False)
    options = {"every": 4, "measure_options": {"probes": 1, "steps": 3, "products": 20}}
    monitors = [CurvatureMonitor((X, Y), **options), CurvatureMonitor((X, Y), copy=copy, loss="mse", **options)]
    for monitor in monitors:
        monitor.set_model(model)
        monitor.on_train_begin()
    one, other = (monitor.record(0) for monitor in monitors)
    np.testing.assert_allclose(other.largest, one.largest, rtol=1e-5)
