"""Claim: the training loop adds at most 3 % to the bare compiled step.

    python benchmarks/loop_overhead.py [--steps N] [--rounds N] [--blocks N] [--widths C ...]

The bare step is the same network, loss, gradient and update as one `tf.function` in a plain `for`, on batches that are
there already. The loop reads augmented batches through its pipeline, counts steps, computes the learning rate, the
error and the gradient's norm, watches for signals, and writes a record of every 20 steps to metrics.jsonl and
TensorBoard. What is done once a session, making the pipeline, is printed for itself. In turn in one process; medians
over the rounds.
"""

import argparse
import contextlib
import io
import os
import pathlib
import statistics
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

from idmatters_tf.data import shapes
from idmatters_tf.data.augment import AUGMENTATIONS
from idmatters_tf.data.batches import EvaluationBatches, TrainBatches
from idmatters_tf.optimizers import Momentum
from models.cifar import identity_resnet
from trainers.run.events import Events
from trainers.run.folder import Run
from trainers.training.loop import Recipe, Session, Trainer

BATCH = 128


def bare_step(options):
    """The update alone: a function of a batch."""
    model = identity_resnet(blocks=options.blocks, widths=tuple(options.widths))
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


class Timed(Session):
    """A session without the test and the checkpoint at its end, which are not part of a step."""

    def _evaluate(self, step, progress):
        pass

    def _save(self, step):
        pass


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100, help="of each round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=9, help="(default: %(default)s)")
    parser.add_argument("--blocks", type=int, default=1, help="per stage (default: %(default)s)")
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 32, 64], help="(default: 16 32 64)")
    options = parser.parse_args()

    tf.config.experimental.enable_op_determinism()
    tf.random.set_seed(0)
    data = shapes.load()
    train = TrainBatches(data.train_images, data.train_labels, BATCH, 0, AUGMENTATIONS["paper"])
    test = EvaluationBatches(data.test_images[:BATCH], data.test_labels[:BATCH], BATCH)
    batches = [train.batch(step) for step in range(8)]
    step = bare_step(options)
    recipe = Recipe(
        steps=options.steps,
        learning_rate=1e-4,
        drop_steps=(30_000, 50_000),
        drop_factor=10.0,
        make_optimizer=lambda rate: Momentum(rate, 0.9),
        clip_norm=None,
        log_every=20,
        evaluate_every=1 << 30,
        checkpoint_every=1 << 30,
        keep_checkpoints=1,
    )
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        run = Run(pathlib.Path(folder) / "run")
        run.start({}, {"digest": "", "origin": ""})

        def build():
            return identity_resnet(blocks=options.blocks, widths=tuple(options.widths))

        session = Timed(run, Trainer(tf.distribute.get_strategy(), build, recipe, BATCH), train, test, Events(folder))
        ends = []
        session.watches.append(lambda step, seconds: ends.append(time.perf_counter()))
        times, first = {"loop": [], "bare": []}, []
        for round_number in range(options.rounds + 1):
            session.trainer.step.assign(0)
            ends.clear()
            start = time.perf_counter()
            session.work()
            first.append(ends[0] - start)
            loop = time.perf_counter() - ends[0]
            start = time.perf_counter()
            for number in range(options.steps):
                float(step(*batches[number % 8]))
            bare = time.perf_counter() - start
            # The first round compiles.
            if round_number:
                times["loop"].append(loop / (options.steps - 1))
                times["bare"].append(bare / options.steps)
    for name, values in times.items():
        low, middle, high = (1000 * f(values) for f in (min, statistics.median, max))
        print(f"{name}: {middle:8.2f} ms a step   ({low:.2f} .. {high:.2f})")
    once = statistics.median(first[1:]) - statistics.median(times["bare"])
    print(f"once a session: {1000 * once:.0f} ms")
    ratio = statistics.median(a / b for a, b in zip(*times.values(), strict=True))
    print(f"ratio {ratio:.3f} on {len(os.sched_getaffinity(0))} cores, batch {BATCH}, widths {options.widths}")


if __name__ == "__main__":
    main()
