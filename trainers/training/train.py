"""Training and evaluation of a task: data, network, learning rate and optimizer, callbacks, `fit`, exports, result."""

import contextlib
import functools
import math
import signal
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import keras
from keras import ops

from idmatters_tf._environment import cores, describe_numerics
from idmatters_tf._keras_types import Tensor
from idmatters_tf.callbacks import ExactResume, FunctionBatches
from idmatters_tf.checkpointing import OtherRun, list_steps
from idmatters_tf.data.batches import TrainBatches, compute_ahead
from idmatters_tf.determinism import make_deterministic
from idmatters_tf.distribute import ClusterDescription
from idmatters_tf.distribute.tasks import check_equal, gather
from idmatters_tf.optimizers.building import build_optimizer
from trainers.cli.arguments import RunError, UsageError, program_command
from trainers.cli.settings import as_dict
from trainers.cli.startup import print_lines, print_message
from trainers.cluster import make_strategy, replicas_of
from trainers.networks import with_image_size
from trainers.run.figures import convergence
from trainers.run.folder import SAME, WHERE_DATA_ARE, DataDescription, describe_result, summarize
from trainers.run.signals import SignalHandler
from trainers.training import reports
from trainers.training.export import SPACE, export_newest, restore
from trainers.training.measure import (
    SILENT,
    as_float,
    average_over_mirror_images,
    make_loss,
    make_metrics,
    measure,
)
from trainers.training.optimizers import RecipeMomentum, RecipeMuon
from trainers.training.settings import Recipe, Task

if TYPE_CHECKING:
    import tensorflow as tf

MOMENTUM, LOOKAHEAD = 0.9, 0.95
# By schedule: factor on the learning rate at each drop or decay (section 4.2 of Hardt & Ma), or at the last step.
FACTORS = {"drops": 0.1, "decay": 0.94, "linear": 0.0, "airbench": 0.07}
DECAY_EPOCHS = 2
# Factors on the learning rate of biases, gains and the last layer, by optimizer.
OTHER_RATES = {"muon": 1.5, "muon-free": 0.5}


def train(task: Task, cluster: ClusterDescription | None) -> int:
    """Start or resume a run. Returns the exit code: 0, or 128 + N after signal N, when a checkpoint has been saved."""
    run, recipe = task.run, task.settings.recipe
    # In a cluster, only the chief prints messages.
    say_once = print_message if run.writes else lambda _text: None

    # Data. Several workers must be connected before TensorFlow computes anything.
    strategy = make_strategy(cluster)
    task.check_batch_size(replicas_of(strategy))
    training_images, test_images = task.settings.data.counts
    images = f"{training_images:,} + {test_images:,} images{task.settings.data.note}"
    say_once(f"{task.data.name}: {images} ({task.data.origin})")
    if cluster is not None and not cluster.asynchronous:
        _check_agreement(task, cluster, strategy)

    # Network and optimizer
    model = build_model(task, strategy)
    parameters = sum(math.prod(variable.shape) for variable in model.trainable_variables)
    say_once(
        f"{parameters:,} trainable parameters on {_devices(strategy, cluster)}, {recipe.precision}; results in "
        f"{run.path}"
    )

    # Run. `ExactResume` finds the checkpoint of an existing one.
    if not list_steps(run.checkpoints_path):
        if run.result() is not None:
            raise UsageError(f"{run.path} is finished, but its checkpoints are missing. {SAME}")
        described = DataDescription(
            task.data.origin, task.data.image_shape, task.data.classes, task.data.digest(), task.data.class_names
        )
        numerics = describe_numerics(keras.backend.backend())
        run.start(as_dict(task.settings), vars(described), task.program, numerics)

    # Updates
    try:
        with SignalHandler() as handler:
            if cluster is not None and cluster.asynchronous:
                from trainers.training.asynchronous import fit_asynchronously

                is_complete = fit_asynchronously(task, model, build_model(task), make_schedule(task), cluster, handler)
            else:
                is_complete = _fit(task, model, handler)
    except Exception as error:
        step = int(as_float(model.optimizer.iterations))
        unreadable = task.settings.data.explain(error, recipe.batch_size, recipe.seed, step)
        if unreadable:
            raise RunError(unreadable) from error
        raise
    if not is_complete:
        stopped = handler.received or signal.SIGTERM
        resume = program_command(task.program, "--resume", "--out", run.path)
        same_command = resume if cluster is None else "run the same command again"
        # A signal during the first evaluation stops the run before the first checkpoint.
        saved = "saved a checkpoint" if list_steps(run.checkpoints_path) else "no checkpoint yet"
        say_once(f"stopped by {stopped.name}; {saved}. To resume: {same_command}")
        return 128 + stopped

    # Exports and result
    if run.writes:
        plot = run.path / "convergence.png"
        result = summarize(run.records, recipe.steps, parameters)
        # From the checkpoint of the last step: the trained model may be in bfloat16 on several devices.
        export_newest(task)
        convergence(run.records, plot, task.title(parameters))
        run.finish(result)
        print_lines(describe_result(result), f"convergence plot:      {plot}")
    return 0


def _check_agreement(task: Task, cluster: ClusterDescription, strategy: "tf.distribute.Strategy | None") -> None:
    """Raise UsageError on all workers if one has other settings, data or another folder."""
    shared = {name: value for name, value in as_dict(task.settings).items() if name not in WHERE_DATA_ARE}
    shared |= {"out": str(task.run.path.absolute()), "the checksum of the data": task.data.digest()}
    try:
        check_equal(list(cluster.tasks), gather(strategy, shared))
    except ValueError as error:
        raise UsageError(str(error)) from None


def build_model(task: Task, strategy: "tf.distribute.Strategy | None" = None) -> keras.Model:
    """Build and compile the network of a task for training images, with random numbers determined by the seed."""
    recipe, data = task.settings.recipe, task.data
    make_deterministic(recipe.seed)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = task.build_network(data.image_shape, data.classes, recipe.precision, replicas_of(strategy))
        if recipe.train_sizes:
            model = with_image_size(model)
        optimizer = make_optimizer(recipe, make_schedule(task))
        # XLA is slower than oneDNN on the CPU, and not deterministic with TensorFlow's determinism on.
        jit = "auto" if keras.backend.backend() == "jax" else cast(str, False)  # Keras annotates it as a string
        loss, metrics = make_loss(recipe.label_smoothing), make_metrics(data.classes)
        model.compile(optimizer, loss, weighted_metrics=metrics, jit_compile=jit)
        # Inside the scope: slot variables created while tracing break under several replicas.
        build_optimizer(optimizer, model)
    return model


def make_optimizer(recipe: Recipe, schedule: "RecipeSchedule") -> RecipeMomentum | RecipeMuon:
    """Return the optimizer of a recipe."""
    lookahead = LOOKAHEAD if recipe.schedule == "airbench" else 0.0
    shared: dict[str, Any] = {
        "learning_rate": schedule,
        "momentum": MOMENTUM,
        "global_clipnorm": recipe.clip_norm,
        "lookahead": lookahead,
        "steps": recipe.steps,
    }
    if recipe.optimizer in ("momentum", "nesterov"):
        return RecipeMomentum(nesterov=recipe.optimizer == "nesterov", **shared)
    norm = "keep" if recipe.optimizer == "muon" else "free"
    if norm == "free" and recipe.weight_decay:
        shared["weight_decay"] = recipe.weight_decay
    return RecipeMuon(nesterov=True, norm=norm, other_rate=OTHER_RATES[recipe.optimizer], **shared)


def make_schedule(task: Task) -> "RecipeSchedule":
    """Return the learning rate of a task."""
    recipe = task.settings.recipe
    return RecipeSchedule(recipe, find_drop_steps(recipe, task.settings.data.counts[0]))


def find_drop_steps(recipe: Recipe, images: int) -> tuple[int, ...]:
    """Return the steps at which the learning rate drops: the first updates with a lower rate, in ascending order.

    With `--schedule decay`, they are the first steps after each multiple of `DECAY_EPOCHS` epochs.
    """
    if recipe.schedule != "decay":
        return recipe.drop_steps if recipe.schedule == "drops" else ()
    every = DECAY_EPOCHS * images / recipe.batch_size
    return tuple(math.ceil(number * every - 1e-9) for number in range(1, math.ceil(recipe.steps / every)))


class RecipeSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Learning rate of a recipe as a function of the step.

    With "linear" and "airbench", the rate increases linearly to its peak and then decreases linearly to a fraction of
    it (Smith & Topin, arXiv 1708.07120, with linear segments and without the last phase). With "drops" and "decay" it
    is multiplied by a factor at each of `drop_steps`, after a warm-up at a tenth of the rate.

    Args:
        recipe: the recipe, whose learning rate is the peak.
        drop_steps: first steps with a lower rate.
    """

    def __init__(self, recipe: Recipe, drop_steps: Sequence[int] = ()):
        self.kind, self.rate, self.steps = recipe.schedule, recipe.learning_rate, recipe.steps
        self.warm_up_steps, self.drop_steps = recipe.warm_up_steps, drop_steps

    def __call__(self, step: Tensor) -> Tensor:
        factor = FACTORS[self.kind]
        step = ops.cast(step, "float32")
        if self.kind in ("linear", "airbench"):
            rising = (step + 1) / (self.warm_up_steps + 1)
            falling = factor + (1 - factor) * ((self.steps - step) / (self.steps - self.warm_up_steps))
            fraction: Tensor = ops.minimum(rising, falling)
            return self.rate * fraction
        drops = ops.zeros((), "float32")
        for drop in self.drop_steps:
            drops = drops + ops.cast(step >= drop, "float32")
        power: Tensor = ops.power(factor, drops)
        rate = self.rate * power
        return ops.where(step < self.warm_up_steps, self.rate / 10, rate) if self.warm_up_steps else rate

    def get_config(self) -> dict[str, object]:
        return {**vars(self)}


def _fit(task: Task, model: keras.Model, handler: SignalHandler) -> bool:
    """Train by Keras' `fit`, whose epochs are the log interval. Return False if a signal has stopped the training."""
    run, settings, recipe = task.run, task.settings, task.settings.recipe
    network = with_image_size(model, *task.data.image_shape[:2]) if recipe.train_sizes else model
    _, count = settings.data.counts
    test = functools.partial(measure, model, settings.data.test_batches(recipe.batch_size), count, run.writes)
    recorded = reports.Reports(task, network, test)
    resume = ExactResume(run.checkpoints_path, settings.run.checkpoint_every, reports.KEPT, identity=task.identity)
    listed = [reports.ReportEpochs(recorded, resume, handler, make_schedule(task)), resume]
    batches, epochs = make_train_batches(task), recipe.steps // settings.run.log_every
    shown = {"epochs": epochs, "steps": batches.steps_per_epoch, "verbose": SILENT}
    callbacks = reports.DeviceLogs(listed, add_history=True, add_progbar=False, model=model, **shown)
    with recorded, warnings.catch_warnings():
        # That the run is finished, if it was killed between the last checkpoint and its result.
        warnings.filterwarnings("ignore", "The run in .* is finished")
        try:
            model.fit(batches, epochs=epochs, shuffle=False, verbose=SILENT, callbacks=callbacks)
        except OtherRun as error:
            raise UsageError(f"{error.reason} {SAME}") from error
        except OSError as error:
            raise RunError(f"{run.path} cannot be written: {error.strerror or error}.", f"{SPACE}.") from error
    return recorded.step >= recipe.steps


def make_train_batches(task: Task) -> FunctionBatches:
    """Return the training batches, whose epochs are the log interval."""
    recipe = task.settings.recipe
    source = task.settings.data.train_batches(recipe.batch_size, recipe.seed)
    is_in_memory = isinstance(source, TrainBatches)
    if recipe.train_sizes:
        from trainers.training.sizes import ScaledBatches

        source = ScaledBatches(source, recipe.sizes)
    if is_in_memory and keras.backend.backend() == "jax":
        source = compute_ahead(source.batch, min(4, cores()))
    return FunctionBatches(source, task.settings.run.log_every)


def _devices(strategy: "tf.distribute.Strategy | None", cluster: ClusterDescription | None) -> str:
    replicas = replicas_of(strategy)
    here = "1 device" if replicas == 1 else f"{replicas} replicas"
    if cluster is None:
        return here
    if cluster.asynchronous:
        return f"{cluster.workers} asynchronous workers of {here}, {len(cluster.jobs['ps'])} parameter servers"
    return f"{here} of {cluster.workers} workers"


def evaluate(task: Task) -> None:
    """Print the test error of the newest checkpoint, also of averages over mirror images, computed on this machine.

    Raises:
        UsageError: there is no such checkpoint, or the data are not those of the run.
    """
    strategy = make_strategy()
    task.check_batch_size(replicas_of(strategy))
    model = build_model(task, strategy)
    step = restore(task, model, task.identity)
    batches, (_, count) = task.settings.data.test_batches(task.settings.recipe.batch_size), task.settings.data.counts
    measured = measure(model, batches, count)
    top5 = f", top-5 error {100 * measured['top5_error']:.2f} %" if "top5_error" in measured else ""
    print_lines(
        f"{task.run.path}, step {step}: test error {100 * measured['error']:.2f} %{top5}, test loss "
        f"{measured['loss']:.4f} on {measured['count']:,} images"
    )
    mirrored = measure(average_over_mirror_images(model), batches, count)
    print_lines(f"averaged over each image and its mirror image: test error {100 * mirrored['error']:.2f} %")
