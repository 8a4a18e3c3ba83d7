"""Construction of the compiled network and its batches from the settings of a task."""

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import keras

from idmatters_tf._environment import cores
from idmatters_tf.callbacks import FunctionBatches
from idmatters_tf.data.numpy_batches import NumpyBatches, compute_ahead
from idmatters_tf.depth._scaled_optimizers import DepthScaling
from idmatters_tf.depth.scale import scale_branches
from idmatters_tf.determinism import make_deterministic
from idmatters_tf.optimizers.muon import build_optimizer
from trainers.cli.arguments import UsageError
from trainers.training.measure import make_loss, make_metrics
from trainers.training.optimizers import make_optimizer
from trainers.training.settings import Recipe
from trainers.training.task import Task


def build_model(task: Task, strategy: Any = None) -> keras.Model:
    """Build and compile the network of a task, with random numbers determined by the seed.

    Raises:
        UsageError: the batch cannot be divided evenly among the replicas of the `tf.distribute.Strategy`.
    """
    recipe = task.settings.recipe
    data = task.data
    replicas = getattr(strategy, "num_replicas_in_sync", 1)
    if recipe.batch_size % replicas:
        raise UsageError(f"--batch-size must be a multiple of the {replicas} replicas. Received: {recipe.batch_size}")
    make_deterministic(recipe.seed)
    dtype = "mixed_bfloat16" if recipe.precision == "bfloat16" else "float32"
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = build_network(task, data.image_shape, data.classes, dtype, replicas)
        if recipe.train_sizes:
            model = with_image_size(model)
        scaling = None if recipe.base_blocks is None else scale_network(model, recipe.base_blocks)
        optimizer = make_optimizer(recipe, find_drop_steps(recipe, task.source.training_images), scaling)
        # XLA is slower than oneDNN on the CPU, and not deterministic with TensorFlow's determinism on.
        jit: Any = "auto" if keras.backend.backend() == "jax" else False
        loss, metrics = make_loss(recipe.label_smoothing), make_metrics(data.classes)
        model.compile(optimizer, loss, weighted_metrics=metrics, jit_compile=jit)
        # Inside the scope: slot variables created while tracing break under several replicas.
        build_optimizer(optimizer, model)
    return model


def scale_network(model: keras.Model, base_blocks: int) -> DepthScaling:
    """Scale the branches of a network.

    Raises:
        UsageError: the network has no residual blocks, or blocks that cannot be scaled.
    """
    try:
        return scale_branches(model, base_blocks)
    except ValueError as error:
        raise UsageError(f"--base-blocks cannot scale this network. {error}") from error


def build_network(task: Task, image_shape: Sequence[int], classes: int, dtype: str, replicas: int = 1) -> keras.Model:
    """Build the network of a task under a dtype policy, with statistics over all replicas.

    Raises:
        UsageError: the images are too small for the network.
    """
    recipe = task.settings.recipe
    network = task.settings.network
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


def in_float32(task: Task, model: keras.Model, image_shape: Sequence[int], replicas: int = 1) -> keras.Model:
    """Build a task's network again in float32, with a copy of the weights of `model`."""
    network = build_network(task, image_shape, model.output_shape[-1], "float32", replicas)
    network.set_weights(model.get_weights())
    return network


def with_image_size(model: keras.Model, rows: int | None = None, cols: int | None = None) -> keras.Model:
    """Return a functional model with the same layers and weights for images of another size, by default of any size.

    Raises:
        UsageError: the layers require a fixed image size.
    """
    try:
        images = keras.Input((rows, cols, model.input_shape[-1]), dtype=model.inputs[0].dtype, name="images")
        # A clone of a compiled model would be compiled as well.
        plain = keras.Model(model.input, model.output, name=model.name)
        return keras.models.clone_model(plain, input_tensors=images, clone_function=lambda layer: layer)
    except (TypeError, ValueError) as error:
        raise UsageError(f"--train-sizes needs a network for images of any size, not {model.name}.") from error


def make_train_batches(task: Task) -> FunctionBatches:
    """Return the training batches. The number of steps in an epoch depends on the data only."""
    recipe = task.settings.recipe
    source = task.source.train_batches()
    if recipe.train_sizes:
        from trainers.training.sizes import ScaledBatches

        source = ScaledBatches(source, recipe.train_sizes, recipe.size_steps)
    if isinstance(source, NumpyBatches):
        source = compute_ahead(source.batch, min(4, cores()))
    return FunctionBatches(source, max(1, task.source.training_images // recipe.batch_size))


def find_drop_steps(recipe: Recipe, images: int) -> tuple[int, ...]:
    """Return the steps at which the learning rate drops: the first updates with a lower rate, in ascending order.

    With `--schedule decay`, they are the first steps after each multiple of `decay_epochs` epochs.
    """
    if recipe.schedule == "linear":
        return ()
    if recipe.schedule == "drops":
        return recipe.drop_steps
    every = recipe.decay_epochs * images / recipe.batch_size
    return tuple(math.ceil(number * every - 1e-9) for number in range(1, math.ceil(recipe.steps / every)))
