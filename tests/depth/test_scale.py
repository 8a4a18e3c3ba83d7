"""Scaled branches, compared with explicit multipliers and learning rates for each layer, on both backends."""

import dataclasses

import keras
import numpy as np
import pytest
from keras import layers, optimizers

from idmatters_tf import ExactResume, Muon, deepen, scale_depth
from idmatters_tf.depth.scale import scale_branches
from idmatters_tf.layers import ResidualDense
from idmatters_tf.optimizers import Momentum
from tests.support.versions import needs_several_optimizers

DEPTH, STEPS, BATCH = 4, 4, 8
rng = np.random.default_rng(0)
X = rng.normal(size=(STEPS * BATCH, 6)).astype("float32")
Y = np.sin(2 * X[:, :2]).astype("float32")
EXACT = 2.0**-6
# Tracing the functions of many optimizers takes minutes.
EAGERLY = keras.backend.backend() == "tensorflow"


def build(depth=DEPTH, factor=1.0, penalties=(0.0, 0.0)):
    """Return pre-norm blocks x + factor * f(x), with the L2 penalties of first and last kernels."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6,))
    x = layers.Dense(6, name="stem")(inputs)
    first, last = (keras.regularizers.L2(penalty) if penalty else None for penalty in penalties)
    for number in range(depth):
        branch = layers.LayerNormalization(name=f"block{number}_norm")(x)
        branch = layers.Dense(8, "gelu", name=f"block{number}_first", kernel_regularizer=first)(branch)
        branch = layers.Dense(6, name=f"block{number}_last", kernel_regularizer=last)(branch)
        x = layers.Add(name=f"sum{number}")([x, layers.Rescaling(factor)(branch)])
    return keras.Model(inputs, layers.Dense(2, name="head")(x))


def cases(sgd=1.0, adaptive=1.0, scale=1.0):
    """Return optimizers whose rates, epsilons, clipping and weight decay are those of blocks with multipliers."""
    rate = EXACT * adaptive
    small, square = 2.0**-7 * scale, 2.0**-14 * scale**2
    cosine = optimizers.schedules.CosineDecay(8 * EXACT * sgd, 10)
    return {
        "SGD": optimizers.SGD(cosine, weight_decay=0.25 / sgd, use_ema=True),
        "Nesterov": optimizers.SGD(2 * EXACT * sgd, 0.9, nesterov=True, clipnorm=0.25 * scale),
        "Momentum": Momentum(2 * EXACT * sgd, 0.9, gradient_accumulation_steps=2),
        "Adam": optimizers.Adam(rate, epsilon=small, amsgrad=True, clipvalue=0.0625 * scale),
        "AdamW": optimizers.AdamW(rate, 0.25 / adaptive, epsilon=small, gradient_accumulation_steps=2),
        "Nadam": optimizers.Nadam(rate, epsilon=small, clipnorm=0.25 * scale),
        "Adamax": optimizers.Adamax(rate, epsilon=small),
        "Adagrad": optimizers.Adagrad(rate, 0.125 * scale**2, epsilon=square),
        "RMSprop": optimizers.RMSprop(rate, momentum=0.5, epsilon=square, centered=True),
        "Lion": optimizers.Lion(rate, weight_decay=0.25 / adaptive),
        "Keras' Muon": optimizers.Muon(
            rate, epsilon=small, weight_decay=0.25 / adaptive, adam_weight_decay=0.5 / adaptive
        ),
        "Muon, free": Muon(4 * rate, norm="free", weight_decay=0.25 / adaptive, other_rate=0.5 * sgd / adaptive),
        "Muon, AdamW": Muon(4 * rate, norm="free", other="adamw", weight_decay=0.25 / adaptive),
        "Muon, keep": Muon(4 * rate, other_rate=0.5 * sgd / adaptive),
    }


def train(model, optimizer):
    model.compile(optimizer, "mse", jit_compile=False, run_eagerly=EAGERLY)
    batches = zip(np.split(X, STEPS), np.split(Y, STEPS), strict=True)
    return [float(np.asarray(model.train_on_batch(*batch))) for batch in batches]


def each_case():
    """Return all cases with both exponents; most of them run in slow tests."""
    usual = ("SGD", "AdamW", "Muon, keep")
    slow = pytest.mark.slow
    pairs = [(name, alpha) for alpha in (1.0, 0.5) for name in cases()]
    return [pytest.param(*pair, marks=() if pair[0] in usual and pair[1] == 1 else slow) for pair in pairs]


@needs_several_optimizers
@pytest.mark.parametrize(("name", "alpha"), each_case())
def test_training_equals_that_of_explicit_multipliers_and_rates(name, alpha):
    base = 1
    ratio = base / DEPTH
    factors = ratio ** (1 - 2 * alpha), ratio ** (1 - alpha), ratio**alpha
    explicit, scaled = build(factor=factors[2]), build()
    kinds = optimizers.OptimizerMap(cases()[name], {"block.*": cases(*factors)[name]})
    for optimizer in (kinds.default_optimizer, kinds["block.*"]):
        if isinstance(optimizer, Muon):
            own = [variable for variable in explicit.trainable_variables if kinds[variable.path] is optimizer]
            optimizer.build_for(explicit, own)
            # That of the steps of AdamW for weights other than kernels, which is no argument.
            optimizer.epsilon = 1e-7 * (factors[2] if optimizer is kinds["block.*"] else 1)
    tolerance = 1e-4 if "Muon" in name else 1e-6
    losses = train(explicit, optimizers.MultiOptimizer(kinds))
    optimizer = scale_depth(scaled, base, cases()[name], alpha)
    np.testing.assert_allclose(train(scaled, optimizer), losses, rtol=tolerance)
    assert isinstance(optimizer, type(cases()[name]))
    start = {variable.path: np.array(variable) for variable in build().variables}
    for old, new in zip(explicit.variables, scaled.variables, strict=True):
        factor = factors[2] if "_last" in old.path else 1.0
        np.testing.assert_allclose(new, factor * np.array(old), rtol=0, atol=tolerance * np.abs(new).max())
        assert np.abs(np.array(old) - start[old.path]).max() > 1e-3, "every weight is trained"


@needs_several_optimizers
def test_penalties_act_as_in_the_shallow_model():
    scaled, explicit = build(penalties=(0.5, 0.25)), build(factor=0.25, penalties=(0.125, 0.0625))
    kinds = optimizers.OptimizerMap(optimizers.SGD(EXACT, 0.5), {"block.*": optimizers.SGD(4 * EXACT, 0.5)})
    train(explicit, optimizers.MultiOptimizer(kinds))
    train(scaled, scale_depth(scaled, 1, optimizers.SGD(EXACT, 0.5)))
    for old, new in zip(explicit.variables, scaled.variables, strict=True):
        factor = 0.25 if "_last" in old.path else 1.0
        np.testing.assert_allclose(new, factor * np.array(old), rtol=0, atol=1e-5 * np.abs(new).max())


def test_the_global_norm_does_not_depend_on_the_number_of_blocks():
    steps = []
    for limit in (1e9, 1e-3):
        model = build()
        optimizer = scale_depth(model, 1, optimizers.SGD(1.0, global_clipnorm=limit))
        start = {v.path: np.array(v) for v in model.trainable_variables}
        model.compile(optimizer, "mse", run_eagerly=EAGERLY)
        model.train_on_batch(X[:BATCH], Y[:BATCH])
        steps.append({v.path: np.array(v) - start[v.path] for v in model.trainable_variables})
    # Steps of last weights contain the factor 1 / 4.
    sizes = {path: (4 if "_last" in path else 1) * np.linalg.norm(step) for path, step in steps[0].items()}
    norm = np.sqrt(sum(size**2 * (0.25 if "block" in path else 1) for path, size in sizes.items()))
    for path, step in steps[1].items():
        np.testing.assert_allclose(step, 1e-3 / norm * steps[0][path], rtol=2e-3, atol=1e-7)


def unnamed():
    """Return a model whose paths in a file lack the name of the model, and contain equal names."""
    keras.utils.set_random_seed(0)
    blocks = [ResidualDense(8) for _ in range(2)]
    inner = keras.Sequential([keras.Input((6,)), layers.Dense(6, "relu", name="first")])
    model = keras.Sequential([layers.Dense(6, name="first"), *blocks, inner, layers.Dense(2)])
    model(X)
    return model


def test_weights_are_matched_in_the_order_of_the_model():
    model = unnamed()
    scaling = scale_branches(model, 1)
    model.layers[1].trainable = False
    found = scaling.match(model.trainable_variables)
    assert [weight.path for weight in found] == [variable.path for variable in model.trainable_variables]
    assert {weight.block for weight in found if weight.use == "last"} == {model.layers[2].name}
    loaded = dataclasses.replace(scaling, variables=())
    assert loaded.match(model.trainable_variables) == found
    with pytest.raises(ValueError, match="another order"):
        loaded.match(model.trainable_variables[::-1])


def with_equal_paths():
    """Return a stem, two blocks and a head whose kernels have the same path."""

    def part(name, *parts):
        x = inputs = keras.Input((6,))
        for layer in parts:
            x = layer(x)
        return keras.Model(inputs, x, name=name)

    x = inputs = keras.Input((6,))
    stem = part("stem", layers.Dense(6, name="a"))
    x = stem(x)
    for number in range(2):
        x = layers.Add()([x, part(f"block{number}", layers.Dense(6, "tanh", name="a"), layers.Dense(6, name="b"))(x)])
    return keras.Model(inputs, part("top", layers.Dense(6, name="a"))(x)), stem


def test_frozen_layers_of_equal_paths_are_matched_by_their_variables(tmp_path):
    model, stem = with_equal_paths()
    optimizer = scale_depth(model, 1, optimizers.SGD(EXACT))
    stem.trainable = False
    model.compile(optimizer, "mse")
    optimizer.build(model.trainable_variables)
    factors = {id(v): f.gradient for v, f in zip(model.trainable_variables, optimizer._factors_by_index, strict=True)}
    for name in ("block0", "block1"):
        first, last = (layer.kernel for layer in model.get_layer(name).layers[1:])
        assert (factors[id(first)], factors[id(last)]) == (2.0, 1.0)
    # The paths in a file do not tell which one is frozen.
    model.save(tmp_path / "model.keras")
    with pytest.raises(ValueError, match="some have equal paths, and one is frozen"):
        keras.models.load_model(tmp_path / "model.keras").fit(X, X, verbose=0)


def test_scaled_models_of_files_are_not_scaled_again(tmp_path):
    model = build()
    model.compile(scale_depth(model, 1, optimizers.LossScaleOptimizer(optimizers.AdamW(EXACT))), "mse")
    model.save(tmp_path / "model.keras")
    with pytest.raises(ValueError, match="not be scaled twice"):
        scale_depth(keras.models.load_model(tmp_path / "model.keras"), 1, "adam")


@pytest.mark.parametrize(
    ("make", "optimizer"),
    [
        (build, optimizers.AdamW),
        # Keras on JAX cannot use averages after a `fit`.
        (unnamed, lambda rate: optimizers.SGD(rate, 0.9, use_ema=EAGERLY)),
        (build, lambda rate: optimizers.LossScaleOptimizer(Muon(rate, norm="free"), initial_scale=8.0)),
    ],
)
def test_factors_survive_files_and_loss_scaling(make, optimizer, tmp_path):
    model = make()
    model.compile(scale_depth(model, 1, optimizer(EXACT)), "mse", run_eagerly=EAGERLY)
    few = {"x": X[:BATCH], "y": Y[:BATCH], "batch_size": BATCH, "shuffle": False, "verbose": 0}
    model.fit(**few)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    scaled, copied = (getattr(each.optimizer, "inner_optimizer", each.optimizer) for each in (model, loaded))
    assert copied.depth_scaling == scaled.depth_scaling
    losses = [each.fit(**few).history["loss"] for each in (model, loaded)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-6)
    expected = {1 / DEPTH if weight.use == "last" else 1.0 for weight in scaled.depth_scaling.weights}
    if make is build:
        assert {factors.step for factors in copied._factors_by_index} == expected


def test_a_killed_fit_resumes(tmp_path):
    weights = []
    for epochs in ((2,), (1, 2)):
        folder = tmp_path / str(len(epochs))
        for number in epochs:
            model = unnamed()
            model.compile(scale_depth(model, 1, optimizers.AdamW(EXACT)), "mse", run_eagerly=EAGERLY)
            callbacks = [ExactResume(folder, every=2)]
            model.fit(X[:16], Y[:16], batch_size=BATCH, epochs=number, verbose=0, callbacks=callbacks)
        weights.append(model.get_weights())
    for expected, resumed in zip(*weights, strict=True):
        np.testing.assert_array_equal(resumed, expected)


def test_a_model_with_other_variables_is_refused():
    model = build(1)
    model.compile(scale_depth(model, 1, "adam"), "mse")
    deeper = deepen(model, after="sum0")
    with pytest.raises(ValueError, match="for a model without 'sum0_deeper1.*another optimizer"):
        deeper.optimizer.build(deeper.trainable_variables)


def test_shallow_models_count_their_own_sums():
    assert scale_branches(build(), build(2)).scale == 0.5


def test_optimizers_of_other_updates_and_second_scales_are_refused():
    model = build()
    others = [optimizers.Lamb(), optimizers.Ftrl()]
    # Keras before 3.15 has one optimizer for all variables.
    if hasattr(optimizers, "MultiOptimizer"):
        others.append(optimizers.MultiOptimizer(optimizers.OptimizerMap(optimizers.SGD())))
    for optimizer in others:
        with pytest.raises(ValueError, match=f"must be one of keras.SGD.*Received: {type(optimizer).__name__}"):
            scale_depth(model, 1, optimizer)
    for alpha in (0.4, 2):
        with pytest.raises(ValueError, match=f"`alpha` must be from 0.5 to 1. Received: alpha={alpha}"):
            scale_depth(model, 1, "adam", alpha)
    scale_depth(model, 1, "adam")
    with pytest.raises(ValueError, match="not be scaled twice"):
        scale_depth(model, 1, "adam")
