"""Compare `find_rate` with two range tests and rules of thumb on eight small tasks.

    python benchmarks/rate_finders.py --out runs/rates

A range test is one training of 100 steps whose rate increases from 1e-6 to 10, up to four times the lowest smoothed
loss. It takes a tenth of the rate of the lowest smoothed loss, or the rate of its steepest decrease after 10 steps and
before the last one, as Lightning does. The rules of thumb are the defaults of Keras. Each rate is judged by trainings
of 200 steps with two other orders of the batches, against 49 rates from 1e-5 to 10: by its ratio to the best of them,
and by the excess of its loss over the lowest one, in % of the decrease of the loss.
"""

import argparse
import csv
import pathlib
from typing import Any

import keras
import numpy as np
from keras import layers

from idmatters_tf import find_rate
from idmatters_tf._evaluation.batches import TrainingBatches
from idmatters_tf.data import shapes
from idmatters_tf.depth.trials import Trials

STEPS, SMOOTHING = 100, 0.9
GRID = np.geomspace(1e-5, 10, 49)
SEEDS = (1, 2)
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizers = keras.optimizers
rng = np.random.default_rng(0)
METHODS = ("find_rate", "lowest / 10", "steepest", "default")


def dense(*parts: Any) -> keras.Model:
    """Return a model on vectors."""
    return keras.Sequential([keras.Input((20,)), *parts, layers.Dense(1)])


def images(*parts: Any) -> keras.Model:
    """Return a classifier of images."""
    return keras.Sequential([keras.Input((32, 32, 3)), *parts, layers.GlobalAveragePooling2D(), layers.Dense(10)])


def tokens(*parts: Any) -> keras.Model:
    """Return a model of sequences of bytes."""
    return keras.Sequential([keras.Input((16,), dtype="int32"), layers.Embedding(64, 32), *parts, layers.Dense(64)])


def residual(depth: int) -> keras.Model:
    """Return residual blocks without normalization on vectors."""
    inputs = keras.Input((20,))
    hidden = layers.Dense(32)(inputs)
    for _ in range(depth):
        hidden = layers.Add()([hidden, layers.Dense(32)(layers.Dense(64, "relu")(hidden))])
    return keras.Model(inputs, layers.Dense(1)(hidden))


def momentum(rate: float) -> Any:
    """Return SGD with momentum."""
    return optimizers.SGD(rate, 0.9)


def cases() -> dict[str, tuple[Any, Any, Any, Any]]:
    """Return model, optimizer, data and loss of each case."""
    x = rng.normal(size=(2000, 20)).astype("float32")
    vectors = (x, x[:, :1] * x[:, 1:2])
    loaded = shapes.load(1000, 10)
    pictures = (loaded.train_images.astype("float32") / 255, loaded.train_labels)
    walks = (np.cumsum(rng.integers(0, 3, (1000, 17)), axis=1) % 64).astype("int32")
    text = (walks[:, :-1], walks[:, 1:])
    conv: Any = {"padding": "same", "activation": "relu"}
    return {
        "dense, Adam": (lambda: dense(layers.Dense(64, "relu")), optimizers.Adam, vectors, "mse"),
        "dense, momentum": (lambda: dense(layers.Dense(64, "relu")), momentum, vectors, "mse"),
        "dense of depth 8, Adam": (
            lambda: dense(*(layers.Dense(32, "relu") for _ in range(8))),
            optimizers.Adam,
            vectors,
            "mse",
        ),
        "residual, momentum": (lambda: residual(8), momentum, vectors, "mse"),
        "convolutions, Adam": (
            lambda: images(layers.Conv2D(16, 4, 4, **conv), layers.Conv2D(32, 3, **conv)),
            optimizers.Adam,
            pictures,
            CROSS_ENTROPY,
        ),
        "batch normalization, momentum": (
            lambda: images(layers.Conv2D(16, 4, 4), layers.BatchNormalization(), layers.ReLU(), layers.Conv2D(32, 3)),
            momentum,
            pictures,
            CROSS_ENTROPY,
        ),
        "GRU, Adam": (lambda: tokens(layers.GRU(32, return_sequences=True)), optimizers.Adam, text, CROSS_ENTROPY),
        "causal convolutions, AdamW": (
            lambda: tokens(layers.Conv1D(64, 4, padding="causal", activation="gelu"), layers.LayerNormalization()),
            optimizers.AdamW,
            text,
            CROSS_ENTROPY,
        ),
    }


def range_tests(model: keras.Model, optimizer: Any, data: Any, loss: Any) -> tuple[float, float]:
    """Return a tenth of the rate of the lowest smoothed loss, and the rate of its steepest decrease."""
    rates = np.geomspace(1e-6, 10, STEPS)
    model.compile(optimizer(float(rates[0])), loss)
    compiled: Any = model.optimizer
    smooth, losses = 0.0, []
    for step, (rate, batch) in enumerate(zip(rates, TrainingBatches(data, 32)(0), strict=False)):
        compiled.learning_rate = rate
        smooth = SMOOTHING * smooth + (1 - SMOOTHING) * float(np.asarray(model.train_on_batch(*batch)))
        losses.append(smooth / (1 - SMOOTHING ** (step + 1)))
        if not losses[-1] < 4 * min(losses):
            losses.pop()
            break
    steepest = 10 + int(np.argmin(np.gradient(losses[10:-1])))
    return float(rates[int(np.argmin(losses))]) / 10, float(rates[steepest])


def judge(trials: Trials, start: Any, rates: Any) -> tuple[np.ndarray, float]:
    """Return the mean losses after training at rates, infinite for unstable ones, and the loss without training."""
    before = [trials.losses_before(start, seed) for seed in SEEDS]
    losses = []
    for rate in rates:
        windows = [trials.train(start, float(rate), seed, first) for seed, first in zip(SEEDS, before, strict=True)]
        losses.append(np.mean([found[-1] if len(found) == trials.windows else np.inf for found in windows]))
    return np.array(losses), float(np.mean([windows[-1] for windows in before]))


def main() -> None:
    """Write the rate of each method, its ratio to the best of the grid, and its excess of the loss in %."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/rates"), help="output folder")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    lines = []
    for name, (make, optimizer, data, loss) in cases().items():
        keras.utils.set_random_seed(0)
        model = make()
        start = [keras.ops.convert_to_numpy(variable) for variable in model.variables]
        curve = find_rate(model, data, loss, optimizer)
        default = 0.01 if optimizer is momentum else 0.001
        rates = [curve.best, *range_tests(model, optimizer, data, loss), default]
        with Trials(model, optimizer, data, loss, 200, 32) as trials:
            losses, first = judge(trials, start, [*GRID, *rates])
        best = int(np.argmin(losses[: len(GRID)]))
        excess = 100 * (losses[len(GRID) :] - losses[best]) / (first - losses[best])
        for method, rate, value in zip(METHODS, rates, excess, strict=True):
            ratio = rate / GRID[best]
            print(f"{name}, {method}: rate {rate:.2g}, {ratio:.2g} of the best, excess {value:.1f} %", flush=True)
            line = {"model": name, "method": method, "best": GRID[best], "rate": rate, "ratio": ratio, "excess": value}
            lines.append(line | {"tried": len(curve.rates)})
    with (out / "rates.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)


if __name__ == "__main__":
    main()
