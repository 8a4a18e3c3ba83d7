"""Full-batch gradient descent of many deep linear networks at once, on second moments instead of data.

The loss is Li et al.'s, L = ||Y - f X||_F^2 / (2m); a regression on at most d samples with the same second moments has
the same gradient, so that the cost of a step does not depend on the number of samples.
"""

import concurrent.futures
import dataclasses
import os

import numpy as np

from idmatters_tf.linear.arguments import non_negative, positive_integer, real_array
from idmatters_tf.linear.network import layer_norms
from idmatters_tf.linear.statistics import regression

# A loss this many times the first one has diverged: from there on the next steps overflow.
DIVERGED = 1e6


@dataclasses.dataclass(frozen=True)
class Trajectories:
    """Histories of many runs. A diverged network's entries are NaN from its divergence on.

    Attributes:
        steps: (records,) after how many updates each record was made.
        excess_risk: L - L_min, (networks..., records).
        gradient_norm: Frobenius norm of the whole gradient (without weight decay), (networks..., records).
        layer_norms: spectral norms of the layers W[r, l], (networks..., records, units, n).
        tau: the largest spectral norm of (unit's map - I), (networks..., records). For n = 1 with shortcuts it is
            Hardt & Ma's |||A|||, and for plain networks that of A_i = W_i - I.
        inside: whether tau < 1, (networks..., records) bool: for n = 1 the ball in which gradient dominance (2.3)
            guarantees progress.
        diverged_at: (networks...) int, the step at which the loss was first not finite or 1e6 times the first one; -1
            where it never was.
        weights: the last ones, (networks..., units, n, d, d); those of diverged networks are NaN.
    """

    steps: np.ndarray
    excess_risk: np.ndarray
    gradient_norm: np.ndarray
    layer_norms: np.ndarray
    tau: np.ndarray
    inside: np.ndarray
    diverged_at: np.ndarray
    weights: np.ndarray

    def reshaped(self, *networks):
        """The same with other leading axes, e.g. (seeds, rates) for seeds * rates networks."""
        old = self.diverged_at.ndim
        return Trajectories(
            self.steps,
            *(
                getattr(self, field.name).reshape(*networks, *getattr(self, field.name).shape[old:])
                for field in dataclasses.fields(self)[1:]
            ),
        )


def gradient_descent(W, sxx, syx, learning_rates, steps, shortcut=True, weight_decay=0.0, record_every=1):
    """W <- W - rate * (dL/dW + decay * W), for many networks of one shape at once.

    Source: Li et al., Eq. 7. A network that diverges is taken out and does not disturb the others.

    Args:
        W: the starting points, (networks, units, n, d, d).
        sxx, syx: X X^T / m and Y X^T / m, (d, d).
        learning_rates: a number, or one for each network.
        steps: the number of updates.
        shortcut: False for plain networks.
        weight_decay: a number, or one for each network; it adds decay * ||W||_F^2 / 2 to the loss that is minimised,
            not to the one recorded.
        record_every: updates between records; the start and the end are always recorded.

    Returns:
        `Trajectories`.
    """
    W = real_array("W", W, ("networks", "units", "n", "d", "d"))
    networks, d = len(W), W.shape[-1]
    rates = _one_each("learning_rates", learning_rates, networks)
    decays = _one_each("weight_decay", weight_decay, networks)
    steps, record_every = int(non_negative("steps", steps)), positive_integer("record_every", record_every)
    root, targets = regression(real_array("sxx", sxx, (d, d)), real_array("syx", syx, (d, d)))

    recorded = np.append(np.arange(0, steps, record_every), steps)
    histories = _Histories(recorded, W.shape)
    # Layers first: a step walks through them, and each is then one block of memory for all networks.
    layers = W.transpose(1, 2, 0, 3, 4).copy()
    active = np.arange(networks)
    backpropagation = _Backpropagation(layers, root, targets, shortcut)
    for step in range(steps + 1):
        gradient, excess = backpropagation(layers)
        if step == 0:
            limits = DIVERGED * np.maximum(excess, np.finfo(np.float64).tiny)
        fine = excess <= limits[active]
        if not fine.all():
            histories.diverged_at[active[~fine]] = step
            active, excess = active[fine], excess[fine]
            layers, gradient = layers[:, :, fine], gradient[:, :, fine]
            if not active.size:
                break
            backpropagation = _Backpropagation(layers, root, targets, shortcut)
        if step % record_every == 0 or step == steps:
            histories.record(step, active, layers, gradient, excess, shortcut)
        if step < steps:
            gradient *= -rates[active, None, None]
            if decays.any():
                layers *= (1 - rates * decays)[active, None, None]
            layers += gradient
    histories.weights[active] = layers.transpose(2, 0, 1, 3, 4)
    return histories.trajectories()


def sweep(starts, sxx, syx, learning_rates, steps, weight_decay=0.0, record_every=1, workers=None):
    """Gradient descent from every start with every learning rate, on all cores.

    Args:
        starts: by name, `(W, shortcut)` with W of shape (seeds, units, n, d, d); shapes may differ from name to name.
        sxx, syx: (d, d).
        learning_rates: (rates,).
        steps, weight_decay, record_every: see `gradient_descent`.
        workers: threads; the number of cores if None. The result does not depend on it.

    Returns:
        A dict by name of `Trajectories` whose leading axes are (seeds, rates).
    """
    rates = real_array("learning_rates", learning_rates, ("rates",))

    shape = ("seeds", "units", "n", "d", "d")
    starts = {name: (real_array(f"starts[{name!r}]", W, shape), shortcut) for name, (W, shortcut) in starts.items()}

    def run(name):
        W, shortcut = starts[name]
        networks = np.repeat(W, len(rates), axis=0), sxx, syx, np.tile(rates, len(W))
        return gradient_descent(*networks, steps, shortcut, weight_decay, record_every).reshaped(len(W), len(rates))

    # The longest first, so that no core waits for one that started late. NumPy's products run outside the GIL.
    order = sorted(starts, key=lambda name: -starts[name][0].size)
    with concurrent.futures.ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        results = dict(zip(order, pool.map(run, order), strict=True))
    return {name: results[name] for name in starts}


class _Backpropagation:
    """Gradient and excess risk of many networks by backpropagation of the at most d samples.

    Args:
        layers: (units, n, networks, d, d). The arrays for one step's results are kept for the next: fresh ones of
            this size would cost more than the arithmetic.
        root, targets: (d, rank), see `Regression`.
        shortcut: whether each unit adds its input.
    """

    def __init__(self, layers, root, targets, shortcut):
        units, n, networks, d, _ = layers.shape
        self._root, self._targets, self._shortcut = root, targets, shortcut
        self._states = np.empty((units, n + 1, networks, d, root.shape[1]))
        self._errors = np.empty_like(self._states)
        self._gradient = np.empty_like(layers)

    def __call__(self, layers):
        """(gradient, excess risk): like `layers`, and (networks,). Overflow is how divergence is seen: no warning."""
        states, errors, shortcut = self._states, self._errors, self._shortcut
        transposed = layers.swapaxes(-1, -2)
        units, n = layers.shape[:2]
        with np.errstate(over="ignore", invalid="ignore"):
            state = self._root
            for r in range(units):
                states[r, 0] = state
                for layer in range(n):
                    np.matmul(layers[r, layer], states[r, layer], out=states[r, layer + 1])
                state = states[r, 0] + states[r, n] if shortcut else states[r, n]
            error = state - self._targets
            excess = np.einsum("kij,kij->k", error, error) / 2
            for r in reversed(range(units)):
                errors[r, n] = error
                for layer in reversed(range(n)):
                    np.matmul(transposed[r, layer], errors[r, layer + 1], out=errors[r, layer])
                error = errors[r, n] + errors[r, 0] if shortcut else errors[r, 0]
            np.matmul(errors[:, 1:], states[:, :n].swapaxes(-1, -2), out=self._gradient)
        return self._gradient, excess


class _Histories:
    """Arrays that fill up while the networks descend."""

    def __init__(self, recorded, shape):
        networks, units, n = shape[:3]
        self.steps = recorded
        self.excess_risk, self.gradient_norm, self.tau = (np.full((networks, len(recorded)), np.nan) for _ in range(3))
        self.layer_norms = np.full((networks, len(recorded), units, n), np.nan)
        self.diverged_at = np.full(networks, -1)
        self.weights = np.full(shape, np.nan)

    def record(self, step, active, layers, gradient, excess, shortcut):
        record = np.searchsorted(self.steps, step)
        self.excess_risk[active, record] = excess
        self.gradient_norm[active, record] = np.sqrt(np.einsum("rlkij,rlkij->k", gradient, gradient))
        norms = layer_norms(layers)
        self.layer_norms[active, record] = norms.transpose(2, 0, 1)
        if shortcut and layers.shape[1] == 1:
            branches = norms[:, 0]
        else:
            branch = layers[:, 0]
            for layer in range(1, layers.shape[1]):
                branch = layers[:, layer] @ branch
            branches = layer_norms(branch if shortcut else branch - np.eye(layers.shape[-1]))
        self.tau[active, record] = branches.max(axis=0)

    def trajectories(self):
        return Trajectories(
            self.steps,
            self.excess_risk,
            self.gradient_norm,
            self.layer_norms,
            self.tau,
            self.tau < 1,
            self.diverged_at,
            self.weights,
        )


def _one_each(name, values, networks):
    values = np.asarray(values, dtype=np.float64)
    if values.shape not in ((), (networks,)) or not (np.isfinite(values).all() and (values >= 0).all()):
        raise ValueError(
            f"Argument `{name}` must be a number of 0 or more, or one for each of the {networks} networks. Received: "
            f"{values.tolist()!r}"
        )
    return np.broadcast_to(values, (networks,))
