"""Claim: an observed `fit` takes at most twice the time of the same `fit`, also if a step does little but read weights.

    python benchmarks/doctor_cost.py [--steps N]

The records of the doctor at level 1 (checksums before each step), compared with `fit` without them: the image
classifier and the language model of `replica_step.py`, and Dense layers with two million weights, Adam and batches of
32. Weights are compared.
"""

import functools
import os
import pathlib
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import keras
import numpy as np
import replica_step

from harness import results
from harness.timing import in_turn, ratio, seconds
from idmatters_tf.doctor._recorder import Plan, observed


def dense():
    model = keras.Sequential([keras.Input((1000,)), *(keras.layers.Dense(1000, "relu") for _ in range(2))])
    model.add(keras.layers.Dense(10))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    return model


def data(name, steps):
    if name != "dense":
        return replica_step.data(name, steps)
    rng = np.random.default_rng(0)
    return rng.normal(size=(32 * steps, 1000)).astype("float32"), rng.integers(0, 10, 32 * steps), 32


def main():
    parser = results.parser(str(__doc__), rounds=5)
    parser.add_argument("--steps", type=int, default=20, help="steps of each measurement (default: %(default)s)")
    options = parser.parse_args()
    report = results.Report(__file__, options, ["tensorflow", "keras"])
    networks = {"classifier": replica_step.classifier, "language model": replica_step.language_model, "dense": dense}
    for name, build in networks.items():
        x, y, batch_size = data(name, options.steps)
        ways, weights = {}, {}
        for way in ("fit", "observed fit"):
            keras.utils.set_random_seed(0)
            model = build()
            fit = functools.partial(train, model, x, y, batch_size)
            run = fit if way == "fit" else functools.partial(observe, fit, options.steps)
            run()
            weights[way] = model.get_weights()
            ways[way] = functools.partial(seconds, run)
        for one, other in zip(*weights.values(), strict=True):
            np.testing.assert_array_equal(one, other)
        times = in_turn(ways, options.rounds, warm_up=1)
        for way, values in times.items():
            report.add(f"{name}, {way}", values, "ms/step", 1e3 / options.steps, ratio(values, times["fit"]))
    report.finish()


def train(model, x, y, batch_size):
    # The observation replaces `Model.fit`.
    model.fit(x, y, batch_size=batch_size, shuffle=False, verbose=0)


def observe(fit, steps):
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan(str(pathlib.Path(folder) / "trace.jsonl"), steps)
        with observed(plan, lambda: None):
            fit()


if __name__ == "__main__":
    main()
