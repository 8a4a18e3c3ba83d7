"""Effects of callbacks on an exact resume, and of a resume on callbacks, log files and the model."""

import os

import keras
import pytest

from idmatters_tf.callbacks import ArrayBatches, ExactResume
from idmatters_tf.callbacks._callback_states import CallbackState
from tests.callbacks.test_exact_resume import (
    BATCH,
    STEPS,
    Case,
    Killed,
    assert_same,
    data,
    dense,
    run,
    values,
    with_loss,
)
from tests.support.killed_fit import shown_scalars


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
