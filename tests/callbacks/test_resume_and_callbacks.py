"""Effects of callbacks on an exact resume, and of a resume on callbacks, log files and the model."""

import keras

from idmatters_tf.callbacks import ArrayBatches, ExactResume
from tests.callbacks.test_exact_resume import BATCH, STEPS, data, dense, with_loss


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
