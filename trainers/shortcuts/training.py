"""Li et al.'s data, networks, and gradient descent of several runs of each kind at once.

Linear networks are trained on second moments by `idmatters_tf.linear`. Networks with ReLUs need the examples: all
networks of a kind are computed together, as a batch of matrix products.
"""

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idmatters_tf import linear
from trainers.shortcuts.settings import NormsSettings, SweepSettings, TrajectorySettings

Floats = NDArray[np.floating]

# Four per decade. All networks of the default depths diverge at the largest rate, so that the best rates are inside.
RATES = np.logspace(-3, 1, 17)
CLASSES = 10


@dataclasses.dataclass(frozen=True)
class Problem:
    """Regression problem for networks that keep the dimension."""

    X: NDArray[np.float64]  # (d, m), one column per example
    Y: NDArray[np.float64]  # (d, m)
    origin: str

    @property
    def statistics(self) -> linear.Statistics:
        """Second moments of all examples."""
        return linear.sufficient_statistics(self.X, self.Y)

    def first(self, samples: int) -> "Problem":
        """Return the problem with the first `samples` examples."""
        return dataclasses.replace(self, X=self.X[:, :samples], Y=self.Y[:, :samples])

    @property
    def digest(self) -> str:
        """Checksum of the data."""
        return hashlib.sha256(self.X.tobytes() + self.Y.tobytes()).hexdigest()


def load(dataset: str, data_dir: str | None = None, download: bool = False) -> Problem:
    """Load whitened inputs, reduced to the 10 greatest principal components, and one-hot outputs (appendix B).

    Args:
        dataset: "mnist", or the built-in "digits-like".
        data_dir: see `idmatters_tf.data.mnist.load`.
        download: see `idmatters_tf.data.mnist.load`.

    Raises:
        idmatters_tf.data.images.DataError: MNIST is missing.
    """
    if dataset == "digits-like":
        inputs, labels = _digits_like()
        origin = "generated, 10,000 examples of ten Gaussian classes, seed 0"
    else:
        from idmatters_tf.data import mnist

        data = mnist.load(data_dir, download)
        inputs, labels = data.train_images.reshape(len(data.train_images), -1).T / 255.0, data.train_labels
        origin = data.origin
    X = linear.whiten(inputs, CLASSES).coordinates
    return Problem(X, np.eye(CLASSES)[:, labels], origin)


def _digits_like(samples: int = 10_000, dim: int = 40, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Draw ten Gaussian classes with a decreasing spectrum, like MNIST, which a linear map separates only partly."""
    rng = np.random.default_rng(seed)
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

    def starts(self, depth: int, dim: int, networks: int, seed: int = 0) -> NDArray[np.float64]:
        """Return initial weights of networks with `depth` layers, (networks, units, shortcut_depth, dim, dim)."""
        units = depth // self.shortcut_depth
        return linear.initial_weights(self.start, units, self.shortcut_depth, dim, seed=seed, networks=networks)


# The paper's "zero initialization" is Xavier's, multiplied by 0.01.
LINEAR_NETWORKS = {
    "xavier": ShortcutNetwork("xavier", 1, False),
    "orthogonal": ShortcutNetwork("orthogonal", 1, False),
    "1-shortcut": ShortcutNetwork("small", 1, True),
    "2-shortcut": ShortcutNetwork("small", 2, True),
    "3-shortcut": ShortcutNetwork("small", 3, True),
}

# With ReLUs in the mid positions of units of two layers, with or without shortcuts (appendix B).
RELU_NETWORKS = {
    "xavier": ShortcutNetwork("xavier", 2, False),
    "orthogonal": ShortcutNetwork("orthogonal", 2, False),
    "2-shortcut": ShortcutNetwork("small", 2, True),
}

COLORS = {
    "xavier": "tab:green",
    "orthogonal": "tab:orange",
    "1-shortcut": "tab:red",
    "2-shortcut": "tab:blue",
    "3-shortcut": "tab:purple",
}


class Epoch(NamedTuple):
    """State of many networks after a number of updates. The values of diverged networks are not finite."""

    epoch: int
    loss: Floats  # (networks,), less the optimum for linear networks
    gradient_norm: Floats  # (networks,)
    weights: Floats  # (networks, units, shortcut_depth, d, d)


def relu_descent(
    W: Floats, problem: Problem, rates: ArrayLike, epochs: int, shortcut: bool, every: int, dtype: str = "float64"
) -> Iterator[Epoch]:
    """Run full-batch gradient descent of networks with ReLUs between the layers of each unit.

    The loss is ||Y - f(X)||_F^2 / (2m). There is an `Epoch` for every `every` updates, the start and the end.

    Args:
        W: (networks, units, shortcut_depth, d, d).
        problem: the data.
        rates: (networks,).
        epochs: number of updates.
        shortcut: True if the units have skip connections.
        every: number of updates between records.
        dtype: dtype of the computation.
    """
    import tensorflow as tf

    inputs, outputs = tf.constant(problem.X, dtype), tf.constant(problem.Y, dtype)
    steps = tf.constant(np.reshape(rates, (-1, 1, 1)), dtype)
    units, layers_in_unit = W.shape[1:3]

    def loss_and_gradient(weights: list[Any]) -> tuple[Any, Any]:
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

    def measured(weights):
        loss, gradient = loss_and_gradient(weights)
        squares = [tf.reduce_sum(part**2, [-2, -1]) for part in gradient]
        return loss, tf.sqrt(tf.add_n(squares))

    def updated(weights, count):
        for _ in tf.range(count):
            _, gradient = loss_and_gradient(weights)
            weights = [layer - steps * part for layer, part in zip(weights, gradient, strict=True)]
        return weights

    weights = [tf.constant(W[:, unit, layer], dtype) for unit in range(units) for layer in range(layers_in_unit)]
    # Trace explicitly: TensorFlow counts the traces of `tf.function` calls by position in the source, and warns. Call
    # the functions with a list, as they were traced: with separate tensors, TensorFlow formats an error message first,
    # which takes 60 ms per call.
    measure = tf.function(measured).get_concrete_function(weights)
    update = tf.function(updated).get_concrete_function(weights, tf.constant(0))
    for epoch in [*range(0, epochs, every), epochs]:
        loss, norm = measure(weights)
        stacked = np.stack([layer.numpy() for layer in weights], axis=1).reshape(W.shape)
        yield Epoch(epoch, loss.numpy(), norm.numpy(), stacked)
        weights = update(weights, tf.constant(min(every, epochs - epoch)))


def linear_descent(
    W: NDArray[np.float64], problem: Problem, rates: ArrayLike, epochs: int, shortcut: bool, every: int
) -> Iterator[Epoch]:
    """Run full-batch gradient descent of linear networks on second moments until a network diverges.

    Arguments and results are those of `relu_descent`.
    """
    sxx, syx, _ = problem.statistics
    for epoch in [*range(0, epochs, every), epochs]:
        count = min(every, epochs - epoch)
        path = linear.gradient_descent(W, sxx, syx, rates, count, shortcut=shortcut, record_every=max(count, 1))
        yield Epoch(epoch, path.excess_risk[:, 0], path.gradient_norm[:, 0], W)
        W = path.weights
        if not np.isfinite(W).all():
            return


def best_rate(losses: NDArray[np.float64], rates: ArrayLike) -> float:
    """Return the rate with the lowest mean of the final losses, (runs, rates); no run may diverge at the best rate."""
    means = np.where(np.isfinite(losses), losses, np.inf).mean(axis=0)
    return float(np.asarray(rates)[np.argmin(means)])


def deviation(values: Floats) -> float:
    """Return the standard deviation over runs, 0 for a single run."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


@dataclasses.dataclass(frozen=True)
class Training:
    """Full-batch gradient descent of several runs of each kind of network, which differ in their starts."""

    problem: Problem
    activation: str  # "linear" or "relu"
    rates: NDArray[np.float64]  # (rates,), ascending; the best one is used
    starts: int  # number of runs of each kind
    epochs: int  # number of updates

    @property
    def networks(self) -> Mapping[str, ShortcutNetwork]:
        """Kinds of network to compare, by name."""
        return LINEAR_NETWORKS if self.activation == "linear" else RELU_NETWORKS

    def final_losses(self, kinds: Iterable[str], depth: int) -> dict[str, NDArray[np.float64]]:
        """Return the losses at the end of training, minus the optimum for linear networks.

        They are arrays (starts, rates) of float64 by kind, not finite for diverged runs.
        """
        networks, dim, epochs, count = self.networks, len(self.problem.X), self.epochs, len(self.rates)
        weights = {kind: (networks[kind].starts(depth, dim, self.starts), networks[kind].shortcut) for kind in kinds}
        if self.activation == "linear":
            sxx, syx, _ = self.problem.statistics
            paths = linear.sweep(weights, sxx, syx, self.rates, epochs, record_every=epochs)
            return {kind: path.excess_risk[..., -1] for kind, path in paths.items()}
        losses = {}
        for kind, (W, shortcut) in weights.items():
            starts, rates = np.repeat(W, count, axis=0), np.tile(self.rates, self.starts)
            *_, last = relu_descent(starts, self.problem, rates, epochs, shortcut, epochs, "float32")
            losses[kind] = last.loss.reshape(self.starts, count).astype(np.float64)
        return losses

    def descend(self, kind: str, depth: int, rate: float, every: int) -> Iterator[Epoch]:
        """Train all runs of one kind with one learning rate; see `relu_descent` for the records."""
        descent = linear_descent if self.activation == "linear" else relu_descent
        network, rates = self.networks[kind], np.full(self.starts, rate)
        W = network.starts(depth, len(self.problem.X), self.starts)
        return descent(W, self.problem, rates, self.epochs, network.shortcut, every)


def trainings(problem: Problem, settings: SweepSettings | NormsSettings | TrajectorySettings) -> Iterator[Training]:
    """Yield the training with each activation; linear networks use all examples."""
    descent, starts = settings.descent, settings.networks.starts
    rates = np.sort(np.asarray(descent.rates, dtype=float)) if descent.rates else RATES
    for activation in ("linear", "relu"):
        data = problem if activation == "linear" else problem.first(descent.samples)
        yield Training(data, activation, rates, starts, descent.epochs)
