"""Li et al.'s networks, and the gradient descent of many of them at once with ReLUs between the layers.

Without ReLUs that is `idmatters_tf.linear`'s business. With them the data no longer enter through second moments alone:
all networks of a kind go through the examples together, as one batch of matrix products.
"""

import dataclasses

import numpy as np

from idmatters_tf import linear


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of network.

    Attributes:
        start: see `linear.initial_weights`.
        n: the layers of a unit.
        shortcut: whether each unit adds its input.
    """

    start: str
    n: int
    shortcut: bool

    def starts(self, depth, dim, networks, seed=0):
        """Starting points of networks with `depth` layers, (networks, depth / n, n, dim, dim)."""
        return linear.initial_weights(self.start, depth // self.n, self.n, dim, seed, networks)


# "Zero initialisation" in the paper is Xavier's times 0.01.
LINEAR_KINDS = {
    "xavier": Kind("xavier", 1, False),
    "orthogonal": Kind("orthogonal", 1, False),
    "1-shortcut": Kind("small", 1, True),
    "2-shortcut": Kind("small", 2, True),
    "3-shortcut": Kind("small", 3, True),
}

# With ReLUs in the mid positions of units of two layers, also where these have no shortcut (appendix B).
RELU_KINDS = {
    "xavier": Kind("xavier", 2, False),
    "orthogonal": Kind("orthogonal", 2, False),
    "2-shortcut": Kind("small", 2, True),
}


def relu_descent(W, X, Y, rates, epochs, shortcut, every, dtype="float64"):
    """Full-batch gradient descent of ReLU networks, ||Y - f(X)||_F^2 / (2m), ReLUs between the layers of each unit.

    Args:
        W: (networks, units, n, d, d).
        X, Y: (d, m).
        rates: (networks,).
        epochs: updates in all.
        shortcut: whether the units have skips.
        every: epochs between records; the start and the end are always recorded.
        dtype: of the computation.

    Yields:
        (epoch, loss, gradient_norm, weights) at each record: (networks,) twice, and the shape of W. A network that has
        diverged has values that are not finite.
    """
    import tensorflow as tf

    X, Y = tf.constant(X, dtype), tf.constant(Y, dtype)
    steps = tf.constant(np.reshape(rates, (-1, 1, 1)), dtype)

    def forward(layers):
        outputs = X
        for unit in layers:
            branch = outputs
            for number, layer in enumerate(unit):
                branch = tf.matmul(layer, tf.nn.relu(branch) if number else branch)
            outputs = outputs + branch if shortcut else branch
        return tf.reduce_sum((Y - outputs) ** 2, [-2, -1]) / (2 * X.shape[1])

    def loss_and_gradient(weights):
        # One tensor for each layer: slices of one stacked tensor would be copied together again in each gradient.
        with tf.GradientTape() as tape:
            tape.watch(weights)
            loss = forward(tf.nest.pack_sequence_as(structure, weights))
        return loss, tape.gradient(loss, weights)

    @tf.function
    def measured(weights):
        loss, gradient = loss_and_gradient(weights)
        squares = [tf.reduce_sum(part**2, [-2, -1]) for part in gradient]
        return loss, tf.sqrt(tf.add_n(squares))

    @tf.function
    def updated(weights, count):
        for _ in tf.range(count):
            _, gradient = loss_and_gradient(weights)
            weights = [layer - steps * part for layer, part in zip(weights, gradient, strict=True)]
        return weights

    units, n = W.shape[1:3]
    structure = [[0] * n for _ in range(units)]
    weights = [tf.constant(W[:, unit, layer], dtype) for unit in range(units) for layer in range(n)]
    # Traced once, here: calling a `tf.function` would count traces by the place in the source, and warn. Called as they
    # were traced, with a list: with the tensors one by one TensorFlow writes an error message first, 60 ms of it.
    measure = measured.get_concrete_function(weights)
    update = updated.get_concrete_function(weights, tf.constant(0))
    for epoch in [*range(0, epochs, every), epochs]:
        loss, norm = measure(weights)
        stacked = np.stack([layer.numpy() for layer in weights], axis=1).reshape(W.shape)
        yield epoch, loss.numpy(), norm.numpy(), stacked
        weights = update(weights, tf.constant(min(every, epochs - epoch)))


def linear_descent(W, statistics, rates, epochs, shortcut, every):
    """The same for linear networks on second moments: yields (epoch, loss - optimum, gradient norm, weights)."""
    for epoch in [*range(0, epochs, every), epochs]:
        count = min(every, epochs - epoch)
        moments = statistics.sxx, statistics.syx
        found = linear.gradient_descent(W, *moments, rates, count, shortcut, record_every=max(count, 1))
        yield epoch, found.excess_risk[:, 0], found.gradient_norm[:, 0], W
        W = found.weights
        if not np.isfinite(W).all():
            return
