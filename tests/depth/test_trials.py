"""Short trainings of `find_rate`: kinds of data, models and optimizers, and a model that is the same afterwards."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from idmatters_tf import find_rate, rate_profile, scale_depth
from idmatters_tf.depth.trials import Trials
from tests.support.versions import needs_several_optimizers

rng = np.random.default_rng(0)
X = rng.normal(size=(24, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
sgd: Any = keras.optimizers.SGD
OPTIONS: dict[str, Any] = {"rates": [0.01], "steps": 3, "batch_size": 8}


class Batches(keras.utils.PyDataset):
    """The batches of X and Y."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return X[8 * index : 8 * index + 8], Y[8 * index : 8 * index + 8]


def parts():
    return [keras.Input((3,)), layers.Dense(1, kernel_initializer="zeros")]


def network():
    """Return a linear model."""
    return keras.Sequential(parts())


def eager(model=None):
    """Return a model whose steps are not traced."""
    model = model or network()
    model.compile(run_eagerly=True)
    return model


def two_heads():
    """Return a model with two named inputs and outputs."""
    inputs = [keras.Input((3,), name=name) for name in ("a", "b")]
    joined = layers.Add()(inputs)
    heads = {name: layers.Dense(1, kernel_initializer="zeros", name=name)(joined) for name in ("c", "d")}
    return keras.Model(inputs, heads)


def tensors(batch):
    return keras.tree.map_structure(tf.constant, batch)


PAIRS = [(X[8 * n : 8 * n + 8], Y[8 * n : 8 * n + 8]) for n in range(3)]
DATASET = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
LOSSES = {"c": "mse", "d": "mae"}
TARGETS = {"c": Y, "d": -Y}


INPUTS = {"a": X, "b": X}
# Models and losses, and data that are the same.
KINDS = {
    "batches": (
        network,
        "mse",
        [PAIRS, list(map(tensors, PAIRS)), list(map(list, PAIRS)), DATASET, DATASET.repeat(), Batches()],
    ),
    "arrays": (network, "mse", [(X, Y), tensors((X, Y)), (X, list(Y[:, 0])), (X, Y, np.ones(24))]),
    "several arrays": (two_heads, LOSSES, [(INPUTS, TARGETS), ([X, X], TARGETS), ((X, X), tensors(TARGETS))]),
    "batches of several arrays": (two_heads, LOSSES, [[(INPUTS, TARGETS)], [([X, X], TARGETS)]]),
}


@pytest.mark.parametrize("name", KINDS)
def test_kinds_of_data(name):
    make, loss, kinds = KINDS[name]
    losses = [find_rate(eager(make()), data, loss, sgd, **OPTIONS).losses[0, 0] for data in kinds]
    assert np.isfinite(losses).all()
    np.testing.assert_allclose(losses, losses[0], rtol=1e-5)


class OwnLoss(keras.Sequential):
    """Model whose loss is ten times the compiled one."""

    def compute_loss(self, *args, **kwargs):
        return 10 * super().compute_loss(*args, **kwargs)


class OwnCompile(keras.Sequential):
    """Model with another `compile`."""

    def compile(self, first, second):
        super().compile(first, "mse")


def of_a_strategy():
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        return network()


def with_several_optimizers():
    model: Any = network()
    optimizers: Any = keras.optimizers
    model.compile(optimizers.MultiOptimizer([(sgd(0.1), [layer]) for layer in model.layers]), "mse")
    return model


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": []}, "at least one example"),
        ({"data": (X, Y[:5])}, "same number"),
        ({"optimizer": None}, "`optimizer` must be given"),
        ({"loss": None}, "Provide a `loss`"),
        ({"rates": [0.1, -1.0]}, "`rates` must contain positive"),
        ({"steps": 0}, "`steps` must be a positive integer"),
        ({"model": lambda: OwnCompile(parts())}, "method `compile`"),
        ({"model": lambda: keras.Sequential([layers.Dense(1)])}, "must be built"),
        ({"model": of_a_strategy}, "in the scope of a MirroredStrategy"),
        pytest.param(
            {"model": with_several_optimizers, "loss": None, "optimizer": None},
            "or with several",
            marks=needs_several_optimizers,
        ),
    ],
)
def test_wrong_arguments(options, message):
    arguments: Any = {"model": network, "data": PAIRS, "loss": "mse", "optimizer": sgd, **OPTIONS, **options}
    with pytest.raises(ValueError, match=message):
        find_rate(**{**arguments, "model": arguments["model"]()})


def test_an_own_loss_is_used():
    plain, own = (find_rate(eager(model), PAIRS, "mse", sgd, **OPTIONS) for model in (network(), OwnLoss(parts())))
    assert own.first == pytest.approx(10 * plain.first)


def test_the_model_is_the_same_afterwards():
    model: Any = keras.Sequential(
        [keras.Input((3,)), layers.BatchNormalization(), layers.Dropout(0.5), layers.Dense(1)]
    )
    model.compile(keras.optimizers.Adam(0.1), "mse", metrics=["mae"], run_eagerly=True)
    model.fit(X, Y, verbose=0)
    inside: Any = model
    optimizer = inside.optimizer
    attributes, metrics, children = dict(vars(model)), list(inside.metrics), inside._trackable_children()
    values = [v.numpy() for v in (*model.variables, *optimizer.variables, *model.metrics_variables)]
    find_rate(model, (X, Y), "mae", sgd, rates=[0.01, 1e9], steps=4)
    with pytest.raises(ValueError, match="must be finite"):
        find_rate(model, (X * np.nan, Y), **OPTIONS)
    assert vars(model).keys() == attributes.keys()
    assert not [name for name in attributes if vars(model)[name] is not attributes[name]]
    assert inside.metrics == metrics
    assert inside._trackable_children().keys() == children.keys()
    assert inside._trackable_children()["optimizer"] is optimizer
    for variable, value in zip((*model.variables, *optimizer.variables, *model.metrics_variables), values, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    model.fit(X, Y, verbose=0)


class Hidden(keras.optimizers.SGD):
    """Optimizer with a setting that its configuration does not contain."""

    def __init__(self, rate, factor=1.0):
        super().__init__(rate)
        self.factor = factor

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(self.factor * gradient, variable, learning_rate)


@pytest.mark.parametrize(
    ("make", "equal"),
    [
        # Functions that do not accept a rate of 0, or return another rate.
        (lambda rate: sgd(1 / (1 / rate)), sgd),
        (lambda rate: sgd(rate / 2), lambda rate: Hidden(rate, 0.5)),
        (lambda rate: Hidden(0.01, rate / 0.01), sgd),
        (lambda rate: keras.optimizers.LossScaleOptimizer(sgd(rate), 2.0**8), sgd),
    ],
)
def test_optimizers(make, equal):
    options: Any = OPTIONS | {"rates": [0.01, 0.02, 0.04]}
    losses = [find_rate(eager(), PAIRS, "mse", each, **options).losses for each in (make, equal)]
    np.testing.assert_allclose(*losses, rtol=1e-4)


def test_settings_of_the_compiled_optimizer():
    """Exclusions from weight decay and loss scaling are kept."""
    model = keras.Sequential([keras.Input((3,)), layers.Dense(1, kernel_initializer="ones")])
    adamw: Any = keras.optimizers.AdamW(1.0, weight_decay=100.0)
    adamw.exclude_from_weight_decay(var_names=["kernel"])
    for optimizer in (adamw, keras.optimizers.LossScaleOptimizer(adamw)):
        model.compile(optimizer, "mse", auto_scale_loss=False, run_eagerly=True)
        excluded = find_rate(model, PAIRS, **OPTIONS)
        plain = find_rate(model, PAIRS, None, keras.optimizers.Adam, **OPTIONS)
        np.testing.assert_allclose(excluded.losses, plain.losses, rtol=1e-2)


class Drawn(Batches):
    """Batches that NumPy's global generator draws."""

    def __getitem__(self, index):
        rows = np.random.permutation(24)[:8]  # noqa: NPY002 - as in data of users
        return X[rows], Y[rows]


SHUFFLED = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(24, seed=1).batch(8)


@pytest.mark.parametrize("make", [Drawn, lambda: SHUFFLED, lambda: (X, Y)])
def test_all_rates_see_the_same_batches(make):
    """Equal rates, with an epsilon between them, have equal losses, and more batches than an epoch has are drawn."""
    options: Any = OPTIONS | {"rates": [0.01, 0.01 * (1 + 1e-12), 0.02], "steps": 6}
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    curve = find_rate(eager(), make(), "mse", sgd, **options)
    assert curve.losses[0, 0] == pytest.approx(curve.losses[1, 0], rel=1e-6)
    assert curve.losses[0, 0] != pytest.approx(curve.losses[2, 0], rel=1e-3)
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002
    if make() is not SHUFFLED:
        np.testing.assert_array_equal(find_rate(eager(), make(), "mse", sgd, **options).losses, curve.losses)


class Metered(keras.Sequential):
    """Model with its own training step, which returns a running mean."""

    def __init__(self, parts):
        super().__init__(parts)
        self.meter = keras.metrics.Mean("loss")

    @property
    def metrics(self):
        return [self.meter]

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.abs(self(x, training=True) - y))
        self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
        self.meter.update_state(loss)
        return {"loss": self.meter.result()}


@pytest.mark.parametrize("kind", [keras.Sequential, Metered])
def test_losses_are_compared_at_equal_steps(kind):
    """Batches of ascending difficulty, and a rate at which nothing is learned."""
    rising = [(X[:8], Y[:8] + number) for number in range(4)]
    # The last window of 20 steps contains the last two batches only.
    for steps, last in ((40, rising), (20, rising[2:])):
        curve = find_rate(kind(parts()), rising, "mae", sgd, rates=[1e-12], steps=steps)
        right = np.mean([np.abs(y).mean() for _, y in last])
        np.testing.assert_allclose([curve.first[0], curve.losses[0, 0]], right, rtol=1e-5)


class Noise(layers.Layer):
    """Noise of Keras' global generator."""

    def call(self, inputs):
        return inputs + keras.random.normal(keras.ops.shape(inputs))


def test_recurrent_states_and_global_generators_are_as_before():
    """The training after a call is the one without it."""
    losses = []
    for is_called in (False, True):
        keras.utils.set_random_seed(0)
        recurrent = layers.SimpleRNN(2, stateful=True)
        model: Any = keras.Sequential([keras.Input(batch_shape=(8, 1, 3)), recurrent, Noise(), layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=True)
        x = X[:, None]
        model.fit(x, Y, batch_size=8, shuffle=False, verbose=0)
        if is_called:
            state = np.array(recurrent.states[0])
            curve = find_rate(model, (x, Y), rates=[0.01, 0.01 * (1 + 1e-12)], steps=6, batch_size=8)
            assert curve.losses[0, 0] == pytest.approx(curve.losses[1, 0], rel=1e-5)
            np.testing.assert_array_equal(np.array(recurrent.states[0]), state)
        losses.append(model.fit(x, Y, batch_size=8, shuffle=False, verbose=0).history["loss"])
    assert losses[0] == losses[1]


def residual(depth, seed=0):
    """Return a network of residual blocks."""
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((3,))
    hidden = layers.Dense(4)(inputs)
    for _ in range(depth):
        hidden = layers.Add()([hidden, layers.Dense(4)(layers.Dense(6, "tanh")(hidden))])
    return keras.Model(inputs, layers.Dense(1)(hidden))


def test_profile_of_scaled_networks():
    options: Any = OPTIONS | {"rates": [0.005, 0.02], "steps": 10, "seeds": 2}
    profile = rate_profile(residual, [2], (X, Y), "mse", lambda rate: sgd(rate, 0.9), base=1, **options)
    model = residual(2, 1)
    start = [keras.ops.convert_to_numpy(variable) for variable in model.variables]
    optimizer = scale_depth(model, 1, sgd(0.02, 0.9))
    assert any((a != b).any() for a, b in zip(start, model.get_weights(), strict=True))
    start = [keras.ops.convert_to_numpy(variable) for variable in model.variables]
    with Trials(model, lambda _: optimizer, (X, Y), "mse", 10, 8) as trials:
        losses = trials.train(start, 0.02, 1)
    assert profile.curves[2].losses[1, 1] == pytest.approx(losses[-1], rel=1e-5)
