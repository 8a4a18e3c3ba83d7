"""Exact resume of a `fit` that is stopped at any point, compared with an uninterrupted one.

The parts of a run use the same compiled model, whose variables are overwritten in between:
`test_killed_fit` kills processes. The tests run on the backend of KERAS_BACKEND. `test_devices` runs them on JAX.
"""

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from idmatters_tf.callbacks import ArrayBatches, ExactResume, FunctionBatches
from idmatters_tf.callbacks._callback_states import CallbackState
from tests.support.adversarial import Adversarial
from tests.support.killed_fit import shown_scalars

EXAMPLES, BATCH = 44, 6
STEPS = 8  # in an epoch, the last one of 2 examples


class Killed(Exception):
    """Exception in place of SIGKILL, which would require a separate process."""


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


class Counter(keras.callbacks.Callback):
    """Callback with plain data and a variable that affect the training."""

    def __init__(self):
        super().__init__()
        self.losses, self.best = [], {"loss": np.float32(9)}
        self.scale = keras.Variable(0.05, trainable=False)

    def on_train_batch_end(self, batch, logs=None):
        self.scale.assign(0.99 * self.scale)
        self.losses.append((batch, logs["loss"]))
        self.best["loss"] = min(self.best["loss"], np.float32(logs["loss"]))

    def on_epoch_begin(self, epoch, logs=None):
        if len(self.losses) > 2 * STEPS:
            self.model.optimizer.learning_rate.assign(self.scale * self.losses[2 * STEPS][1])


class Noise(keras.callbacks.Callback):
    """Callback with `get_state` for its generator, which also draws from NumPy's global generator."""

    def __init__(self):
        super().__init__()
        self.rng = np.random.default_rng(1)

    def get_state(self):
        return self.rng.bit_generator.state

    def set_state(self, state):
        self.rng.bit_generator.state = state

    def on_epoch_end(self, epoch, logs=None):
        noise = self.rng.normal() + np.random.normal()  # noqa: NPY002
        self.model.optimizer.learning_rate.assign(abs(0.01 + 0.001 * noise))


class OwnStep(keras.Sequential):
    """A model with a custom metric and loss."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.largest = keras.metrics.Mean(name="largest")

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        self.largest.update_state(keras.ops.max(y_pred))
        return super().compute_loss(x, y, y_pred, sample_weight, training) + 0.01 * keras.ops.mean(y_pred**2)


def two_optimizers(**options):
    critic = keras.optimizers.Adam(0.02, use_ema=True)
    generator = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.01), initial_scale=1, dynamic_growth_steps=7
    )
    return {"critic_optimizer": critic, "generator_optimizer": generator, **options}


class SlowsDown(keras.callbacks.Callback):
    """Callback with a schedule for an optimizer that is not compiled."""

    def on_epoch_begin(self, epoch, logs=None):
        rate = self.model.critic_optimizer.learning_rate
        rate.assign(0.9 * keras.ops.convert_to_tensor(rate))


class Called(Adversarial):
    """Model with two optimizers. Keras builds the compiled one, which is not used."""

    def call(self, x):
        return self.critic(x)


def several_optimizers(model=Adversarial, **options):
    return Case(
        list,
        lambda: two_optimizers(**options),
        lambda folder: [SlowsDown()],
        model=lambda layers: model(),
        epochs=3,
        moments=(("batch", 1, 6),),
        reuse=False,
    )


def random_batch(step):
    rng = np.random.default_rng((7, step))
    x = rng.normal(size=(BATCH, 6, 6, 1)).astype("float32")
    return x, (x.mean((1, 2, 3)) > 0).astype("int32"), rng.random(BATCH).astype("float32")


def batch_that_breaks(step):
    """Return a batch whose loss is infinite in the middle of the second epoch."""
    x, y, weight = random_batch(step)
    return (np.inf * x if step == STEPS + 5 else x), y, weight


GRAPHS = {
    "two optimizers in a graph": several_optimizers(),
    "two optimizers, compiled": several_optimizers(jit_compile=True),
}

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
        moments=(("validated", 1, None), ("epoch ends", 1, None), ("epoch begins", 2, None), ("batch", 2, 4)),
    ),
    "several steps per execution, loss scale, class weights": Case(
        lambda: dense(keras.layers.Dropout(0.5)),
        lambda: with_loss(
            keras.optimizers.LossScaleOptimizer(
                keras.optimizers.SGD(0.05, momentum=0.9, gradient_accumulation_steps=3), dynamic_growth_steps=3
            ),
            steps_per_execution=3,
        ),
        lambda folder: [Noise()],
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
            keras.callbacks.CSVLogger(folder / "appended.csv", append=True),
            keras.callbacks.TensorBoard(folder / "events", write_graph=False, update_freq=1),
            Counter(),
        ],
        batches=lambda: FunctionBatches(random_batch, STEPS),
        fit={"validation_data": data()},
        # From the end of an epoch, when the model contains the averages, and then from the middle of an epoch.
        moments=(("batch", 3, 1), ("batch", 3, 4)),
    ),
    "bfloat16 weights, compiled, a callback with methods for its state": Case(
        lambda: [keras.layers.Flatten(), keras.layers.Dense(4, "tanh"), keras.layers.Dense(2)],
        lambda: with_loss(keras.optimizers.Adam(0.01), jit_compile=True),
        lambda folder: [Noise()],
        policy="bfloat16",
        every=5,
        epochs=3,
        moments=(("batch", 1, 6),),
    ),
    "terminated on NaN": Case(
        dense,
        lambda: with_loss("adam", metrics=["accuracy"], run_eagerly=True),
        lambda folder: [keras.callbacks.TerminateOnNaN()],
        batches=lambda: FunctionBatches(batch_that_breaks, STEPS),
        moments=(("batch", 1, 2),),
    ),
    "two optimizers, eagerly": several_optimizers(Called, run_eagerly=True),
    **({} if keras.backend.backend() == "jax" else GRAPHS),
}


def run(case, folder, kill=lambda event, epoch, batch: False, model=None):
    """Execute the part of a run in one process. Return the model, its variables at the first batch and its history."""
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy(case.policy)
    if model is None:
        model = case.model([keras.Input((6, 6, 1)), *case.layers()])
        model.compile(**case.compile())
    at, start = {"epoch": 0}, {}

    def happens(event, batch=None):
        if kill(event, at["epoch"], batch):
            raise Killed

    # Before other callbacks change the learning rate.
    recorder = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: start.update(start or values(model)))
    killer = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: at.update(epoch=epoch) or happens("epoch begins"),
        on_epoch_end=lambda epoch, logs: happens("epoch ends"),
        on_train_batch_end=lambda batch, logs: happens("batch", batch),
        on_test_end=lambda logs: happens("validated"),
    )
    folder.mkdir(exist_ok=True)
    resume = ExactResume(folder / "checkpoints", every=case.every)
    callbacks = [recorder, *case.callbacks(folder), resume, killer]
    history = model.fit(case.batches(), epochs=case.epochs, verbose=0, callbacks=callbacks, **case.fit)
    return model, start, history, resume.resumed_at


def variables(model):
    several = {"model": model.variables, "optimizer": model.optimizer.variables, "metrics": model.metrics_variables}
    if isinstance(model, Adversarial):
        several |= {str(place): each.variables for place, each in enumerate(model.own_optimizers())}
    return several


def values(model):
    return {
        name: [np.array(keras.ops.convert_to_numpy(each)) for each in several]
        for name, several in variables(model).items()
    }


def set_values(model, found):
    """Assign the result of `values`, or ones if it is None, to all variables of a model that is not None."""
    for name, several in ({} if model is None else variables(model)).items():
        for place, each in enumerate(several):
            each.assign(np.ones(each.shape) if found is None else found[name][place])


def assert_same(one, other):
    (expected, history), (values, other_history) = one, other
    for name, found in expected.items():
        for ours, theirs in zip(found, values[name], strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours.tobytes(), theirs.tobytes(), err_msg=name)
    # Unlike ==, this treats NaN as equal to NaN.
    np.testing.assert_equal(history.history, other_history.history)
    assert history.epoch == other_history.epoch


# Cases with eager steps or XLA.
SLOW = ("two optimizers, compiled", "two optimizers, eagerly", *(name for name in CASES if name.startswith("bfloat16")))


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in CASES])
def test_stopped_and_started_again(name, tmp_path):
    case = CASES[name]
    model, start, history, _ = run(case, tmp_path / "whole")
    whole = values(model), history
    reused = model if case.reuse else None
    for number, moment in enumerate(case.moments):
        # The first part begins like the uninterrupted run. Later ones restore all values.
        set_values(reused, None if number else start)
        with pytest.raises(Killed):
            run(case, tmp_path / "stopped", lambda *now, moment=moment: now == moment, reused)
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
    if "NaN" in name:
        assert len(history.epoch) == 2
        # A finished run ends at once when it is started again.
        last, _, history, _ = run(case, tmp_path / "stopped")
        assert_same(whole, (values(last), history))


class Freezes(keras.callbacks.Callback):
    """Callback that freezes the first layer with weights in an epoch."""

    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            self.model.layers[1].trainable = False


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="on JAX, Keras fails if a callback freezes a layer")
@pytest.mark.parametrize(("epoch", "run_eagerly"), [(1, True), (0, False), (1, False), (2, False)])
def test_layers_that_a_callback_freezes(epoch, run_eagerly, tmp_path):
    """In a graph, only layers frozen before the first batch are not trained."""
    case = Case(
        dense,
        lambda: with_loss(keras.optimizers.SGD(0.05), run_eagerly=run_eagerly),
        lambda folder: [Freezes(epoch)],
        epochs=3,
        every=10,
    )
    whole, _, history, _ = run(case, tmp_path / "whole")
    with pytest.raises(Killed):
        run(case, tmp_path / "stopped", lambda *now: now == ("batch", 2, 5))
    resumed, _, again, resumed_at = run(case, tmp_path / "stopped")
    assert resumed_at == 20
    assert_same((values(whole), history), (values(resumed), again))
    assert [layer.trainable for layer in resumed.layers] == [layer.trainable for layer in whole.layers]


def test_rows_of_other_runs_are_kept(tmp_path):
    """Two runs append to one file. The rows of this run after the checkpoint are written once."""
    path, other = tmp_path / "log.csv", "0,0.5,NA\n1,0.25,NA\n"
    case = Case(
        dense,
        lambda: with_loss("sgd", run_eagerly=True),
        lambda folder: [keras.callbacks.CSVLogger(path, append=True)],
        epochs=3,
        every=STEPS + 2,
    )
    run(case, tmp_path / "whole")
    expected = path.read_text()
    path.unlink()
    with pytest.raises(Killed):
        run(case, tmp_path / "stopped", lambda *now: now == ("batch", 2, 1))
    with path.open("a") as file:
        file.write(other)
    _, _, _, resumed_at = run(case, tmp_path / "stopped")
    assert resumed_at == STEPS + 2
    header, first, *rows = expected.splitlines(keepends=True)
    assert path.read_text() == "".join([header, first, other, *rows])


def test_a_row_that_is_not_written_again_before_the_next_checkpoint(tmp_path):
    logger = keras.callbacks.CSVLogger(tmp_path / "log.csv", append=True)
    logger.on_train_begin()
    logger.on_epoch_end(0, {"loss": 1.0})
    state = CallbackState(logger, "CSVLogger")
    saved = state.get()
    expected = []
    for losses in ([0.5, 0.25], [0.5], [0.25]):
        logger.on_train_begin()
        state = CallbackState(logger, "CSVLogger")
        state.set(saved)
        for loss in losses:
            logger.on_epoch_end(int(1 / loss) // 2, {"loss": loss})
        if not expected:
            expected = (tmp_path / "log.csv").read_text()
        else:
            # A checkpoint after the last row.
            saved = state.get()
    assert (tmp_path / "log.csv").read_text() == expected


def test_another_current_folder_during_training(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    changes = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: os.chdir(tmp_path / "elsewhere"))
    model = keras.Sequential([keras.Input((6, 6, 1)), *dense()])
    model.compile(**with_loss("sgd"), run_eagerly=True)
    callbacks = [ExactResume("run", every=3), keras.callbacks.CSVLogger("log.csv"), changes]
    model.fit(ArrayBatches(*data(), batch_size=BATCH), verbose=0, callbacks=callbacks)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "log.csv", "run"]
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_failed_resume_does_not_change_the_model(tmp_path):
    """A later `fit` without the callback begins at its own first epoch."""

    class Fails(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise Killed

    model = keras.Sequential([keras.Input((6, 6, 1)), *dense()])
    model.compile(**with_loss("sgd"), run_eagerly=True)
    batches = ArrayBatches(*data(), batch_size=BATCH)
    model.fit(batches, epochs=2, verbose=0, callbacks=[ExactResume(tmp_path)])
    with pytest.raises(Killed):
        model.fit(batches, epochs=3, verbose=0, callbacks=[ExactResume(tmp_path), Fails()])
    assert model.fit(batches, epochs=1, verbose=0).epoch == [0]


def test_training_data_in_a_callback_of_a_resumed_epoch(tmp_path):
    """The callback receives the batches of a whole epoch."""
    counts = []

    def evaluate(kill=None):
        batches = ArrayBatches(*data(), batch_size=BATCH)

        def on_batch(batch, logs):
            counts.append(len([batches[index] for index in range(batches.num_batches)]))
            if batch == kill:
                raise Killed

        model = keras.Sequential([keras.Input((6, 6, 1)), *dense()])
        model.compile(**with_loss("sgd"), run_eagerly=True)
        callbacks = [ExactResume(tmp_path, every=3), keras.callbacks.LambdaCallback(on_train_batch_end=on_batch)]
        model.fit(batches, verbose=0, callbacks=callbacks)

    with pytest.raises(Killed):
        evaluate(kill=4)
    evaluate()
    assert counts == [STEPS] * (5 + STEPS - 3)


def test_points_before_a_checkpoint_are_on_disk(tmp_path):
    """Without the flush, a kill before the next batch would lose them."""
    board = keras.callbacks.TensorBoard(tmp_path, write_graph=False, update_freq=1)
    board.set_model(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
    state = CallbackState(board, "TensorBoard")
    board.on_train_begin()
    board.on_train_batch_begin(0)
    board.on_train_batch_end(0, {"loss": 0.5})
    state.get()
    assert shown_scalars(tmp_path) == {("train", "batch_loss", 1): 0.5}
    board.on_train_end()


def test_nothing_else_changes(tmp_path):
    """The history equals that of a `fit` without the callback on the same batches."""
    batches = ArrayBatches(*data(), batch_size=BATCH, seed=3)
    histories = []
    for resumes in (True, False):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((6, 6, 1)), *dense(keras.layers.Dropout(0.5))])
        model.compile(**with_loss(keras.optimizers.Adam(0.01), metrics=["accuracy"]), run_eagerly=True)
        if resumes:
            found = model.fit(batches, epochs=2, callbacks=[ExactResume(tmp_path, every=3)], verbose=0)
            histories.append(found.history)
        else:
            found = []
            for epoch in range(2):
                steps = [batches.arrays(epoch * STEPS + step) for step in range(STEPS)]
                found.append(
                    model.fit((step for step in steps), epochs=1, steps_per_epoch=STEPS, verbose=0, shuffle=False)
                )
            histories.append({name: [each.history[name][0] for each in found] for name in histories[0]})
    assert histories[0] == histories[1]


def test_the_progress_bar_of_a_resumed_epoch(tmp_path):
    """The bar continues at the batch of the checkpoint, with the time per step of the current process."""

    def shown(kill=None):
        logger, found = keras.callbacks.ProgbarLogger(), []

        def on_step(batch, logs):
            two_seconds_later = logger.progbar._start + 2
            found.append((logger.seen, logger.progbar._estimate_step_duration(logger.seen, two_seconds_later)))
            if batch == kill:
                raise Killed

        model = keras.Sequential([keras.Input((6, 6, 1)), *dense()])
        model.compile(**with_loss(keras.optimizers.SGD(0.01)), run_eagerly=True)
        callbacks = [logger, keras.callbacks.LambdaCallback(on_train_batch_end=on_step), ExactResume(tmp_path, every=5)]
        model.fit(ArrayBatches(*data(), batch_size=BATCH), verbose=0, callbacks=callbacks)
        return found

    with pytest.raises(Killed):
        shown(kill=5)
    resumed = shown()
    assert [step for step, _ in resumed] == [6, 7, 8]
    assert resumed[0][1] == pytest.approx(2)
