"""Exact resume of a `fit` that is stopped at any point, compared with an uninterrupted one.

The parts of a run use the same compiled model, whose variables are overwritten in between. `test_backends` runs the
tests on JAX.
"""

import dataclasses
import signal
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from idmatters_tf.callbacks import ArrayBatches, ExactResume, FunctionBatches
from idmatters_tf.optimizers import Muon
from tests.support.killed_fit import shown_scalars
from tests.support.stopped_fits import Killed, kill_at

EXAMPLES, BATCH = 44, 6
STEPS = 8  # in an epoch, the last one of 2 examples


def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(EXAMPLES, 6, 6, 1))
    return x, (x.mean((1, 2, 3)) > 0).astype("int32")


@dataclasses.dataclass
class Case:
    """A `fit` to be stopped, whose callbacks and data are created again for each part of the run."""

    layers: Callable[[], list[Any]]
    compile: Callable[[], dict[str, Any]]
    callbacks: Callable[[Any], list[Any]] = lambda folder: []
    batches: Callable[[], Any] = lambda: ArrayBatches(*data(), batch_size=BATCH, seed=3)
    fit: dict[str, Any] = dataclasses.field(default_factory=dict)
    policy: str = "float32"
    epochs: int = 4
    every: int = 3
    model: Any = keras.Sequential
    # End of each part of the run: event, epoch, batch.
    moments: tuple[tuple[str, int, int | None], ...] = (("batch", 2, 5),)
    # If False, each part of the run creates and compiles its own model.
    reuse: bool = True


def dense(*more):
    return [*more, keras.layers.Flatten(), keras.layers.Dense(5, "tanh"), keras.layers.Dense(2, dtype="float32")]


def noisy():
    return dense(
        keras.layers.RandomFlip(),
        keras.layers.Conv2D(2, 3),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.3),
    )


def with_loss(optimizer, **more):
    return {"optimizer": optimizer, "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True), **more}


class OwnStep(keras.Sequential):
    """A model with a custom metric and loss."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.largest = keras.metrics.Mean(name="largest")

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        self.largest.update_state(keras.ops.max(y_pred))
        return super().compute_loss(x, y, y_pred, sample_weight, training) + 0.01 * keras.ops.mean(y_pred**2)


class TwoOptimizers(keras.Model):
    """Model whose step trains each part with an optimizer of its own. The second one is in a list in a dict."""

    def __init__(self):
        super().__init__()
        self.first = keras.Sequential([keras.Input((6, 6, 1)), *dense()[:-1]])
        self.last = keras.Sequential([keras.Input((5,)), keras.layers.Dropout(0.2), keras.layers.Dense(1)])

    def compile(self, optimizer, other, build=True, **options):
        super().compile(**options)
        self.first_optimizer, self.others = optimizer, {"optimizers": [other]}
        for each, part in zip(self.own_optimizers(), (self.first, self.last), strict=True):
            if build:
                each.build(part.trainable_variables)

    def own_optimizers(self):
        return [self.first_optimizer, *self.others["optimizers"]]

    def train_step(self, data):
        import tensorflow as tf

        x = keras.ops.cast(data[0], "float32")
        with tf.GradientTape() as tape:
            loss = keras.ops.mean((self.last(self.first(x), training=True) - keras.ops.max(x, (1, 2))) ** 2)
        parts = [part.trainable_variables for part in (self.first, self.last)]
        gradients = tape.gradient(loss, [[variable.value for variable in part] for part in parts])
        for optimizer, part, own in zip(self.own_optimizers(), parts, gradients, strict=True):
            optimizer.apply(own, part)
        return {"loss": loss}


def two_optimizers():
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), initial_scale=1, dynamic_growth_steps=7)
    return {"optimizer": keras.optimizers.Adam(0.02, use_ema=True), "other": scaled}


class SlowsDown(keras.callbacks.Callback):
    """Callback with a schedule for an optimizer that is not compiled."""

    def on_epoch_begin(self, epoch, logs=None):
        rate = self.model.first_optimizer.learning_rate
        rate.assign(0.9 * keras.ops.convert_to_tensor(rate))


def random_batch(step):
    rng = np.random.default_rng((7, step))
    x = rng.normal(size=(BATCH, 6, 6, 1)).astype("float32")
    return x, (x.mean((1, 2, 3)) > 0).astype("int32"), rng.random(BATCH).astype("float32")


CASES = {
    "random layers, own metric and loss, callbacks that stop and slow down": Case(
        noisy,
        lambda: with_loss(keras.optimizers.Adam(0.05), metrics=["accuracy"], weighted_metrics=["accuracy"]),
        lambda folder: [
            # No improvement reaches 5: the callback waits in the second epoch and ends the run after the third one.
            keras.callbacks.EarlyStopping("val_loss", min_delta=5, patience=2, restore_best_weights=True),
            keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=0.2),
            keras.callbacks.ModelCheckpoint(folder / "best.weights.h5", save_best_only=True, save_weights_only=True),
            keras.callbacks.ModelCheckpoint(folder / "{epoch}-{batch}.weights.h5", save_weights_only=True, save_freq=5),
        ],
        fit={"validation_data": data()},
        epochs=6,
        model=OwnStep,
        moments=(("validated", 1, None), ("epoch ends", 1, None), ("batch", 2, 4)),
    ),
    "several steps per execution, loss scale, class weights": Case(
        lambda: dense(keras.layers.Dropout(0.5)),
        lambda: with_loss(
            keras.optimizers.LossScaleOptimizer(
                keras.optimizers.SGD(0.05, momentum=0.9, gradient_accumulation_steps=3), dynamic_growth_steps=3
            ),
            steps_per_execution=3,
        ),
        fit={"class_weight": {0: 1.0, 1: 3.0}, "initial_epoch": 1},
        policy="mixed_float16",
        epochs=3,
        moments=(("batch", 1, 5),),
    ),
    "moving average, schedules, a function of the step": Case(
        dense,
        lambda: with_loss(keras.optimizers.SGD(0.05, use_ema=True, ema_momentum=0.9), metrics=["accuracy"]),
        lambda folder: [
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.9 * rate),
            keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
            keras.callbacks.CSVLogger(folder / "log.csv"),
            keras.callbacks.TensorBoard(folder / "events", write_graph=False, update_freq=1),
        ],
        batches=lambda: FunctionBatches(random_batch, STEPS),
        fit={"validation_data": data()},
        # From the end of an epoch, when the model contains the averages, and then from the middle of an epoch.
        moments=(("batch", 3, 1), ("batch", 3, 4)),
    ),
    "Muon": Case(
        lambda: [
            keras.layers.Reshape((6, 6)),
            keras.layers.EinsumDense("abc,cde->abde", (6, 2, 3), bias_axes="de"),
            *dense(keras.layers.Dropout(0.3)),
        ],
        lambda: with_loss(Muon(norm="free", other="adamw", use_ema=True, gradient_accumulation_steps=2)),
        epochs=3,
        moments=(("batch", 1, 6),),
    ),
}


if keras.backend.backend() == "tensorflow":
    CASES["two optimizers"] = Case(
        list,
        two_optimizers,
        lambda folder: [SlowsDown()],
        model=lambda layers: TwoOptimizers(),
        epochs=3,
        moments=(("batch", 1, 6),),
        reuse=False,
    )


def run(case, folder, moment=None, model=None):
    """Execute a part of a run, until a moment. Return the model, its variables at the first batch and its history."""
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy(case.policy)
    if model is None:
        model = case.model([keras.Input((6, 6, 1)), *case.layers()])
        model.compile(**case.compile())
        if isinstance(model.optimizer, Muon):
            model.optimizer.build_for(model)
    start = {}
    # Before other callbacks change the learning rate.
    recorder = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: start.update(start or values(model)))
    folder.mkdir(exist_ok=True)
    resume = ExactResume(folder / "checkpoints", every=case.every, pause_on=signal.SIGTERM)
    callbacks = [recorder, *case.callbacks(folder), resume, kill_at(moment)]
    for callback in callbacks:
        if hasattr(callback, "resume"):
            callback.resume = resume
    history = model.fit(case.batches(), epochs=case.epochs, verbose=0, callbacks=callbacks, **case.fit)
    return model, start, history, resume.resumed_at


def variables(model):
    several = {"model": model.variables, "optimizer": model.optimizer.variables, "metrics": model.metrics_variables}
    if isinstance(model, TwoOptimizers):
        several |= {str(index): each.variables for index, each in enumerate(model.own_optimizers())}
    return several


def values(model):
    return {
        name: [np.array(keras.ops.convert_to_numpy(each)) for each in several]
        for name, several in variables(model).items()
    }


def set_values(model, found):
    """Assign the result of `values`, or ones if it is None, to all variables of a model that is not None."""
    for name, several in ({} if model is None else variables(model)).items():
        for index, each in enumerate(several):
            each.assign(np.ones(each.shape) if found is None else found[name][index])


def assert_same(one, other):
    (expected, history), (values, other_history) = one, other
    for name, found in expected.items():
        for ours, theirs in zip(found, values[name], strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours.tobytes(), theirs.tobytes(), err_msg=name)
    assert history.history == other_history.history
    assert history.epoch == other_history.epoch


@pytest.mark.parametrize("name", CASES)
def test_stopped_and_started_again(name, tmp_path):
    case = CASES[name]
    model, start, history, _ = run(case, tmp_path / "whole")
    whole = values(model), history
    reused = model if case.reuse else None
    for number, moment in enumerate(case.moments):
        # The first part begins like the uninterrupted run. Later ones restore all values.
        set_values(reused, None if number else start)
        with pytest.raises(Killed):
            run(case, tmp_path / "stopped", moment, reused)
    set_values(reused, None)
    last, _, again, resumed_at = run(case, tmp_path / "stopped", model=reused)
    assert resumed_at % STEPS, "the last part should begin in the middle of an epoch"
    assert_same(whole, (values(last), again))
    for path in sorted((tmp_path / "whole").glob("*.*")):
        if path.suffix == ".csv":
            assert path.read_bytes() == (tmp_path / "stopped" / path.name).read_bytes()
        else:
            assert (tmp_path / "stopped" / path.name).exists()
    if (tmp_path / "whole" / "events").exists():
        shown = shown_scalars(tmp_path / "whole" / "events")
        steps = [step for *tag, step in shown if tag == ["train", "batch_loss"]]
        assert steps == list(range(1, case.epochs * STEPS + 1))
        assert shown_scalars(tmp_path / "stopped" / "events") == shown
