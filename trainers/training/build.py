"""Construction of the network, the optimizer and the learner from a task's settings."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from idmatters_tf.data.protocols import DataSet
from idmatters_tf.layers import PatchWhitening2D
from idmatters_tf.optimizers import Momentum, Muon
from trainers.cli.arguments import UsageError
from trainers.training.learner import Learner
from trainers.training.settings import Recipe
from trainers.training.task import Task

# Number of images, with two million patches, from which the whitening of the first layer is computed.
WHITENING_IMAGES = 2000


def build_network(task: Task, image_shape: Sequence[int], classes: int, dtype: str, replicas: int = 1) -> keras.Model:
    """Build the network of a task under a dtype policy, with statistics over all replicas."""
    previous = keras.config.dtype_policy()
    keras.config.set_dtype_policy(dtype)
    try:
        return task.network(image_shape, classes, replicas)
    finally:
        keras.config.set_dtype_policy(previous)


def in_float32(task: Task, model: keras.Model, replicas: int = 1) -> keras.Model:
    """Build a task's network again in float32, with a copy of the weights of `model`."""
    network = build_network(task, model.input_shape[1:], model.output_shape[-1], "float32", replicas)
    network.set_weights(model.get_weights())
    return network


def get_optimizer_factory(recipe: Recipe) -> Callable[[], keras.optimizers.Optimizer]:
    """Return a function that creates the optimizer of a recipe."""
    shared: dict[str, Any] = {"momentum": recipe.momentum, "nesterov": recipe.nesterov}
    if recipe.lookahead:
        # The decay depends on the step; Keras provides the variables.
        shared |= {"use_ema": True, "ema_momentum": recipe.lookahead}
    if recipe.optimizer == "muon":
        if recipe.has_free_muon and recipe.weight_decay:
            shared["weight_decay"] = recipe.weight_decay
        return lambda: Muon(recipe.learning_rate, norm=recipe.muon_norm, other_rate=recipe.other_rate, **shared)
    return lambda: Momentum(recipe.learning_rate, **shared)


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
        task.schedule(),
        recipe,
    )


def fit_stem(task: Task, learner: Learner) -> None:
    """Fits a first layer that whitens patches to the training images; does nothing where there is none."""
    layers = [layer for layer in learner.model.layers if isinstance(layer, PatchWhitening2D)]
    if not layers:
        return
    batches = task.source.examples(WHITENING_IMAGES).dataset()
    images = np.concatenate([images.numpy()[weights.numpy() > 0] for images, _, weights in batches])
    for layer in layers:
        layer.adapt(images)
