"""mixup: batches of convex combinations of two images each, and of the losses of their labels.

Source: Zhang et al., *mixup: Beyond empirical risk minimization* (arXiv 1710.09412). As in their code, all images of a
batch are mixed in one proportion, and each one with another one of the same batch: here with its neighbour, the first
with the second, the third with the fourth and so on. The order of the images is random as it is; and a replica that has
an even number of the batch's images needs none of the others'.
"""

import tensorflow as tf

from idmatters_tf.data.protocols import Int

# Beside the purposes of `idmatters_tf.data.batches` and `idmatters_tf.data.streams`.
_MIXUP = 0


def share(alpha: float, seed: int, step: Int) -> tf.Tensor:
    """The larger one of p and 1 - p, where p has the distribution Beta(alpha, alpha).

    With neighbours mixed, p and 1 - p give the same images in another order; the larger one leaves the label that
    counts more in its place.

    Args:
        alpha: positive. Small values mix little; 1 is the uniform distribution.
        seed: a non-negative integer below 2^32.
        step: an int64 scalar.

    Returns:
        float32, a scalar in [1/2, 1], a function of (seed, step).
    """
    key = tf.stack([tf.constant((seed << 2) + _MIXUP, tf.int64), tf.cast(step, tf.int64)])
    other_key = tf.random.experimental.stateless_fold_in(key, 1)  # pyright: ignore[reportAttributeAccessIssue]
    # There is no kernel for GPUs.
    with tf.device("CPU:0"):
        gammas = tf.random.stateless_gamma([2], key, tf.constant(alpha + 1, tf.float64), dtype=tf.float64)
        uniform = 1 - tf.random.stateless_uniform([2], other_key, dtype=tf.float64)
    # p = a / (a + b), where a and b, Gamma(alpha), are Gamma(alpha + 1) times uniform^(1 / alpha); in logarithms, for
    # with a small alpha both would be rounded to 0.
    logarithms = tf.math.log(gammas) + tf.math.log(uniform) / alpha
    return tf.cast(tf.sigmoid(tf.abs(logarithms[0] - logarithms[1])), tf.float32)


def neighbours(values: tf.Tensor) -> tf.Tensor:
    """Each entry in the place of its neighbour: the first changes places with the second, and so on.

    Args:
        values: of any shape; its length must be even.
    """
    places = tf.range(tf.shape(values)[0])
    return tf.gather(values, tf.bitwise.bitwise_xor(places, 1))


def mix(images: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
    """Each image times the share plus its neighbour times the rest.

    Args:
        images: float32, `(batch, rows, cols, channels)`, the batch even.
        share: a float32 scalar.
    """
    return share * images + (1 - share) * neighbours(images)
