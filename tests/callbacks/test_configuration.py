"""Warnings of a finished `fit`, and errors for another configuration."""

import functools
import warnings

import keras
import numpy as np
import pytest

from idmatters_tf.callbacks import ArrayBatches, ExactResume, load_weights
from idmatters_tf.callbacks._configuration import describe_configuration
from idmatters_tf.callbacks._reached import Reached
from idmatters_tf.checkpointing import OtherRun

X = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
Y = X.sum(1, keepdims=True)


class Subclassed(keras.Model):
    """A model without `get_config`, with an own `compile`, as tasks of KerasHub have."""

    def __init__(self, activation, extra=None):
        super().__init__()
        self.layers_in_a_dict = {"hidden": [keras.layers.Dense(4, activation)]}
        self.last = keras.layers.Dense(1)

    def compile(self, *args, **options):
        super().compile(*args, **options)

    def call(self, x):
        return self.last(self.layers_in_a_dict["hidden"][0](x))


def functional(activation="relu", skip=0, trainable=True):
    x = keras.Input((3,))
    first = keras.layers.Dense(3, activation, trainable=trainable)(x)
    second = keras.layers.Dense(3)(first)
    return keras.Model(x, keras.layers.Dense(1)(second + (x, first)[skip]))


def sequential():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(1)])


class Slower(keras.callbacks.Callback):
    """Callback that changes the learning rate."""

    def on_epoch_begin(self, epoch, logs=None):
        rate = self.model.optimizer.learning_rate
        rate.assign(0.5 * keras.ops.convert_to_tensor(rate))


def fit(folder, model, *callbacks, epochs=2, initial_epoch=0):
    batches = ArrayBatches(X, Y, batch_size=2, seed=0)
    callbacks = [ExactResume(folder, every=3, ignore="LambdaCallback"), *callbacks]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", "The object being serialized includes a `lambda`")
        return model.fit(batches, epochs=epochs, initial_epoch=initial_epoch, callbacks=callbacks, verbose=0)


def compiled(model=sequential):
    keras.utils.set_random_seed(0)
    made = model()
    made.compile(keras.optimizers.SGD(), "mse", run_eagerly=True)
    return made


def test_another_identity_is_refused(tmp_path):
    def fit_as(identity):
        callbacks = [ExactResume(tmp_path, every=3, identity=identity)]
        compiled().fit(ArrayBatches(X, Y, batch_size=2, seed=0), epochs=1, callbacks=callbacks, verbose=0)

    fit_as({"rate": 0.1, "sizes": (1, 2), "data": "abc"})
    with pytest.warns(UserWarning, match="is finished"):
        fit_as({"data": "abc", "sizes": [1, 2], "rate": 0.1})
    with pytest.raises(
        OtherRun, match="another run: rate was 0.1, now 0.2; data was 'abc', now None; new was None, now 5. Start"
    ) as raised:
        fit_as({"rate": 0.2, "sizes": [1, 2], "new": 5})
    assert raised.value.exit_code == 2
    model = compiled()
    assert load_weights(model, tmp_path, {"rate": 0.1, "sizes": [1, 2], "data": "abc"}) == 4
    with pytest.raises(OtherRun, match="sizes was .1, 2., now .1.. Use the run"):
        load_weights(model, tmp_path, {"rate": 0.1, "sizes": [1], "data": "abc"})


def test_warning_of_a_finished_run(tmp_path):
    first = fit(tmp_path, compiled())
    model, batches = compiled(), ArrayBatches(X, Y, batch_size=2, seed=0)
    with pytest.warns(
        UserWarning, match=r'not trained further: it ended in epoch 2, and .* epochs=2.*loop f"runs/seed-\{seed\}"\.'
    ):
        again = model.fit(batches, epochs=2, callbacks=[ExactResume(tmp_path, every=3)], verbose=0)
    assert again.history == first.history
    # No warning if training continues.
    assert len(fit(tmp_path, compiled(), epochs=4).epoch) == 4


def test_more_epochs_after_changes_by_callbacks(tmp_path):
    make = functools.partial(compiled, lambda: Subclassed(lambda x: x**2))
    whole = fit(tmp_path / "whole", make(), Slower(), epochs=4)
    started = make()
    fit(tmp_path / "parts", started, Slower(), epochs=2)
    # The same objects, whose rate is a quarter of the first one.
    fit(tmp_path / "parts", started, Slower(), epochs=3)
    # The same script in another process.
    last = fit(tmp_path / "parts", make(), Slower(), epochs=4)
    assert last.history == whole.history


def test_learning_rate_after_an_exception(tmp_path):
    batches = iter(range(100))

    def breaks(batch, logs):
        if next(batches) == 4:
            raise KeyboardInterrupt

    def interrupts(batch, logs):
        if batch == 3:
            raise KeyboardInterrupt

    model = compiled()
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, model, Slower(), keras.callbacks.LambdaCallback(on_train_batch_end=breaks))
    # The checkpoint is that of the first epoch, the optimizer's rate that of the second one, or any other.
    model.optimizer.learning_rate = 0.3
    fit(tmp_path, model, Slower())
    assert float(model.optimizer.learning_rate) == pytest.approx(0.0025)
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "anew", model, keras.callbacks.LambdaCallback(on_train_batch_end=interrupts))
    # A different optimizer is still compared.
    model.compile(keras.optimizers.SGD(0.2), "mse")
    with pytest.raises(ValueError, match="learning_rate was .*, now 0.2"):
        fit(tmp_path / "anew", model)


def test_names_and_seeds_are_not_compared():
    assert describe_configuration(compiled(functional), {}) == describe_configuration(compiled(functional), {})
    layers = [keras.layers.Dropout(0.5, seed=seed) for seed in (1, 2)]
    one, other = (describe_configuration(keras.Sequential([keras.Input((3,)), layer]), {}) for layer in layers)
    assert one == other


class Counter(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.count = 0


def test_a_new_worker_may_lack_callbacks_of_the_chief():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    counter = Counter()
    chief, other = Reached(model, [counter]), Reached(model)
    counter.count = 3
    saved = chief.get()
    with pytest.raises(ValueError, match="The checkpoint contains Counter, which does not exist"):
        other.set(saved)
    other.set(saved, is_own=False)
