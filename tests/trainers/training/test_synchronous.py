"""Tests of the update and the evaluation against plain computations."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from idmatters_tf.data import shapes
from idmatters_tf.data.augment import AUGMENTATIONS
from idmatters_tf.data.batches import EvaluationBatches, TrainBatches
from idmatters_tf.models.cifar import identity_resnet
from idmatters_tf.optimizers import Momentum, Muon
from trainers.cluster.strategy import distribute
from trainers.training.build import get_optimizer_factory, get_schedule
from trainers.training.learner import Learner, resize
from trainers.training.settings import Recipe
from trainers.training.synchronous import SynchronousTrainer

DATA = shapes.load(80, 45)
BATCHES = TrainBatches(DATA.train_images, DATA.train_labels, 16, 3, AUGMENTATIONS["paper"])


SCHEDULE = get_schedule(Recipe(learning_rate=0.2), drop_steps=(2, 4))


def build():
    return identity_resnet(blocks=1, widths=(4, 8), stem=4, initializer="standard", weight_decay=0.1, seed=1)


def trainer(**options):
    strategy = tf.distribute.get_strategy()
    recipe = Recipe(batch_size=16, **options)
    return SynchronousTrainer(Learner(strategy, build, lambda: Momentum(0.2, 0.9), SCHEDULE, recipe))


def test_updates_equal_the_recipe_written_out():
    ours = trainer(clip_norm=1.0)
    model = build()
    weights = [np.array(v) for v in model.trainable_variables]
    velocities = [np.zeros_like(w) for w in weights]
    kernels = [v.path.endswith("kernel") for v in model.trainable_variables]
    iterator = iter(distribute(ours.learner.strategy, lambda share: BATCHES.dataset(0, 6, share)))
    norms = []
    for step in range(6):
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
        measured = ours.update(iterator).numpy()
        np.testing.assert_allclose(measured, [loss, penalty, error, norm, rate], rtol=2e-4, atol=1e-6)
        # Monitors take the rate from the optimizer.
        assert np.float32(ours.learner.optimizer.learning_rate) == measured[4]
    for variable, expected in zip(ours.learner.model.trainable_variables, weights, strict=True):
        np.testing.assert_allclose(variable, expected, atol=2e-5)
    assert ours.learner.step.numpy() == 6
    assert min(norms) < 1 < max(norms)


def test_evaluation_is_the_mean_over_every_image_once_and_over_mirror_images_where_asked_for():
    ours, batches = trainer(), EvaluationBatches(DATA.test_images, DATA.test_labels, 16)
    standardized = tf.image.per_image_standardization(tf.cast(DATA.test_images, tf.float32))
    logits = ours.learner.model.predict(standardized, verbose=0)
    mirrored = (logits + ours.learner.model.predict(standardized[:, :, ::-1], verbose=0)) / 2
    for expected, measured in ((logits, ours.evaluate(batches)), (mirrored, ours.evaluate(batches, mirror=True))):
        losses = keras.losses.sparse_categorical_crossentropy(DATA.test_labels, expected, from_logits=True)
        assert measured["count"] == 45
        assert measured["error"] == np.mean(np.argmax(expected, axis=1) != DATA.test_labels)
        assert measured["loss"] == pytest.approx(float(np.mean(losses)), rel=1e-5)
    assert np.abs(mirrored - logits).max() > 1e-3


def check_gradients(found, model, images, probabilities, atol=1e-6):
    """Compare gradients with Keras' gradients of the cross-entropy and the penalties, and return the logits."""
    with tf.GradientTape() as tape:
        logits = model(images, training=True)
        loss = tf.reduce_mean(keras.losses.categorical_crossentropy(probabilities, logits, from_logits=True))
        loss += tf.add_n(model.losses)
    expected = tape.gradient(loss, [v.value for v in model.trainable_variables])
    for gradient, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(gradient, wanted, atol=atol)
    return logits


def test_the_top5_error_is_that_of_chance_for_equal_logits():
    def network():
        return keras.Sequential([keras.Input((3,)), keras.layers.Dense(100, kernel_initializer="zeros")])

    learner = Learner(tf.distribute.get_strategy(), network, lambda: Momentum(1.0, 0.0), SCHEDULE, Recipe())
    rng, labels = np.random.default_rng(0), np.arange(100, dtype=np.int32)
    images = rng.normal(size=(100, 3)).astype("float32")

    def measured():
        return learner.evaluation(np.array(learner.evaluation_sums(images, tf.constant(labels), tf.ones(100))))

    assert (measured()["error"], measured()["top5_error"]) == pytest.approx((0.99, 0.95))
    learner.model.set_weights([rng.normal(size=weight.shape) for weight in learner.model.get_weights()])
    logits = np.array(learner.model(images))
    ahead = np.sum(logits > logits[labels, labels][:, None], axis=1)
    assert measured()["top5_error"] == pytest.approx(np.mean(ahead >= 5))


def test_smoothed_labels_are_trained_on_and_plain_ones_reported():
    ours = trainer(label_smoothing=0.3).learner
    images, labels = BATCHES.batch(0)
    gradients, measured = ours.gradients(images, labels)
    logits = check_gradients(gradients, ours.model, images, tf.one_hot(labels, 10) * 0.7 + 0.03)
    plain = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    assert float(measured[0]) == pytest.approx(float(tf.reduce_mean(plain)), rel=1e-5)


@pytest.mark.parametrize("steps", [15, 17])
def test_lookahead_moves_the_weights_to_a_running_average(steps):
    strategy = tf.distribute.get_strategy()
    recipe = Recipe(batch_size=16, steps=steps, lookahead=0.9)
    gradients = [np.random.default_rng(step).normal(size=(2, 3)).astype("float32") for step in range(steps)]

    def network():
        return keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, use_bias=False)])

    learner = Learner(strategy, network, lambda: keras.optimizers.SGD(0.1, use_ema=True), SCHEDULE, recipe)
    weights = learner.model.get_weights()[0]
    average = None
    for step, gradient in enumerate(gradients, start=1):
        learner.apply([tf.constant(gradient)])
        learner.step.assign_add(1)
        weights = weights - 0.1 * gradient
        if step % 5 == 0:
            decay = 0.0 if average is None else 0.9**5 * (step / steps) ** 3
            average = weights = decay * (0 if average is None else average) + (1 - decay) * weights
        elif step == steps:
            weights = average
        np.testing.assert_allclose(learner.model.get_weights()[0], weights, atol=1e-6)


def test_free_muon_decays_weights_as_keras_does():
    recipe = Recipe(batch_size=16, optimizer="muon-free", weight_decay=0.3)
    assert (recipe.weight_penalty, Recipe(weight_decay=0.3).weight_penalty) == (0.0, 0.3)
    make = get_optimizer_factory(recipe)
    learner = Learner(tf.distribute.get_strategy(), build, make, SCHEDULE, recipe)
    assert isinstance(learner.optimizer, Muon)
    theirs, optimizer = build(), make()
    learner.optimizer.learning_rate = optimizer.learning_rate = 0.2
    rng = np.random.default_rng(0)
    for _ in range(3):
        gradients = [tf.constant(rng.normal(size=v.shape), tf.float32) for v in theirs.trainable_variables]
        optimizer.apply(gradients, theirs.trainable_variables)
        learner.apply(gradients)
    for ours, wanted in zip(learner.model.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(ours, wanted, atol=1e-6)


def test_training_images_are_scaled_and_the_weights_are_those_of_the_network():
    ours = trainer(train_sizes=(16, 20), size_steps=(2, 3)).learner
    assert [ours.train_size(step) for step in range(5)] == [16, 16, 20, None, None]
    images, labels = BATCHES.batch(0)
    gradients, _ = ours.gradients(images, labels, 16)
    # Halving with antialiasing is a triangular filter of 4 x 4 pixels, truncated at the border.
    columns = np.zeros((32, 16))
    for place in range(16):
        for offset, weight in zip(range(-1, 3), (1, 3, 3, 1), strict=True):
            if 0 <= 2 * place + offset < 32:
                columns[2 * place + offset, place] = weight
    columns /= columns.sum(0)
    small = np.einsum("nxyc,xi,yj->nijc", images, columns, columns)
    small = (small - small.mean((1, 2, 3), keepdims=True)) / small.std((1, 2, 3), keepdims=True)
    np.testing.assert_allclose(resize(images, 16), small, atol=1e-4)
    model = identity_resnet((16, 16, 3), blocks=1, widths=(4, 8), stem=4, weight_decay=0.1, seed=1)
    model.set_weights(ours.model.get_weights())
    check_gradients(gradients, model, small, tf.one_hot(labels, 10), atol=1e-5)
