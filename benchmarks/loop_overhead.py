"""Claim: the training loop adds at most 3 % to the bare compiled step.

    python benchmarks/loop_overhead.py [--steps N] [--rounds N] [--blocks N] [--widths C ...]

The bare step is the same network, loss, gradient and update as one `tf.function` in a plain `for` loop, on batches in
memory. The training loop reads augmented batches through its pipeline, counts steps, computes the learning rate, the
error and the gradient norm, handles signals, and writes a record every 20 steps to metrics.jsonl and TensorBoard. The
time until its first step, which is spent once per session, is reported separately.
"""

import contextlib
import io
import os
import pathlib
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

from harness import results
from harness.timing import in_turn, ratio
from harness.trainer import make_trainer
from idmatters_tf.data import shapes
from idmatters_tf.data.augment import AUGMENTATIONS
from idmatters_tf.data.batches import EvaluationBatches, TrainBatches
from idmatters_tf.models.cifar import identity_resnet
from idmatters_tf.optimizers import Momentum
from trainers.run.events import Events
from trainers.run.folder import Run
from trainers.training.session import Session
from trainers.training.settings import Intervals

BATCH = 128
NEVER = 1 << 30


def bare_step(build):
    """Return the bare update, a function of a batch."""
    model = build()
    optimizer = Momentum(0.05, 0.9)
    optimizer.build(model.trainable_variables)
    rate = tf.constant(0.05)

    @tf.function
    def step(images, labels):
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images, training=True))
            loss = tf.reduce_mean(losses) + tf.add_n(model.losses)
        gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
        for gradient, variable in zip(gradients, model.trainable_variables, strict=True):
            optimizer.update_step(gradient, variable.value, rate)
        return loss

    return step


def main():
    parser = results.parser(__doc__, rounds=9)
    parser.add_argument("--steps", type=int, default=100, help="steps per round (default: %(default)s)")
    parser.add_argument("--blocks", type=int, default=1, help="residual blocks per stage (default: %(default)s)")
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 32, 64], help="channels (default: 16 32 64)")
    options = parser.parse_args()
    report = results.Report(__file__, options, ["tensorflow", "keras"])

    def build():
        return identity_resnet(blocks=options.blocks, widths=tuple(options.widths))

    tf.config.experimental.enable_op_determinism()
    tf.random.set_seed(0)
    data = shapes.load()
    train = TrainBatches(data.train_images, data.train_labels, BATCH, 0, AUGMENTATIONS["paper"])
    test = EvaluationBatches(data.test_images[:BATCH], data.test_labels[:BATCH], BATCH)
    batches = [train.batch(step) for step in range(8)]
    step = bare_step(build)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        run = Run(pathlib.Path(folder) / "run")
        run.start({}, {"digest": "", "origin": ""})
        # Two more steps: the first one includes building the pipeline, the last one is followed by an evaluation and a
        # checkpoint.
        trainer = make_trainer(build, BATCH, learning_rate=1e-4)
        intervals = Intervals(log_every=20, evaluate_every=NEVER, checkpoint_every=NEVER)
        session = Session(run, trainer, test, Events(folder), options.steps + 2, intervals)
        ends, first = [], []

        def loop():
            trainer.learner.step.assign(0)
            ends.clear()
            start = time.perf_counter()
            trainer.fit(session, train, [lambda step, seconds: ends.append(time.perf_counter())])
            first.append(ends[0] - start)
            return (ends[-2] - ends[0]) / options.steps

        def bare():
            start = time.perf_counter()
            for number in range(options.steps):
                float(step(*batches[number % 8]))
            return (time.perf_counter() - start) / options.steps

        times = in_turn({"loop": loop, "bare": bare}, options.rounds, warm_up=1)
    report.add("the loop", times["loop"], "ms a step", 1e3, ratio=ratio(times["loop"], times["bare"]))
    report.add("the bare step", times["bare"], "ms a step", 1e3)
    report.add("until the first step, once per session", first[1:], "ms", 1e3)
    report.finish(f"Batch {BATCH}, widths {'/'.join(map(str, options.widths))}.")


if __name__ == "__main__":
    main()
