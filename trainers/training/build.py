"""Construction of the network, the optimizer, the schedule and the learner from a task's settings."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from idmatters_tf.data.protocols import DataSet
from idmatters_tf.layers import PatchWhitening2D
from idmatters_tf.optimizers import Momentum, Muon
from trainers.cli.arguments import UsageError
from trainers.training.learner import Learner, Schedule, Step
from trainers.training.program import Task
from trainers.training.settings import Recipe

# Number of images, with two million patches, from which the whitening of the first layer is computed.
WHITENING_IMAGES = 2000
MOMENTUM = 0.9
# Factors on the learning rate at each drop and at each decay (section 4.2 of Hardt & Ma).
DROP, DECAY = 0.1, 0.94


def build_network(task: Task, image_shape: Sequence[int], classes: int, dtype: str, replicas: int = 1) -> keras.Model:
    """Build the network of a task under a dtype policy, with statistics over all replicas.

    Raises:
        UsageError: the images are too small for the network.
    """
    recipe, network = task.settings.recipe, task.settings.network
    previous = keras.config.dtype_policy()
    keras.config.set_dtype_policy(dtype)
    try:
        return network.build(image_shape, classes, recipe.weight_penalty, recipe.seed, replicas)
    except ValueError as error:
        raise UsageError(
            f"--model {network.model} cannot be built for images of shape {tuple(image_shape)}. Use larger images or "
            f"different sizes of the network ({str(error).splitlines()[0]})."
        ) from error
    finally:
        keras.config.set_dtype_policy(previous)


def in_float32(task: Task, model: keras.Model, replicas: int = 1) -> keras.Model:
    """Build a task's network again in float32, with a copy of the weights of `model`."""
    network = build_network(task, model.input_shape[1:], model.output_shape[-1], "float32", replicas)
    network.set_weights(model.get_weights())
    return network


def get_optimizer_factory(recipe: Recipe) -> Callable[[], keras.optimizers.Optimizer]:
    """Return a function that creates the optimizer of a recipe."""
    shared: dict[str, Any] = {"momentum": MOMENTUM, "nesterov": recipe.nesterov}
    if recipe.lookahead:
        # Keras provides the variables of the averages; `Learner` updates them.
        shared |= {"use_ema": True, "ema_momentum": recipe.lookahead}
    if recipe.optimizer == "momentum":
        return lambda: Momentum(recipe.learning_rate, **shared)
    norm = "keep" if recipe.optimizer == "muon" else "free"
    if norm == "free" and recipe.weight_decay:
        shared["weight_decay"] = recipe.weight_decay
    return lambda: Muon(recipe.learning_rate, norm=norm, other_rate=recipe.other_rate, **shared)


def build_learner(task: Task, data: DataSet, strategy: tf.distribute.Strategy) -> Learner:
    """Build the learner of a task, with random numbers determined by the seed.

    Raises:
        UsageError: the batch cannot be divided evenly among the replicas.
    """
    recipe, replicas = task.settings.recipe, strategy.num_replicas_in_sync
    if recipe.batch_size % replicas:
        raise UsageError(f"--batch-size must be a multiple of the {replicas} replicas. Received: {recipe.batch_size}")
    tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(recipe.seed)
    dtype = "mixed_bfloat16" if recipe.precision == "bfloat16" else "float32"
    return Learner(
        strategy,
        lambda: build_network(task, data.image_shape, data.classes, dtype, replicas),
        get_optimizer_factory(recipe),
        get_schedule(recipe, find_drop_steps(recipe, task.source.training_images)),
        recipe,
    )


def fit_stem(task: Task, learner: Learner) -> None:
    """Fit a first layer that whitens patches to the training images, if there is one."""
    layers = [layer for layer in learner.model.layers if isinstance(layer, PatchWhitening2D)]
    if not layers:
        return
    batches = task.source.examples(WHITENING_IMAGES).dataset()
    images = np.concatenate([images.numpy()[weights.numpy() > 0] for images, _, weights in batches])
    for layer in layers:
        layer.adapt(images)


def find_drop_steps(recipe: Recipe, images: int) -> tuple[int, ...]:
    """Return the steps at which the learning rate drops: the first updates with a lower rate, in ascending order.

    With `--schedule decay`, they are the first steps after each multiple of `decay_epochs` epochs.

    Args:
        recipe: settings.
        images: number of training images.
    """
    if recipe.schedule == "linear":
        return ()
    if recipe.schedule == "drops":
        return recipe.drop_steps
    every = recipe.decay_epochs * images / recipe.batch_size
    return tuple(math.ceil(number * every - 1e-9) for number in range(1, math.ceil(recipe.steps / every)))


def get_schedule(recipe: Recipe, drop_steps: Sequence[int] = ()) -> Schedule:
    """Return the learning rate schedule of a recipe.

    With `--schedule linear`, the rate increases linearly to its peak and then decreases linearly to its final value
    (Smith & Topin, arXiv 1708.07120, with linear segments and without the last phase). The other schedules multiply it
    by a factor at each of `drop_steps`, after a warm-up at a tenth of the rate.
    """

    def linear(step: Step) -> tf.Tensor:
        step = tf.cast(tf.cast(step, tf.int64), tf.float32)
        rising = (step + 1) / (recipe.warm_up_steps + 1)
        falling = (recipe.steps - step) / (recipe.steps - recipe.warm_up_steps)
        if recipe.final_rate:
            falling = recipe.final_rate + (1 - recipe.final_rate) * falling
        return recipe.learning_rate * tf.minimum(rising, falling)

    def with_drops(step: Step) -> tf.Tensor:
        step = tf.cast(step, tf.int64)
        drops = tf.reduce_sum(tf.cast(step >= tf.constant(drop_steps, tf.int64), tf.float32))
        rate = recipe.learning_rate * tf.pow(DECAY if recipe.schedule == "decay" else DROP, drops)
        return tf.where(step < recipe.warm_up_steps, recipe.learning_rate / 10, rate) if recipe.warm_up_steps else rate

    return linear if recipe.schedule == "linear" else with_drops
