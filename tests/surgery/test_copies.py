"""Copies keep more than weights: vocabularies, state, trainability and compile arguments."""

import keras
import numpy as np
import pytest
from keras import layers, ops

from idmatters_tf.layers import ResidualDense
from idmatters_tf.surgery import deepen, remove_identities
from tests.support.checks import skip_without_channels_first
from tests.support.versions import needs_saved_tf_idf

NUMBERS = np.array([1, 2, 30, 30, 5])
EAGERLY = keras.backend.backend() == "tensorflow"
TEXT = pytest.mark.skipif(not EAGERLY, reason="only there text can be processed")


@pytest.fixture(autouse=True)
def seed():
    keras.utils.set_random_seed(0)


@pytest.mark.parametrize(
    ("layer", "data"),
    [
        (layers.Discretization(num_bins=3), NUMBERS.astype("float32")),
        pytest.param(layers.IntegerLookup(output_mode="tf_idf"), NUMBERS[:, None], marks=needs_saved_tf_idf),
        (layers.Normalization(axis=None), NUMBERS.astype("float32")),
        pytest.param(
            layers.TextVectorization(output_mode="tf_idf"),
            np.array(["a b", "b", "c d a", "a"]),
            marks=(TEXT, needs_saved_tf_idf),
        ),
    ],
)
def test_state_of_adapted_preprocessing_is_copied(layer, data):
    layer.adapt(data)
    inputs = keras.Input((1,), dtype="string" if data.dtype.kind == "U" else data.dtype)
    block = ResidualDense(3, name="block")
    model = keras.Model(inputs, block(layers.Activation("linear", dtype="float32")(layer(inputs))))
    for variable in model.trainable_variables:
        variable.assign(np.random.default_rng(0).normal(size=variable.shape))
    x = data.reshape(-1, 1) if data.dtype.kind != "U" else ops.convert_to_tensor(data[:, None])
    expected = np.array(model(x))
    np.testing.assert_array_equal(remove_identities(model, 0.0, x).model(x), expected)
    np.testing.assert_array_equal(deepen(model, "block", ResidualDense(16), data=x)(x), expected)


def classifier():
    model = keras.Sequential(
        [keras.Input((3,)), layers.Dense(4, name="hidden"), ResidualDense(2, name="block"), layers.Dense(2)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=["accuracy"], run_eagerly=EAGERLY)
    rng = np.random.default_rng(0)
    return model, rng.normal(size=(8, 3)).astype("float32"), rng.integers(0, 2, 8)


def test_data_as_lists_of_batches():
    model, x, y = classifier()
    expected, weights = model.evaluate(x, y, return_dict=True, verbose=0), model.get_weights()
    result = remove_identities(model, 0.0, [(x[:5], y[:5]), (x[5:], y[5:])])
    for name, value in expected.items():
        np.testing.assert_allclose([result.before[name], result.after[name]], value, rtol=1e-6)
    with pytest.raises(Exception, match="."):  # of another class on each backend
        remove_identities(model, 0.0, [(x[:5], y[:5]), (x[5:], y[:2])])
    for weight, value in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(weight, value)


def test_state_of_stateful_layers_is_copied_and_kept():
    """A stateful layer and moving averages and random numbers change in any call, also with `training=False`."""
    inputs = keras.Input((3, 4), batch_size=2)
    hidden = layers.BatchNormalization(name="norm")(inputs, training=True)
    hidden = layers.Dropout(0.5)(hidden, training=True)
    hidden = layers.GRU(4, stateful=True, name="gru")(ResidualDense(2, name="block")(hidden))
    model = keras.Model(inputs, layers.Dense(2)(hidden))
    model.compile("sgd", "mse", metrics=["mae"], run_eagerly=EAGERLY)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 3, 4)).astype("float32"), rng.normal(size=(2, 2)).astype("float32")
    model.evaluate(x, y, batch_size=2, verbose=0)
    model(x)

    def state(model):
        old = [variable for variable in model.variables if "_deeper" not in variable.path]
        return [np.array(variable) for variable in (*old, *model.get_layer("gru").states)]

    expected = state(model)
    assert np.any(expected[-1])
    for copied in (deepen(model, "gru"), remove_identities(model, 0.0, (x, y), batch_size=2).model, model):
        for value, before in zip(state(copied), expected, strict=True):
            np.testing.assert_array_equal(value, before)


def test_trainability_of_layers_is_copied():
    base = keras.Sequential(
        [keras.Input((3,)), layers.Dense(4, name="frozen"), layers.Dense(4, name="unfrozen")], name="base"
    )
    base.trainable = False
    base.get_layer("unfrozen").trainable = True
    model = keras.Sequential([keras.Input((3,)), base, layers.Dense(2, name="head")])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", run_eagerly=EAGERLY)
    model.fit(np.ones((4, 3)), np.ones((4, 2)), verbose=0)
    deeper = deepen(model, "unfrozen", optimizer=model.optimizer)
    trained = [variable.path for variable in model.trainable_variables]
    assert [variable.path for variable in deeper.trainable_variables if "_deeper" not in variable.path] == trained
    assert not deeper.get_layer("base").get_layer("frozen").trainable
    slots = {variable.path: np.array(variable) for variable in deeper.optimizer.variables}
    for variable in model.optimizer.variables[2:]:
        assert np.any(variable)
        np.testing.assert_array_equal(slots[variable.path], variable)


def test_loss_scaling_is_kept():
    """The policy of the model decides, not the current one."""
    keras.config.set_dtype_policy("mixed_float16")
    model = classifier()[0]
    keras.config.set_dtype_policy("float32")
    for optimizer in (None, model.optimizer, model.optimizer.inner_optimizer):
        deeper = deepen(model, "hidden", optimizer=optimizer)
        assert type(deeper.optimizer) is keras.optimizers.LossScaleOptimizer
        assert deeper.dtype_policy.name == "mixed_float16"


def test_metrics_without_complete_configuration_are_copied():
    class AtLeast(keras.metrics.Metric):
        """Metric whose configuration lacks its argument."""

        def __init__(self, bound=0.5, name="at_least"):
            super().__init__(name=name)
            self.bound, self.inner = bound, keras.metrics.Mean()

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.inner.update_state(ops.cast(y_pred >= self.bound, "float32"))

        def result(self):
            return self.inner.result()

    model, x, y = classifier()
    metrics = [AtLeast(-100.0), keras.metrics.SparseTopKCategoricalAccuracy(k=1)]
    model.compile("sgd", "mse", metrics=metrics, run_eagerly=EAGERLY)
    y = y[:, None]
    expected = model.evaluate(x, y, return_dict=True, verbose=0)
    assert expected["at_least"] == 1.0
    copied = deepen(model, "hidden")
    for _ in range(2):
        assert copied.evaluate(x, y, return_dict=True, verbose=0) == expected


def test_names_of_outputs_are_kept():
    inputs = keras.Input((3,))
    outputs = [layers.Dense(2, name="a")(inputs), layers.Dense(1, name="b")(inputs)]
    model = keras.Model(inputs, outputs)
    model.compile("sgd", loss={"a": "mse", "b": "mae"}, metrics={"b": ["mse"]}, run_eagerly=EAGERLY)
    x, y = np.ones((4, 3)), {"a": np.ones((4, 2)), "b": np.ones((4, 1))}
    expected = model.evaluate(x, y, return_dict=True, verbose=0)
    deeper = deepen(model, "a")
    for values in (deeper.evaluate(x, y, return_dict=True, verbose=0), remove_identities(deeper, 0.0, (x, y)).after):
        assert values.keys() == expected.keys()
        np.testing.assert_allclose(list(values.values()), list(expected.values()), rtol=1e-6)


def test_default_blocks_have_channels_first():
    skip_without_channels_first()
    inputs = keras.Input((3, 6, 8))
    hidden = layers.Conv2D(4, 3, data_format="channels_first", name="conv")(inputs)
    hidden = layers.GlobalAveragePooling2D("channels_first", name="pooled")(hidden)
    deeper = deepen(keras.Model(inputs, layers.Dense(2)(hidden)), ["conv", "pooled"])
    block = deeper.get_layer("conv_deeper1")
    assert (block.filters, block.data_format) == (4, "channels_first")


def test_training_does_not_change_copies():
    """A copy shares no buffers, although `fit` on JAX donates those of its model."""
    model, x, y = classifier()
    model.compile("adam", model.loss, run_eagerly=EAGERLY)
    model.fit(x, y, verbose=0)
    deeper, held = (deepen(model, "hidden", optimizer=model.optimizer) for _ in range(2))
    start = np.array(model(x))
    for trained in (model, deeper):
        trained.fit(x, y, verbose=0)
        assert int(trained.optimizer.iterations) == 2
        assert not np.array_equal(trained(x), start)
    np.testing.assert_array_equal(held(x), start)
    removal = remove_identities(held, 0.0, (x, y))
    assert removal.removed == ("hidden_deeper1",)
    np.testing.assert_array_equal(removal.model(x), start)
