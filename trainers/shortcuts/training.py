"""Li et al.'s data, networks, and gradient descent of several runs of each kind at once.

Linear networks are trained on second moments by `idmatters_tf.linear`. Networks with ReLUs need the examples: all
networks of a kind are computed together, as a batch of matrix products.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmatters_tf import linear
from idmatters_tf._keras_types import Tensor
from trainers.shortcuts.settings import RegressionSettings, Training

Floats = NDArray[np.floating]
# (weights, number of updates) -> (weights after the updates, their losses, norms of their gradients).
Descent = Callable[[Floats, int], tuple[Floats, Floats, Floats]]

# Four per decade. All networks of the default depths diverge at the largest rate, so that the best rates are inside.
RATES = np.logspace(-3, 1, 17)
CLASSES = 10


@dataclasses.dataclass(frozen=True)
class Regression:
    """Regression problem for networks that keep the dimension."""

    X: NDArray[np.float64]  # (d, m), one column per example
    Y: NDArray[np.float64]  # (d, m)
    origin: str

    @property
    def statistics(self) -> linear.Statistics:
        """Second moments of all examples."""
        return linear.sufficient_statistics(self.X, self.Y)

    def first(self, samples: int) -> "Regression":
        """Return the problem with the first `samples` examples."""
        return dataclasses.replace(self, X=self.X[:, :samples], Y=self.Y[:, :samples])


def load(data: RegressionSettings) -> Regression:
    """Load whitened inputs, reduced to the 10 greatest principal components, and one-hot outputs (appendix B).

    Raises:
        idmatters_tf.data.images.DataError: MNIST is missing.
    """
    if data.dataset == "digits-like":
        inputs, labels = _digits_like(10_000, 40)
        origin = "generated, 10,000 examples of ten Gaussian classes, seed 0"
    else:
        images = data.load()
        inputs = images.train_images.reshape(len(images.train_images), -1).T / 255.0
        labels = images.train_labels
        origin = images.origin
    return Regression(linear.whiten(inputs, CLASSES).coordinates, np.eye(CLASSES)[:, labels], origin)


def _digits_like(samples: int, dim: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Draw ten Gaussian classes with a decreasing spectrum, like MNIST, which a linear map separates only partly."""
    rng = np.random.default_rng(0)
    spectrum = np.arange(1, dim + 1) ** -0.6
    labels = rng.integers(0, CLASSES, samples)
    means = rng.normal(size=(dim, CLASSES)) * spectrum[:, None]
    return means[:, labels] + rng.normal(size=(dim, samples)) * spectrum[:, None], labels


@dataclasses.dataclass(frozen=True)
class ShortcutNetwork:
    """Kind of network."""

    start: str  # see `linear.initial_weights`
    shortcut_depth: int  # number of layers per unit
    shortcut: bool  # True if each unit adds its input

    def starts(self, depth: int, networks: int, seed: int = 0) -> NDArray[np.float64]:
        """Return initial weights of networks with `depth` layers, (networks, units, shortcut_depth, d, d)."""
        units = depth // self.shortcut_depth
        return linear.initial_weights(self.start, units, self.shortcut_depth, CLASSES, seed=seed, networks=networks)


# The paper's "zero initialization" is Xavier's, multiplied by 0.01.
LINEAR_NETWORKS = {
    "xavier": ShortcutNetwork("xavier", 1, False),
    "orthogonal": ShortcutNetwork("orthogonal", 1, False),
    "1-shortcut": ShortcutNetwork("small", 1, True),
    "2-shortcut": ShortcutNetwork("small", 2, True),
    "3-shortcut": ShortcutNetwork("small", 3, True),
}
# With ReLUs in the mid positions of units of two layers, with or without shortcuts (appendix B). Units of three layers
# have more ReLUs.
RELU_NETWORKS = {
    kind: dataclasses.replace(LINEAR_NETWORKS[kind], shortcut_depth=2)
    for kind in ("xavier", "orthogonal", "2-shortcut")
} | {"3-shortcut": LINEAR_NETWORKS["3-shortcut"]}
COLORS = dict(zip(LINEAR_NETWORKS, ("tab:green", "tab:orange", "tab:red", "tab:blue", "tab:purple"), strict=True))


def relu_descent(
    problem: Regression, shape: Sequence[int], rates: ArrayLike, shortcut: bool, dtype: str = "float64"
) -> Descent:
    """Return full-batch gradient descent of networks with ReLUs between the layers of each unit.

    The loss is ||Y - f(X)||_F^2 / (2m). The values of diverged networks are not finite. `shape` is that of the weights,
    (networks, units, shortcut_depth, d, d), and `rates` are one for each network.
    """
    import tensorflow as tf

    inputs, outputs = tf.constant(problem.X, dtype), tf.constant(problem.Y, dtype)
    steps = tf.constant(np.reshape(rates, (-1, 1, 1)), dtype)
    networks, units, layers_in_unit, *sizes = shape

    def loss_and_gradient(weights: list[tf.Tensor]) -> tuple[Tensor, Tensor]:
        # One tensor per layer: the gradient of slices of a stacked tensor would copy them together again.
        with tf.GradientTape() as tape:
            tape.watch(weights)
            hidden = inputs
            for first in range(0, len(weights), layers_in_unit):
                branch = hidden
                for number, layer in enumerate(weights[first : first + layers_in_unit]):
                    branch = tf.matmul(layer, tf.nn.relu(branch) if number else branch)
                hidden = hidden + branch if shortcut else branch
            loss = tf.reduce_sum((outputs - hidden) ** 2, [-2, -1]) / (2 * problem.X.shape[1])
        return loss, tape.gradient(loss, weights)

    def descend(W, count):
        weights = tf.unstack(tf.reshape(W, (networks, units * layers_in_unit, *sizes)), axis=1)
        for _ in tf.range(count):
            _, gradient = loss_and_gradient(weights)
            weights = [layer - steps * part for layer, part in zip(weights, gradient, strict=True)]
        loss, gradient = loss_and_gradient(weights)
        norm = tf.sqrt(tf.add_n([tf.reduce_sum(part**2, [-2, -1]) for part in gradient]))
        return tf.reshape(tf.stack(weights, axis=1), shape), loss, norm

    # Trace explicitly: TensorFlow counts the traces of `tf.function` calls by position in the source, and warns.
    traced = tf.function(descend).get_concrete_function(tf.TensorSpec(shape, dtype), tf.TensorSpec((), tf.int32))
    return lambda W, count: tuple(part.numpy() for part in traced(tf.constant(W, dtype), tf.constant(count)))


def linear_descent(problem: Regression, rates: ArrayLike, shortcut: bool) -> Descent:
    """Return full-batch gradient descent of linear networks on second moments; the losses are less the optimum."""
    sxx, syx, _ = problem.statistics

    def descend(W: Floats, count: int) -> tuple[Floats, Floats, Floats]:
        path = linear.gradient_descent(W, sxx, syx, rates, count, shortcut=shortcut, record_every=max(count, 1))
        return path.weights, path.excess_risk[:, -1], path.gradient_norm[:, -1]

    return descend


class Epoch(NamedTuple):
    """State of many networks after a number of updates."""

    epoch: int
    weights: Floats  # (networks, units, shortcut_depth, d, d)
    loss: Floats  # (networks,), less the optimum for linear networks
    gradient_norm: Floats  # (networks,)


def record(descend: Descent, W: Floats, epochs: int, every: int) -> Iterator[Epoch]:
    """Yield the start, the state after each `every` updates, and the end; nothing after the first divergence."""
    done = 0
    for epoch in [*range(0, epochs, every), epochs]:
        state = descend(W, epoch - done)
        W = state[0]
        done = epoch
        if not np.isfinite(W).all():
            return
        yield Epoch(epoch, *state)


def best_rate(losses: Floats, rates: ArrayLike) -> float:
    """Return the rate with the lowest mean of the final losses, (runs, rates); no run may diverge at the best rate."""
    means = np.where(np.isfinite(losses), losses, np.inf).mean(axis=0)
    return float(np.asarray(rates)[np.argmin(means)])


def deviation(values: Floats) -> float:
    """Return the standard deviation over runs, 0 for a single run."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


@dataclasses.dataclass(frozen=True)
class ShortcutTraining:
    """Full-batch gradient descent of several runs of each kind of network, which differ in their starts."""

    problem: Regression
    activation: str  # "linear" or "relu"
    rates: NDArray[np.float64]  # (rates,), ascending; the best one is used
    starts: int  # number of runs of each kind
    epochs: int  # number of updates

    @property
    def networks(self) -> Mapping[str, ShortcutNetwork]:
        """Kinds of network to compare, by name."""
        return LINEAR_NETWORKS if self.activation == "linear" else RELU_NETWORKS

    def find_rate(self, kind: str, depth: int) -> float:
        """Return the best learning rate for one kind of network."""
        return best_rate(self.final_losses([kind], depth)[kind], self.rates)

    def final_losses(self, kinds: Iterable[str], depth: int) -> dict[str, NDArray[np.float64]]:
        """Return the losses at the end of training, minus the optimum for linear networks.

        They are arrays (starts, rates) of float64 by kind, not finite for diverged runs.
        """
        networks = self.networks
        epochs = self.epochs
        count = len(self.rates)
        weights = {kind: (networks[kind].starts(depth, self.starts), networks[kind].shortcut) for kind in kinds}
        if self.activation == "linear":
            sxx, syx, _ = self.problem.statistics
            paths = linear.sweep(weights, sxx, syx, self.rates, epochs, record_every=epochs)
            return {kind: path.excess_risk[..., -1] for kind, path in paths.items()}
        losses = {}
        for kind, (W, shortcut) in weights.items():
            starts, rates = np.repeat(W, count, axis=0), np.tile(self.rates, self.starts)
            _, loss, _ = relu_descent(self.problem, starts.shape, rates, shortcut, "float32")(starts, epochs)
            losses[kind] = loss.reshape(self.starts, count).astype(np.float64)
        return losses

    def descend(self, kind: str, depth: int, rate: float, every: int) -> Iterator[Epoch]:
        """Train all runs of one kind with one learning rate; see `record`."""
        network = self.networks[kind]
        rates = np.full(self.starts, rate)
        W = network.starts(depth, self.starts)
        if self.activation == "linear":
            return record(linear_descent(self.problem, rates, network.shortcut), W, self.epochs, every)
        return record(relu_descent(self.problem, W.shape, rates, network.shortcut), W, self.epochs, every)


def trainings(problem: Regression, descent: Training) -> Iterator[ShortcutTraining]:
    """Yield the training with each activation, by the options of an experiment; linear networks use all examples."""
    starts = descent.starts
    rates = np.sort(np.asarray(descent.rates, dtype=float)) if descent.rates else RATES
    yield ShortcutTraining(problem, "linear", rates, starts, descent.epochs)
    yield ShortcutTraining(problem.first(descent.samples), "relu", rates, starts, descent.epochs)
