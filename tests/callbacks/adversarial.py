"""A generative adversarial network with a custom training step and two optimizers, for both backends."""

import math

import keras
from keras import ops


class Adversarial(keras.Model):
    """A critic and a generator; `compile` takes the optimizer of each.

    The generator's optimizer is in a list in a dict. `compile` builds both by default. On JAX the step
    has to be run eagerly.
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

    def train_step(self, *arguments):
        return self.step_on_jax(*arguments) if keras.backend.backend() == "jax" else self.step_on_tensorflow(*arguments)

    def step_on_tensorflow(self, data):
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

    def step_on_jax(self, state, data):
        import jax

        trainable, others, slots, metrics = state
        names = [variable.path for variable in self.trainable_variables]
        values, real = dict(zip(names, trainable, strict=True)), ops.cast(data[0], "float32")
        with keras.StatelessScope(list(zip(self.non_trainable_variables, others, strict=True))) as scope:
            noise = keras.random.normal((real.shape[0], 3), seed=self.noise)
        others = [scope.get_current_value(variable) for variable in self.non_trainable_variables]
        losses = []
        functions = (lambda: self.critic_loss(real, self.generator(noise)), lambda: self.generator_loss(noise))
        for part, optimizer, loss in zip((self.critic, self.generator), self.own_optimizers(), functions, strict=True):
            own = part.trainable_variables

            def of(weights, own=own, loss=loss, values=values):
                now = {**values, **dict(zip([variable.path for variable in own], weights, strict=True))}
                with keras.StatelessScope([(variable, now[variable.path]) for variable in self.trainable_variables]):
                    return loss()

            value, gradients = jax.value_and_grad(of)([values[variable.path] for variable in own])
            own_slots = [variable.value for variable in optimizer.variables]
            weights, own_slots = optimizer.stateless_apply(
                own_slots, gradients, [values[variable.path] for variable in own]
            )
            for variable, slot in zip(optimizer.variables, own_slots, strict=True):
                variable.assign(slot)
            values |= dict(zip([variable.path for variable in own], weights, strict=True))
            losses.append(value)
        state = [values[name] for name in names], others, slots, metrics
        return {"critic": losses[0], "generator": losses[1]}, state


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
