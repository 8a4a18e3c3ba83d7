"""Whether two evaluations of a loss and its gradient agree, and if not, why."""

import numpy as np
import tensorflow as tf

from idmatters_tf.randomness import random_layers

# In units of the dtype's rounding: sums over shuffled batches differ by rounding alone.
TOLERANCE = 300.0


def check_reproducible(objective):
    """Compares two passes through the data, each with its own draw of the model's random numbers.

    Raises:
        ValueError: where loss or gradient differ by more than rounding; the message says what differs.
    """
    first, second = (_evaluate(objective, draw) for draw in (0, 1))
    if not _differ(first, second, objective.dtype):
        return
    values = f"two evaluations gave the loss {first[0]:.9g} and {second[0]:.9g}"
    if not _same_examples(objective.batches):
        raise ValueError(
            f"The loss is not the same each time: {values}. Argument `data` gives other examples at each pass "
            f"(augmentation, or shuffling together with dropped remainders or `take`). Fix the examples first, e.g. "
            f"with list(data), and leave augmentation out."
        )
    batch = next(iter(objective.batches))
    again = [_evaluate_batch(objective, batch, draw) for draw in (0, 1)]
    if _differ(*again, objective.dtype):
        layers = random_layers(objective.model)
        drawn = f" Layers that draw random numbers: {', '.join(layers)}." if layers else ""
        raise ValueError(
            f"The loss is not the same each time: {values}, and so do two on one batch, which means that the model or "
            f"the loss itself is random (dropout, noise).{drawn} Use training=False, or take the randomness out."
        )
    raise ValueError(
        f"The loss is not the same each time: {values}, although the examples are the same: it depends on which ones "
        f"are together in a batch (batch normalisation with training=True) and the batches are shuffled. Do not "
        f"shuffle, or use training=False."
    )


def _evaluate(objective, draw):
    # A tensor: one trace for both draws.
    return tuple(part.numpy() for part in objective.sum_over_data("check", _checked(objective), tf.constant(draw)))


def _evaluate_batch(objective, batch, draw):
    scales = tf.constant(objective.totals(), objective.dtype)
    theta = [tf.convert_to_tensor(variable.value) for variable in objective.variables]
    return tuple(part.numpy() for part in _checked(objective)(theta, batch, scales, draw))


def _checked(objective):
    def loss_and_gradient(theta, batch, scales, draw):
        with tf.GradientTape() as tape:
            tape.watch(theta)
            value = objective.value(theta, batch, scales, draw)
        return value, objective.flatten(tape.gradient(value, theta, unconnected_gradients="zero"))

    return loss_and_gradient


def _differ(first, second, dtype):
    tolerance = TOLERANCE * np.finfo(dtype).eps
    loss, gradient = (np.linalg.norm(np.subtract(one, other)) for one, other in zip(first, second, strict=True))
    # The gradient is compared with the loss too: at a minimum it is rounding alone.
    size = np.linalg.norm(first[1]) + abs(first[0]) + np.finfo(dtype).tiny
    return bool(loss > tolerance * (abs(first[0]) + np.finfo(dtype).tiny) or gradient > 10 * tolerance * size)


def _same_examples(batches):
    """Whether two passes give the same examples, in whatever order."""

    def digest():
        rows = []
        for batch in batches:
            tensors = [tensor.numpy() for tensor in tf.nest.flatten(batch)]
            rows += [hash(b"".join(tensor[i].tobytes() for tensor in tensors)) for i in range(len(tensors[0]))]
        return sorted(rows)

    return digest() == digest()
