"""Text, model and training loop of the examples on language: bytes of Python's standard library and a small GPT."""

import logging
import pathlib
import sys
import sysconfig
import time

import keras
import keras_hub
import numpy as np

# Bytes in a sequence.
LENGTH = 128
PACKAGES = ("asyncio", "concurrent", "email", "http", "importlib", "json", "logging", "unittest", "urllib", "xml")

# TensorFlow warns when several models are compiled.
logging.getLogger("tensorflow").setLevel(logging.ERROR)


def load(sequences):
    """Return the training text as an array of bytes, and sequences of other files, every tenth one, for validation."""
    library = pathlib.Path(sysconfig.get_paths()["stdlib"])
    files = [*library.glob("*.py"), *(path for name in PACKAGES for path in (library / name).rglob("*.py"))]
    texts = [path.read_bytes() for path in sorted(files)]
    held_out = np.frombuffer(b"\n".join(texts[::10]), np.uint8)
    del texts[::10]
    starts = np.linspace(0, len(held_out) - LENGTH - 1, sequences).astype(int)
    return np.frombuffer(b"\n".join(texts), np.uint8), cut(held_out, starts)


def draw_batch(text, size, seed, step):
    """Return the training batch of a step: sequences at random positions, a function of (seed, step)."""
    return cut(text, np.random.default_rng((seed, step)).integers(len(text) - LENGTH, size=size))


def cut(text, starts):
    """Return (inputs, targets) of the sequences at the given positions. The target of a byte is the next byte."""
    windows = text[np.asarray(starts)[:, None] + np.arange(LENGTH + 1)].astype("int32")
    targets = windows[:, 1:]
    return {"token_ids": windows[:, :-1], "padding_mask": np.ones_like(targets)}, targets


def build_gpt(layers, width, optimizer, **options):
    """Return a compiled GPT-2 with a vocabulary of bytes: a million weights with 5 layers of width 128."""
    sizes = {"num_layers": layers, "num_heads": 4, "hidden_dim": width, "intermediate_dim": 4 * width}
    backbone = keras_hub.models.GPT2Backbone(256, **sizes, dropout=0.0, max_sequence_length=LENGTH)
    model = keras_hub.models.GPT2CausalLM(backbone)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, weighted_metrics=None, **options)
    return model


@keras.saving.register_keras_serializable(package="examples")
class WarmUpAndDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up in the first tenth of the steps, then linear decay to a tenth of the rate."""

    def __init__(self, rate, steps):
        self.rate, self.steps = rate, steps

    def __call__(self, step):
        done = (keras.ops.cast(step, "float32") + 1) / self.steps
        return self.rate * keras.ops.minimum(10 * done, keras.ops.maximum(1.1 - done, 0.1))

    def get_config(self):
        return {"rate": self.rate, "steps": self.steps}


class Record(keras.callbacks.Callback):
    """Print the losses, and add the seconds to them: steps times their median duration, without compilation."""

    def __init__(self, title):
        super().__init__()
        self.title = title

    def on_epoch_begin(self, epoch, logs=None):
        self.durations = []

    def on_train_batch_begin(self, batch, logs=None):
        self.began = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self.durations.append(time.perf_counter() - self.began)

    def on_epoch_end(self, epoch, logs=None):
        logs["seconds"] = self.params["steps"] * float(np.median(self.durations))
        losses = f"training loss {logs['loss']:.3f}, validation loss {logs['val_loss']:.3f}"
        print(f"{self.title}, {epoch + 1} of {self.params['epochs']}: {losses}", file=sys.stderr, flush=True)


def fit(model, batches, steps, every, validation, title, callbacks=()):
    """Train a model. Return rows (step, seconds, training loss, validation loss), one after each `every` steps."""
    # KerasHub's own `fit` requires a tf.data or Grain dataset, to which it adds the preprocessor.
    options = {"validation_data": validation, "callbacks": [Record(title), *callbacks], "shuffle": False, "verbose": 0}
    history = keras.Model.fit(model, batches, steps_per_epoch=every, epochs=steps // every, **options).history
    counts = every * np.arange(1, 1 + steps // every)
    return np.stack([counts, np.cumsum(history["seconds"]), history["loss"], history["val_loss"]], axis=1)
