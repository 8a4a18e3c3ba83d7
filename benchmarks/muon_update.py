"""Claim: Muon's update takes at most two thirds of the time of Keras' Newton-Schulz iterations, one kernel at a time.

    python benchmarks/muon_update.py [--network NAME] [--batch-size N] [--precision P] [--rounds N]

The benchmark updates all kernels of a network with given gradients in one `tf.function`. The alternative differs only
in the orthogonalization: `keras.optimizers.Muon.zeropower_via_newtonschulz5`, called for one kernel after the other
with the same number of iterations. The time of the whole training step gives the share of the update.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import math

import keras
import numpy as np
import tensorflow as tf

from harness import results
from harness.timing import in_turn, ratio, timed
from idmatters_tf.models.cifar import identity_resnet
from idmatters_tf.models.normalizer_free import normalizer_free_resnet
from idmatters_tf.optimizers import Muon

ITERATIONS = 3
NETWORKS = {"identity": identity_resnet, "normalizer-free": normalizer_free_resnet}


class KernelByKernel(Muon):
    """Free-norm Muon with Keras' orthogonalization of one kernel at a time."""

    def __init__(self):
        super().__init__(norm="free")
        self.keras_muon = keras.optimizers.Muon()

    def update_steps(self, gradients, variables, learning_rate):
        for gradient, variable in zip(gradients, variables, strict=True):
            if len(variable.shape) < self.least_rank:
                super().update_steps([gradient], [variable], learning_rate)
                continue
            rows, columns = math.prod(variable.shape[:-1]), variable.shape[-1]
            matrix = tf.reshape(self.advance_velocity(gradient, variable), (rows, columns))
            direction = self.keras_muon.zeropower_via_newtonschulz5(matrix, ITERATIONS)
            step = learning_rate * math.sqrt(columns / rows) * tf.reshape(direction, variable.shape)
            self.assign_sub(variable, step)


def updates(build, optimizer, gradients):
    """Return a function that updates a new network with given gradients, and the values of its variables."""
    model = build()
    variables = [variable.value for variable in model.trainable_variables]
    optimizer.build(model.trainable_variables)
    rate = tf.constant(0.01)

    @tf.function(autograph=False)
    def update():
        optimizer.update_steps(gradients, variables, rate)

    return update, variables


def training_step(build, batch_size):
    """Return a function that makes one training step with Muon on one batch of random images."""
    model, optimizer = build(), Muon(0.01, norm="free", iterations=ITERATIONS)
    optimizer.build(model.trainable_variables)
    variables = [variable.value for variable in model.trainable_variables]
    images = tf.random.stateless_normal((batch_size, 32, 32, 3), (0, 1))
    labels = tf.range(batch_size) % 10

    @tf.function(autograph=False)
    def step():
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images, training=True))
            loss = tf.reduce_mean(losses)
        optimizer.update_steps(tape.gradient(loss, variables), variables, tf.constant(0.0))
        return loss

    return lambda: float(step())


def main():
    parser = results.parser(__doc__, rounds=7)
    parser.add_argument("--network", choices=tuple(NETWORKS), default="identity", help="(default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=256, help="images per step (default: %(default)s)")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32", help="(default: float32)")
    options = parser.parse_args()
    report = results.Report(__file__, options, ["tensorflow", "keras"])
    keras.config.set_dtype_policy("mixed_bfloat16" if options.precision == "bfloat16" else "float32")

    def build():
        # The normalizer-free network is that of docs/explanation/fast.md, the other one that of Table 1.
        sizes = {"blocks": 3, "widths": (96, 192, 384), "stem": 48} if options.network == "normalizer-free" else {}
        return NETWORKS[options.network](weight_decay=0.0, seed=0, **sizes)

    rng = np.random.default_rng(0)
    gradients = [tf.constant(rng.normal(size=v.shape), tf.float32) for v in build().trainable_variables]
    ours, kernels = updates(build, Muon(norm="free", iterations=ITERATIONS), gradients)
    theirs, other_kernels = updates(build, KernelByKernel(), gradients)
    ours()
    theirs()
    difference = max(float(tf.reduce_max(abs(a - b))) for a, b in zip(kernels, other_kernels, strict=True))
    step = training_step(build, options.batch_size)
    times = in_turn({"ours": timed(ours), "theirs": timed(theirs), "step": timed(step)}, options.rounds, warm_up=1)
    report.add("one update", times["ours"], "ms", 1e3)
    report.add("kernel by kernel", times["theirs"], "ms", 1e3, ratio=ratio(times["theirs"], times["ours"]))
    report.add("training step", times["step"], "ms", 1e3, ratio=ratio(times["step"], times["ours"]))
    report.finish(f"Batch {options.batch_size}, {options.precision}; kernels differ by at most {difference:.1g}.")


if __name__ == "__main__":
    main()
