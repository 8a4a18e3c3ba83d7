"""A generative adversarial network with a training step of its own and two optimizers, on TensorFlow."""

import math

import keras
from keras import ops


class Adversarial(keras.Model):
    """A critic and a generator; `compile` takes the optimizer of each.

    The generator's optimizer is in a list in a dict. `compile` builds both by default.
    """

    def __init__(self, shape=(6, 6, 1)):
        super().__init__()
        self.critic = keras.Sequential([keras.Input(shape), keras.layers.Flatten(), keras.layers.Dense(1)])
        self.generator = keras.Sequential(
            [keras.Input((3,)), keras.layers.Dense(math.prod(shape), "tanh"), keras.layers.Reshape(shape)]
        )
        self.noise = keras.random.SeedGenerator(3)

    def compile(self, critic_optimizer, generator_optimizer, build=True, **options):
        super().compile(**options)
        self.critic_optimizer = critic_optimizer
        self.others = {"generators": [generator_optimizer]}
        if build:
            critic_optimizer.build(self.critic.trainable_variables)
            generator_optimizer.build(self.generator.trainable_variables)

    def own_optimizers(self):
        return [self.critic_optimizer, self.others["generators"][0]]

    def critic_loss(self, real, made):
        return ops.mean(ops.softplus(self.critic(made)) + ops.softplus(-self.critic(real)))

    def generator_loss(self, noise):
        return ops.mean(ops.softplus(-self.critic(self.generator(noise))))

    def train_step(self, data):
        import tensorflow as tf

        real, losses = ops.cast(data[0], "float32"), []
        noise = keras.random.normal((ops.shape(real)[0], 3), seed=self.noise)
        functions = (lambda: self.critic_loss(real, self.generator(noise)), lambda: self.generator_loss(noise))
        for part, optimizer, loss in zip((self.critic, self.generator), self.own_optimizers(), functions, strict=True):
            with tf.GradientTape() as tape:
                value = loss()
            gradients = tape.gradient(value, [variable.value for variable in part.trainable_variables])
            optimizer.apply_gradients(zip(gradients, part.trainable_variables, strict=True))
            losses.append(value)
        return {"critic": losses[0], "generator": losses[1]}


class Stores(keras.layers.Layer):
    """Layer with attributes that differ for the smaller last batch, and a counter of its calls."""

    def __init__(self):
        super().__init__()
        self.calls, self.shapes = 0, set()

    def call(self, x):
        self.shape = x.shape
        self.calls += 1
        self.shapes.add(str(x.shape))
        return x
