"""Construction of the network and its batches from the settings of a task."""

import contextlib
from collections.abc import Sequence
from typing import Any

import keras

from idmatters_tf._environment import cores
from idmatters_tf.callbacks import FunctionBatches
from idmatters_tf.data.batches import TrainBatches, compute_ahead
from idmatters_tf.determinism import make_deterministic
from trainers import networks
from trainers.cli.arguments import UsageError
from trainers.training.measure import make_loss, make_metrics
from trainers.training.settings import Task


def build_model(task: Task, strategy: Any = None) -> keras.Model:
    """Build the network of a task for training images, with random numbers determined by the seed.

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
    model = build_network(task, data.image_shape, data.classes, dtype, replicas)
    return with_image_size(model) if recipe.train_sizes else model


def compile_model(task: Task, model: keras.Model, optimizer: Any = None) -> None:
    """Compile the network of a task with its loss and metrics."""
    # XLA is slower than oneDNN on the CPU, and not deterministic with TensorFlow's determinism on.
    jit: Any = "auto" if keras.backend.backend() == "jax" else False
    loss, metrics = make_loss(task.settings.recipe.label_smoothing), make_metrics(task.data.classes)
    model.compile(optimizer, loss, weighted_metrics=metrics, jit_compile=jit)


def strategy_scope(strategy: Any) -> contextlib.AbstractContextManager[Any]:
    """Return the scope of a `tf.distribute.Strategy`, or a context without effect for None."""
    return contextlib.nullcontext() if strategy is None else strategy.scope()


def build_network(task: Task, image_shape: Sequence[int], classes: int, dtype: str, replicas: int = 1) -> keras.Model:
    """Build the network of a task under a dtype policy, with statistics over all replicas.

    Raises:
        UsageError: the images are too small for the network.
    """
    recipe = task.settings.recipe
    model = task.settings.model
    previous = keras.config.dtype_policy()
    keras.config.set_dtype_policy(dtype)
    try:
        options = {"weight_decay": recipe.weight_penalty, "seed": recipe.seed}
        return networks.build(model, task.settings.network, image_shape, classes, replicas, **options)
    except ValueError as error:
        raise UsageError(
            f"--model {model} cannot be built for images of shape {tuple(image_shape)}. Use larger images or "
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
    """Return the training batches, whose epochs are the log interval."""
    recipe = task.settings.recipe
    source = task.source.train_batches()
    is_in_memory = isinstance(source, TrainBatches)
    if recipe.train_sizes:
        from trainers.training.sizes import ScaledBatches

        source = ScaledBatches(source, recipe.train_sizes, recipe.size_steps)
    if is_in_memory and keras.backend.backend() == "jax":
        source = compute_ahead(source.batch, min(4, cores()))
    return FunctionBatches(source, task.settings.log_interval)
