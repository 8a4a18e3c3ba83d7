"""Tests of the updates and the evaluation by Keras' `fit` and `evaluate` against plain computations."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from idmatters_tf.callbacks import ExactResume, FunctionBatches
from idmatters_tf.data import shapes
from idmatters_tf.data.batches import AUGMENTATIONS, EvaluationBatches, TrainBatches
from idmatters_tf.models.cifar import identity_resnet
from idmatters_tf.optimizers import Muon
from trainers.networks import with_image_size
from trainers.training.measure import average_over_mirror_images, compute_errors, make_loss, make_metrics, measure
from trainers.training.settings import Recipe
from trainers.training.sizes import ScaledBatches, resize
from trainers.training.train import RecipeSchedule, make_optimizer

DATA = shapes.load(80, 45)
BATCHES = TrainBatches(DATA.train_images, DATA.train_labels, 16, 3, AUGMENTATIONS["paper"])


def build():
    return identity_resnet(blocks=1, widths=(4, 8), stem=4, initializer="standard", weight_decay=0.1, seed=1)


def compiled(drop_steps=(2, 4), **options):
    recipe = Recipe(batch_size=16, learning_rate=0.2, **options)
    model = build()
    loss = make_loss(recipe.label_smoothing)
    optimizer = make_optimizer(recipe, RecipeSchedule(recipe, drop_steps))
    model.compile(optimizer, loss, weighted_metrics=make_metrics(10), jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    return model


class Logs(keras.callbacks.Callback):
    """Callback that resets the metrics after each step and keeps their values."""

    def __init__(self):
        super().__init__()
        self.values = []

    def on_train_batch_end(self, batch, logs=None):
        norms = self.model.optimizer.norms
        self.values.append({**logs, "norm": float(norms.numpy())})
        norms.assign(0.0)
        self.model.reset_metrics()


def test_updates_equal_a_plain_implementation_of_the_recipe(tmp_path):
    ours = compiled(clip_norm=1.0)
    model = build()
    logs = Logs()
    # Epochs of four steps: the second one continues the sequence.
    batches = FunctionBatches(BATCHES, 4)
    callbacks = [logs, ExactResume(tmp_path, 100)]
    ours.fit(batches, epochs=2, verbose=0, shuffle=False, callbacks=callbacks)
    weights = [np.array(v) for v in model.trainable_variables]
    velocities = [np.zeros_like(w) for w in weights]
    kernels = [v.path.endswith("kernel") for v in model.trainable_variables]
    norms = []
    for step, measured in enumerate(logs.values):
        images, labels = BATCHES.batch(step)
        for variable, weight in zip(model.trainable_variables, weights, strict=True):
            variable.assign(weight)
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True))
        gradients = [np.array(g) for g in tape.gradient(loss, [v.value for v in model.trainable_variables])]
        # The gradient of rate * sum(w^2) / 2 is rate * w.
        gradients = [g + 0.1 * w * kernel for g, w, kernel in zip(gradients, weights, kernels, strict=True)]
        norm = np.sqrt(sum(np.sum(np.square(g)) for g in gradients))
        norms.append(norm)
        gradients = [g * min(1, 1.0 / norm) for g in gradients]
        velocities = [0.9 * v + g for v, g in zip(velocities, gradients, strict=True)]
        rate = 0.2 * 0.1 ** sum(step >= drop for drop in (2, 4))
        penalty = 0.05 * sum(np.sum(np.square(w)) for w, kernel in zip(weights, kernels, strict=True) if kernel)
        weights = [w - rate * v for w, v in zip(weights, velocities, strict=True)]
        error = np.mean(np.argmax(logits, axis=1) != labels)
        expected = {"cross_entropy": loss, "error": error, "norm": norm, "loss": loss + penalty}
        expected = {name: float(value) for name, value in expected.items()}
        assert measured == pytest.approx(expected, rel=2e-4, abs=1e-6)
    for variable, expected in zip(ours.trainable_variables, weights, strict=True):
        np.testing.assert_allclose(variable, expected, atol=2e-5)
    assert len(logs.values) == 8
    assert min(norms) < 1 < max(norms)


def test_evaluation_averages_over_images_and_mirror_images():
    ours = compiled()
    batches = EvaluationBatches(DATA.test_images, DATA.test_labels, 16)
    standardized = tf.image.per_image_standardization(tf.cast(DATA.test_images, tf.float32))
    logits = ours.predict(standardized, verbose=0)
    mirrored = (logits + ours.predict(standardized[:, :, ::-1], verbose=0)) / 2
    for expected, model in ((logits, ours), (mirrored, average_over_mirror_images(ours))):
        measured = measure(model, batches, 45, progress=False)
        losses = keras.losses.sparse_categorical_crossentropy(DATA.test_labels, expected, from_logits=True)
        assert measured["count"] == 45
        assert measured["error"] == np.mean(np.argmax(expected, axis=1) != DATA.test_labels)
        assert measured["loss"] == pytest.approx(float(np.mean(losses)), rel=1e-5)
    assert np.abs(mirrored - logits).max() > 1e-3


def test_top5_error_of_equal_logits():
    rng = np.random.default_rng(0)
    labels = np.arange(100, dtype=np.int32)
    zeros = tf.zeros((100, 100))
    errors = [float(tf.reduce_mean(compute_errors(labels, zeros, top))) for top in (1, 5)]
    assert errors == pytest.approx([0.99, 0.95])
    logits = rng.normal(size=(100, 100)).astype("float32")
    ahead = np.sum(logits > logits[labels, labels][:, None], axis=1)
    assert float(tf.reduce_mean(compute_errors(labels, tf.constant(logits), 5))) == pytest.approx(np.mean(ahead >= 5))
    assert [metric.name for metric in make_metrics(50)] == ["cross_entropy", "error", "top5_error"]


def test_label_smoothing_changes_the_loss_but_not_the_metrics():
    ours = compiled(label_smoothing=0.3)
    images, labels = BATCHES.batch(0)
    logits = ours(images)
    smooth = keras.losses.categorical_crossentropy(tf.one_hot(labels, 10) * 0.7 + 0.03, logits, from_logits=True)
    plain = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    measured = ours.test_on_batch(images, labels, return_dict=True)
    loss = tf.reduce_mean(smooth) + tf.add_n(ours.losses)
    expected = {"loss": float(loss), "cross_entropy": float(tf.reduce_mean(plain))}
    assert {name: measured[name] for name in expected} == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("steps", [15, 17])
def test_lookahead_moves_the_weights_to_a_running_average(steps):
    recipe = Recipe(batch_size=16, steps=steps, schedule="airbench", learning_rate=0.1)
    gradients = [np.random.default_rng(step).normal(size=(2, 3)).astype("float32") for step in range(steps)]
    variable = keras.Variable(np.random.default_rng(99).normal(size=(2, 3)), dtype="float32")
    optimizer = make_optimizer(recipe, RecipeSchedule(recipe))
    weights = variable.numpy()
    velocity = 0
    average = None
    for step, gradient in enumerate(gradients, start=1):
        optimizer.apply([tf.constant(gradient)], [variable])
        velocity = 0.9 * velocity + gradient
        rate = 0.1 * (0.07 + 0.93 * (1 - (step - 1) / steps))
        weights = weights - rate * velocity
        if step % 5 == 0:
            decay = 0.0 if average is None else 0.95**5 * (step / steps) ** 3
            average = weights = decay * (0 if average is None else average) + (1 - decay) * weights
        elif step == steps:
            weights = average
        np.testing.assert_allclose(variable, weights, atol=1e-5)
    # Those of the model are not saved as those of the optimizer.
    assert all(each is not variable for each in optimizer.variables)


@pytest.mark.parametrize(
    ("optimizer", "penalty", "plain"),
    [
        ("muon", 0.3, lambda: Muon(0.2, 0.9, nesterov=True, other_rate=1.5)),
        # It decays the weights as Keras does.
        ("muon-free", 0.0, lambda: Muon(0.2, 0.9, nesterov=True, norm="free", other_rate=0.5, weight_decay=0.3)),
    ],
)
def test_both_forms_of_muon(optimizer, penalty, plain):
    recipe = Recipe(batch_size=16, optimizer=optimizer, weight_decay=0.3, learning_rate=0.2)
    assert recipe.weight_penalty == penalty
    models = [build(), build()]
    optimizers = make_optimizer(recipe, RecipeSchedule(recipe)), plain()
    rng = np.random.default_rng(0)
    for _ in range(3):
        gradients = [tf.constant(rng.normal(size=v.shape), tf.float32) for v in models[0].trainable_variables]
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.apply(gradients, model.trainable_variables)
    for ours, wanted in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_array_equal(ours, wanted)


def test_training_images_are_scaled_and_the_weights_are_those_of_the_network():
    scaled = ScaledBatches(BATCHES, [(16, 2), (20, 3)])
    images, _ = BATCHES.batch(0)
    sizes = [np.shape(batch)[1] for batch, _ in scaled.dataset(1, 4)]
    assert sizes == [np.shape(scaled.batch(step)[0])[2] for step in range(1, 5)] == [16, 20, 32, 32]
    # Halving with antialiasing is a triangular filter of 4 x 4 pixels, truncated at the border.
    columns = np.zeros((32, 16))
    for index in range(16):
        for offset, weight in zip(range(-1, 3), (1, 3, 3, 1), strict=True):
            if 0 <= 2 * index + offset < 32:
                columns[2 * index + offset, index] = weight
    columns /= columns.sum(0)
    small = np.einsum("nxyc,xi,yj->nijc", images, columns, columns)
    small = (small - small.mean((1, 2, 3), keepdims=True)) / small.std((1, 2, 3), keepdims=True)
    np.testing.assert_allclose(resize(images, 16), small, atol=1e-4)
    np.testing.assert_array_equal(scaled.batch(0)[0], resize(images, 16))
    ours = build()
    of_size = identity_resnet((16, 16, 3), blocks=1, widths=(4, 8), stem=4, weight_decay=0.1, seed=1)
    of_size.set_weights(ours.get_weights())
    np.testing.assert_allclose(with_image_size(ours)(small), of_size(small), atol=1e-5)


@pytest.mark.parametrize(
    ("recipe", "drops", "expected"),
    [
        ({"learning_rate": 0.2}, (2, 4), [0.2, 0.2, 0.02, 0.02, 0.002, 0.002]),
        ({"learning_rate": 0.2}, (), [0.2, 0.2]),
        ({"learning_rate": 0.1, "warm_up_steps": 2}, (4,), [0.01, 0.01, 0.1, 0.1, 0.01]),
        ({"learning_rate": 0.1, "schedule": "decay"}, (1, 2), [0.1, 0.094, 0.08836]),
        (
            {"learning_rate": 0.3, "schedule": "linear", "steps": 7, "warm_up_steps": 2},
            (),
            [0.1, 0.2, 0.3, 0.24, 0.18, 0.12, 0.06, 0.0],
        ),
        ({"learning_rate": 0.3, "schedule": "linear", "steps": 3}, (), [0.3, 0.2, 0.1, 0.0]),
        (
            {"learning_rate": 0.3, "schedule": "airbench", "steps": 4, "warm_up_steps": 1},
            (),
            [0.15, 0.3, 0.207, 0.114, 0.021],
        ),
    ],
)
def test_the_rate_at_each_step(recipe, drops, expected):
    rate = RecipeSchedule(Recipe(**recipe), drops)
    np.testing.assert_allclose([rate(step) for step in range(len(expected))], expected, rtol=1e-6, atol=1e-7)
