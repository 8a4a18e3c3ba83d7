"""Models with a `train_step` of their own, in the manner of Keras' guides and examples, see `replicated_fits`.

Their means over examples are computed by `global_mean`. Random numbers are a part of the data.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalMemberAccess=false
# pyright: reportOptionalOperand=false, reportOptionalSubscript=false
import keras
import numpy as np
import tensorflow as tf
from keras import ops

from idmatters_tf.distribute import global_mean

RANDOM = np.random.default_rng(7)
# Batches of 12, 12 and 3.
X = RANDOM.normal(size=(27, 6)).astype("float32")
NOISE = RANDOM.normal(size=(27, 4)).astype("float32")
LABELS = RANDOM.integers(0, 3, 27)


def stack(*units, shape=6):
    layers = [keras.layers.Dense(count, "tanh") for count in units[:-1]]
    return keras.Sequential([keras.Input((shape,)), *layers, keras.layers.Dense(units[-1])])


def fit(model, x, y=None, **arguments):
    return model.fit(x, y, **{"batch_size": 12, "epochs": 2, "verbose": 0, "shuffle": False, **arguments}).history


class Tracked(keras.Model):
    """Model with trackers of losses."""

    trackers = ("loss",)

    def __init__(self):
        super().__init__()
        self.means = [keras.metrics.Mean(name=name) for name in self.trackers]

    @property
    def metrics(self):
        return self.means

    def update(self, tape, loss, part=None, optimizer=None):
        weights = (part or self).trainable_weights
        (optimizer or self.optimizer).apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    def track(self, *losses):
        for metric, loss in zip(self.means, losses, strict=True):
            metric.update_state(loss)
        return {metric.name: metric.result() for metric in self.means}


class GAN(Tracked):
    trackers = ("d_loss", "g_loss")
    builds = True

    def __init__(self):
        super().__init__()
        self.generator, self.discriminator = stack(5, 6, shape=4), stack(5, 1)

    def compile(self):
        super().compile()
        self.d_optimizer, self.g_optimizer = keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.01)
        self.loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)
        if self.builds:
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


class UnbuiltGAN(GAN):
    """GAN as in the guide, whose optimizers create their variables in the first step."""

    builds = False


class WGAN(GAN):
    """GAN with a gradient penalty."""

    def train_step(self, data):
        (real, noise), *_ = data
        with tf.GradientTape() as tape:
            fake = self.generator(noise)
            mixed = 0.3 * fake + 0.7 * real
            with tf.GradientTape() as inner:
                inner.watch(mixed)
                scores = self.discriminator(mixed)
            slopes = ops.sqrt(ops.sum(ops.square(inner.gradient(scores, mixed)), 1) + 1e-6)
            cost = global_mean(self.discriminator(fake)) - global_mean(self.discriminator(real))
            d_loss = cost + 10.0 * global_mean(ops.square(slopes - 1.0))
        self.update(tape, d_loss, self.discriminator, self.d_optimizer)
        with tf.GradientTape() as tape:
            g_loss = -global_mean(self.discriminator(self.generator(noise)))
        self.update(tape, g_loss, self.generator, self.g_optimizer)
        return self.track(d_loss, g_loss)


class VAE(Tracked):
    trackers = ("loss", "kl_loss")

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = stack(5, 8), stack(5, 6, shape=4)

    def train_step(self, data):
        (x, noise), *_ = data
        with tf.GradientTape() as tape:
            mean, log_variance = ops.split(self.encoder(x), 2, -1)
            found = self.decoder(mean + ops.exp(0.5 * log_variance) * noise)
            kl = -0.5 * (1 + log_variance - ops.square(mean) - ops.exp(log_variance))
            kl_loss = global_mean(ops.sum(kl, axis=1))
            loss = global_mean(keras.losses.mean_squared_error(x, found)) + kl_loss
            # The penalty of the weights is the same on all replicas.
            loss += 0.1 * global_mean(ops.sum(ops.square(self.decoder.trainable_weights[0])))
        self.update(tape, loss)
        return self.track(loss, kl_loss)


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
            loss = global_mean((x - self.vqvae(x)) ** 2) / 0.7 + sum(self.vqvae.losses)
        self.update(tape, loss, self.vqvae)
        return self.track(loss, sum(self.vqvae.losses))


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
            loss = self.compute_triplet_loss(data)
        self.update(tape, loss)
        return self.track(loss)

    def test_step(self, data):
        return self.track(self.compute_triplet_loss(data))


class SAM(keras.Model):
    """Sharpness-aware minimization, which changes the weights between two gradients."""

    sums = True

    def __init__(self):
        super().__init__()
        self.network = stack(5, 1)

    def call(self, x):
        return self.network(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x))
        weights = self.trainable_weights
        gradients = tape.gradient(loss, weights)
        if self.sums:
            gradients = tf.distribute.get_replica_context().all_reduce("SUM", gradients)
        norm = tf.linalg.global_norm(gradients)
        steps = [0.05 * gradient / norm for gradient in gradients]
        for weight, change in zip(weights, steps, strict=True):
            weight.assign_add(change)
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x))
        gradients = tape.gradient(loss, weights)
        for weight, change in zip(weights, steps, strict=True):
            weight.assign_sub(change)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return {"loss": loss}


class LocalSAM(SAM):
    """SAM with steps that differ between the replicas."""

    sums = False


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


def build(kind, **compiled):
    keras.utils.set_random_seed(1)
    model = kind()
    model.compile(**compiled)
    return model


def contrastive():
    keras.utils.set_random_seed(1)
    temperature = Temperature()
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(3), temperature])
    model.compile(keras.optimizers.SGD(0.5), SupervisedContrastive(temperature.temperature))
    return model


def sgd():
    return {"optimizer": keras.optimizers.SGD(0.1)}


GUIDE_CASES = {
    "guide: GAN": (lambda: build(GAN), lambda made: fit(made, (X, NOISE))),
    "guide: WGAN": (lambda: build(WGAN), lambda made: fit(made, (X, NOISE))),
    "guide: VAE": (lambda: build(VAE, **sgd()), lambda made: fit(made, (X, NOISE))),
    "guide: VQ-VAE": (lambda: build(VQVAE, **sgd()), lambda made: fit(made, X)),
    "guide: Siamese": (lambda: build(Siamese, **sgd()), lambda made: fit(made, X, validation_data=(X[:7],))),
    "guide: SAM": (lambda: build(SAM, loss="mse", **sgd()), lambda made: fit(made, X, X[:, :1])),
    "guide: supervised contrastive": (contrastive, lambda made: fit(made, X, LABELS)),
}

# Functions that build the model and that run it, and the error on several replicas.
GUIDE_REFUSED = {
    "guide: GAN, unbuilt": (
        lambda: build(UnbuiltGAN),
        lambda made: fit(made, (X, NOISE)),
        "d_optimizer.build.variables.",
    ),
    "guide: SAM, local": (
        lambda: build(LocalSAM, loss="mse"),
        lambda made: fit(made, X, X[:, :1]),
        "On several replicas, .*kernel is assigned other values on each",
    ),
}
