"""Effects of callbacks on an exact resume, and of a resume on callbacks, log files and the model."""

import keras
import pytest

from idmatters_tf.callbacks import ArrayBatches, ExactResume
from tests.callbacks.test_exact_resume import (
    BATCH,
    STEPS,
    Case,
    Killed,
    data,
    dense,
    run,
    with_loss,
)


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
    # Before and after the row is written again.
    for moment in (("batch", 1, 4), ("batch", 2, 1)):
        with pytest.raises(Killed):
            run(case, tmp_path / "stopped", lambda *now, moment=moment: now == moment)
    _, _, _, resumed_at = run(case, tmp_path / "stopped")
    assert resumed_at == STEPS + 2
    header, first, second, third = expected.splitlines(keepends=True)
    assert path.read_text() == "".join([header, first, second, other, third])


def test_nothing_else_changes(tmp_path):
    """The history equals that of a `fit` without the callback on the same batches."""
    batches = ArrayBatches(*data(), batch_size=BATCH, seed=3)
    histories = []
    for resumes in (True, False):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((6, 6, 1)), *dense(keras.layers.Dropout(0.5))])
        model.compile(**with_loss(keras.optimizers.Adam(0.01), metrics=["accuracy"]), run_eagerly=True)
        if resumes:
            history = model.fit(batches, epochs=2, callbacks=[ExactResume(tmp_path, every=3)], verbose=0)
            histories.append(history.history)
        else:
            found = []
            for epoch in range(2):
                steps = [batches.arrays(epoch * STEPS + step) for step in range(STEPS)]
                found.append(
                    model.fit((step for step in steps), epochs=1, steps_per_epoch=STEPS, verbose=0, shuffle=False)
                )
            histories.append({name: [each.history[name][0] for each in found] for name in histories[0]})
    assert histories[0] == histories[1]
