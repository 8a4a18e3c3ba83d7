"""mixup: batches of convex combinations of two images each.

Source: Zhang et al., *mixup: Beyond empirical risk minimization* (arXiv 1710.09412). As in their code, all images of a
batch are mixed in the same proportion, each one with another image of the batch. Here it is mixed with its neighbor:
the first with the second, the third with the fourth and so on. The order of the images is random already, and a replica
with an even number of images needs no images of other replicas.
"""

import tensorflow as tf

from idmatters_tf.data.protocols import Int

# Distinct from the purposes in `idmatters_tf.data.batches` and `idmatters_tf.data.streams`.
_MIXUP = 0


def share(alpha: float, seed: int, step: Int) -> tf.Tensor:
    """Return max(p, 1 - p), where p has the distribution Beta(alpha, alpha).

    For neighbors, p and 1 - p give the same mixed images in another order. With the larger one, the label with the
    larger weight stays in its place.

    Args:
        alpha: positive. Small values mix little. 1 is the uniform distribution.
        seed: a non-negative integer below 2^32.
        step: an int64 scalar.

    Returns:
        float32 scalar in [1/2, 1], a function of (seed, step).
    """
    key = tf.stack([tf.constant((seed << 2) + _MIXUP, tf.int64), tf.cast(step, tf.int64)])
    other_key = tf.random.experimental.stateless_fold_in(key, 1)  # pyright: ignore[reportAttributeAccessIssue]
    # TensorFlow has no GPU kernel for it.
    with tf.device("CPU:0"):
        gammas = tf.random.stateless_gamma([2], key, tf.constant(alpha + 1, tf.float64), dtype=tf.float64)
        uniform = 1 - tf.random.stateless_uniform([2], other_key, dtype=tf.float64)
    # p = a / (a + b) with a and b from Gamma(alpha), which is Gamma(alpha + 1) times uniform^(1 / alpha). Logarithms
    # avoid that both underflow for small alpha.
    logarithms = tf.math.log(gammas) + tf.math.log(uniform) / alpha
    return tf.cast(tf.sigmoid(tf.abs(logarithms[0] - logarithms[1])), tf.float32)


def swap_neighbors(values: tf.Tensor) -> tf.Tensor:
    """Return the entries with neighbors swapped: the first with the second, the third with the fourth and so on.

    Args:
        values: tensor of any shape whose length is even.
    """
    places = tf.range(tf.shape(values)[0])
    return tf.gather(values, tf.bitwise.bitwise_xor(places, 1))


def mix(images: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
    """Return `share` times each image plus `1 - share` times its neighbor.

    Args:
        images: float32, `(batch, rows, cols, channels)` with an even batch.
        share: float32 scalar.
    """
    return share * images + (1 - share) * swap_neighbors(images)
