"""Models with added losses, a `compute_loss` or a `train_step` of their own, see `replicated_fits`.

Most are in the manner of Keras' guides and examples, with means over examples by `global_mean`. Random numbers are a
part of the data.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from idmatters_tf.distribute import global_mean
from tests.support.fits import case
from tests.support.loss_fits import WEIGHTS, X, Y, contrastive, loss, model

RANDOM = np.random.default_rng(7)
NOISE = RANDOM.normal(size=(29, 4)).astype("float32")
LABELS = RANDOM.integers(0, 3, 29)


class Adding(keras.layers.Layer):
    """Layer that adds a loss."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, x):
        self.add_loss(self.function(x))
        return x


class ComputeLoss(keras.Model):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.correct = keras.metrics.TruePositives(name="correct")

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        self.correct.update_state(y > 0, ops.sigmoid(y_pred))
        return ops.mean(ops.square(y - y_pred)) + ops.sum(self.losses)


class Extended(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return super().compute_loss(x, y, y_pred, sample_weight, training) + 0.1 * ops.std(y_pred)


class Guide(keras.Model):
    """Model with a step as in Keras' guide."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            value = self.compute_loss(y=y, y_pred=y_pred)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(value, variables), variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(value)
            else:
                metric.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}


class Evaluated(keras.Model):
    """Model with an evaluation step."""

    def test_step(self, data):
        x, y = data
        return {"mean": global_mean(tf.square(self(x, training=False) - y))}


class Unequal(keras.Model):
    """Model with a step that averages a mean over the examples of a part, which differs between the replicas."""

    def train_step(self, data):
        x, y = data
        return {"loss": global_mean(tf.reduce_mean(tf.square(self(x, training=True) - y)))}


class RawVariable(keras.metrics.Metric):
    """Metric that returns a variable of TensorFlow."""

    def __init__(self):
        super().__init__(name="raw")
        self.total = self.add_variable(shape=(), initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(ops.sum(y_pred))

    def result(self):
        return self.total.value


def stack(*units, shape=6):
    layers = [keras.layers.Dense(count, "tanh") for count in units[:-1]]
    return keras.Sequential([keras.Input((shape,)), *layers, keras.layers.Dense(units[-1])])


class Tracked(keras.Model):
    """Model with trackers of losses."""

    trackers = ("loss",)

    def __init__(self):
        super().__init__()
        self.means = [keras.metrics.Mean(name=name) for name in self.trackers]

    @property
    def metrics(self):
        return self.means

    def update(self, tape, value, part=None, optimizer=None):
        weights = (part or self).trainable_weights
        (optimizer or self.optimizer).apply_gradients(zip(tape.gradient(value, weights), weights, strict=True))

    def track(self, *values):
        for metric, value in zip(self.means, values, strict=True):
            metric.update_state(value)
        return {metric.name: metric.result() for metric in self.means}


class GAN(Tracked):
    """Two networks, whose optimizers create their variables before the first step if `builds` is True."""

    trackers = ("d_loss", "g_loss")

    def __init__(self, builds=True):
        super().__init__()
        self.generator, self.discriminator = stack(5, 6, shape=4), stack(5, 1)
        self.compile()
        self.d_optimizer, self.g_optimizer = keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.01)
        self.loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)
        if builds:
            self.d_optimizer.build(self.discriminator.trainable_variables)
            self.g_optimizer.build(self.generator.trainable_variables)

    def train_step(self, data):
        (real, noise), *_ = data
        size = ops.shape(real)[0]
        labels = ops.concatenate([ops.ones((size, 1)), ops.zeros((size, 1))], 0)
        combined = ops.concatenate([self.generator(noise), real], 0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(combined))
        self.update(tape, d_loss, self.discriminator, self.d_optimizer)
        with tf.GradientTape() as tape:
            g_loss = self.loss_fn(ops.zeros((size, 1)), self.discriminator(self.generator(noise)))
        self.update(tape, g_loss, self.generator, self.g_optimizer)
        return self.track(d_loss, g_loss)


class Quantizer(keras.layers.Layer):
    """Vector quantizer with a commitment loss, a mean over the elements of a batch."""

    def build(self, shape):
        self.codes = self.add_weight(shape=(shape[-1], 5), initializer="random_uniform")

    def call(self, x):
        distances = ops.sum(x**2, 1, keepdims=True) + ops.sum(self.codes**2, 0) - 2 * ops.matmul(x, self.codes)
        found = ops.matmul(ops.one_hot(ops.argmin(distances, 1), 5), ops.transpose(self.codes))
        commitment = ops.mean((ops.stop_gradient(found) - x) ** 2)
        self.add_loss(0.25 * commitment + ops.mean((found - ops.stop_gradient(x)) ** 2))
        return x + ops.stop_gradient(found - x)


class VQVAE(Tracked):
    trackers = ("loss", "vqvae_loss")

    def __init__(self):
        super().__init__()
        inputs = keras.Input((6,))
        self.vqvae = keras.Model(inputs, stack(5, 6, shape=4)(Quantizer()(stack(5, 4)(inputs))))

    def train_step(self, x):
        with tf.GradientTape() as tape:
            value = global_mean((x - self.vqvae(x)) ** 2) / 0.7 + sum(self.vqvae.losses)
        self.update(tape, value, self.vqvae)
        return self.track(value, sum(self.vqvae.losses))


class Siamese(Tracked):
    """Triplet network. The gradient of its loss, which has a value for each example, is that of their sum."""

    def __init__(self):
        super().__init__()
        self.network = stack(5, 3)

    def compute_triplet_loss(self, data):
        anchor, positive, negative = (self.network(part) for part in (data, data[:, ::-1], -data))
        near, far = (ops.sum(ops.square(anchor - other), -1) for other in (positive, negative))
        return ops.maximum(near - far + 0.5, 0.0)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            value = self.compute_triplet_loss(data)
        self.update(tape, value)
        return self.track(value)

    def test_step(self, data):
        return self.track(self.compute_triplet_loss(data))


class SAM(Tracked):
    """Sharpness-aware minimization, which changes the weights between two gradients.

    The change is that of the gradients of all replicas if `sums` is True.
    """

    def __init__(self, sums=True):
        super().__init__()
        self.network, self.sums = stack(5, 1), sums

    def train_step(self, data):
        x, y = data
        weights = self.trainable_weights
        with tf.GradientTape() as tape:
            value = self.compute_loss(y=y, y_pred=self.network(x))
        gradients = tape.gradient(value, weights)
        if self.sums:
            gradients = tf.distribute.get_replica_context().all_reduce("SUM", gradients)
        steps = [0.05 * gradient / tf.linalg.global_norm(gradients) for gradient in gradients]
        for weight, change in zip(weights, steps, strict=True):
            weight.assign_add(change)
        with tf.GradientTape() as tape:
            value = self.compute_loss(y=y, y_pred=self.network(x))
        gradients = tape.gradient(value, weights)
        for weight, change in zip(weights, steps, strict=True):
            weight.assign_sub(change)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return self.track(value)


class SupervisedContrastive(keras.losses.Loss):
    """Loss that couples the examples, with a `__call__` of its own and a temperature that is trained."""

    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def __call__(self, labels, vectors, sample_weight=None):
        vectors = ops.normalize(vectors, -1)
        logits = ops.matmul(vectors, ops.transpose(vectors)) / ops.exp(self.temperature)
        labels = ops.reshape(labels, (-1, 1))
        same = ops.cast(ops.equal(labels, ops.transpose(labels)), "float32")
        same = same / ops.sum(same, 1, keepdims=True)
        return ops.mean(ops.sum(-same * ops.log_softmax(logits, -1), -1))


class Temperature(keras.layers.Layer):
    """Layer with a variable that only the loss uses."""

    def build(self, shape):
        self.temperature = self.add_weight(shape=(), initializer="zeros", name="temperature")

    def call(self, x):
        return x


def compiled(made, rate=0.1, **options):
    made.compile(keras.optimizers.SGD(rate), **options)
    return made


def supervised():
    temperature = Temperature()
    made = keras.Sequential([keras.Input((6,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(3), temperature])
    return compiled(made, loss=SupervisedContrastive(temperature.temperature))


def mean_square(x):
    return ops.mean(ops.square(x))


STEP_CASES = {
    "added: mean": loss(
        lambda: model(Adding(lambda x: [ops.mean(x), mean_square(x)]), keras.layers.Dense(5, activity_regularizer="l2"))
    ),
    "added: sum, contrastive loss": loss(
        lambda: model(
            Adding(lambda x: ops.sum(ops.square(x)) / 50), keras.layers.ActivityRegularization(0.01), loss=contrastive
        )
    ),
    # After the last batch of a validation, which has equal parts, a further step is requested.
    "added: mean, compute_loss, two to one step": case(
        lambda: model(Adding(ops.mean), kind=ComputeLoss, steps_per_execution=2, loss=None),
        X,
        Y,
        True,
        epochs=2,
        validation_data=(X[:12], Y[:12]),
    ),
    "added: synchronized normalization": loss(
        lambda: model(Adding(ops.mean), keras.layers.BatchNormalization(synchronized=True), Adding(mean_square))
    ),
    "step: extended compute_loss": loss(
        lambda: model(kind=Extended, loss=keras.losses.MeanSquaredError("mean_with_sample_weight")), weights=WEIGHTS
    ),
    "step: as in the guide, with losses": loss(lambda: model(Adding(ops.mean), kind=Guide, metrics=["mae"])),
    "guide: GAN": case(GAN, (X, NOISE)),
    "guide: VQ-VAE": case(lambda: compiled(VQVAE()), X),
    "guide: Siamese": case(lambda: compiled(Siamese(), 0.01), X, validation_data=(X[:7],)),
    "guide: SAM": case(lambda: compiled(SAM(), loss="mse"), X, X[:, :1]),
    "guide: supervised contrastive": case(supervised, X, LABELS),
}

# Statements about the models of cases, whose names begin with the keys.
STATEMENTS = {
    "added: sum": {"added_losses": "sum"},
    "added:": {"added_losses": "mean"},
    "step: as in the guide, with": {"added_losses": "mean", "own_steps": True},
    "step:": {"own_steps": True},
    "guide: VQ-VAE": {"added_losses": "mean", "own_steps": True},
    "guide:": {"own_steps": True},
}


def statements(name):
    """Return the arguments of the function that returns the strategy of a case."""
    return next((made for begin, made in STATEMENTS.items() if name.startswith(begin)), {})


def fit_with_metric_of_another_scope(made):
    metric = keras.metrics.AUC(name="auc")
    with made.distribute_strategy.scope():
        made.compile("sgd", "mse", metrics=[metric])
    made.fit(X, Y, verbose=0)


# Cases, and the error on several replicas.
REFUSED = {
    "a step": (loss(lambda: model(kind=Guide)), "`train_step` of .* is computed with a part.*pass own_steps=True"),
    "an evaluation step": (loss(lambda: model(kind=Evaluated)), "`test_step` of .* is computed with a part"),
    "step: a scalar of the part": (
        loss(lambda: model(kind=Unequal)),
        "On several replicas, global_mean received other scalars on each",
    ),
    "an added loss": (
        loss(lambda: model(Adding(ops.mean))),
        "Layer '.*adding.*' calls `add_loss`.*added_losses='mean'",
    ),
    "a metric of another scope": (
        (model, fit_with_metric_of_another_scope),
        "'auc' was created outside of the scope",
    ),
    "a raw variable": (loss(lambda: model(metrics=[RawVariable()])), "log 'raw' is a variable of TensorFlow"),
    "an empty part": (
        case(model, lambda: tf.data.Dataset.from_tensor_slices((X[:25], Y[:25])).batch(12)),
        "A training batch of 1 examples leaves one of . replicas without any",
    ),
    "guide: GAN, unbuilt": (case(lambda: GAN(builds=False), (X, NOISE)), "d_optimizer.build.variables."),
    "guide: SAM, local": (
        case(lambda: compiled(SAM(sums=False), loss="mse"), X, X[:, :1]),
        "On several replicas, .*kernel is assigned other values on each",
    ),
}
if hasattr(keras.optimizers, "ScheduleFreeAdamW"):
    REFUSED["an optimizer"] = (
        loss(lambda: model(optimizer=keras.optimizers.ScheduleFreeAdamW())),
        "ScheduleFreeAdamW of Keras computes other weights",
    )
