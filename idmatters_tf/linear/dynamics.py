"""Full-batch gradient descent of many deep linear networks at once, on second moments instead of data.

The loss is Li et al.'s, L = ||Y - f X||_F^2 / (2m); a regression on at most d samples with the same second moments has
the same gradient, so that the cost of a step does not depend on the number of samples.
"""

# pyright: reportConstantRedefinition=false
# Matrices have capital letters, and an argument is checked under its own name.

import dataclasses
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar, cast

import joblib  # pyright: ignore[reportMissingTypeStubs]
import numpy as np
from numpy.typing import ArrayLike

from idmatters_tf.linear._arguments import (
    Booleans,
    Floats,
    Integers,
    non_negative_integer,
    positive_integer,
    real_array,
)
from idmatters_tf.linear.network import layer_norms
from idmatters_tf.linear.statistics import regression

# A loss this many times the first one has diverged: from there on the next steps overflow.
DIVERGED = 1e6

# Starting processes takes about a second; one core does this many multiplications of small matrices in that time.
WORTH_PROCESSES = 1e9


@dataclasses.dataclass(frozen=True)
class Trajectories:
    """Histories of many runs. A diverged network's entries are NaN from its divergence on.

    Attributes:
        steps: (records,) after how many updates each record was made.
        excess_risk: L - L_min, (networks..., records).
        gradient_norm: Frobenius norm of the whole gradient (without weight decay), (networks..., records); infinite
            where its square overflows.
        layer_norms: spectral norms of the layers W[r, l], (networks..., records, units, n).
        tau: the largest spectral norm of (unit's map - I), (networks..., records). For n = 1 with shortcuts it is
            Hardt & Ma's |||A|||, and for plain networks that of A_i = W_i - I.
        inside: whether tau < 1, (networks..., records) bool: for n = 1 the ball in which gradient dominance (2.3)
            guarantees progress.
        diverged_at: (networks...) int, the step at which the loss was first not finite or 1e6 times the first one; -1
            where it never was.
        weights: the last ones, (networks..., units, n, d, d); those of diverged networks are NaN.
    """

    steps: Integers
    excess_risk: Floats
    gradient_norm: Floats
    layer_norms: Floats
    tau: Floats
    inside: Booleans
    diverged_at: Integers
    weights: Floats

    def reshaped(self, *networks: int) -> "Trajectories":
        """The same with other leading axes, e.g. (seeds, rates) for seeds * rates networks."""
        old = self.diverged_at.ndim
        return Trajectories(
            self.steps,
            *(
                getattr(self, field.name).reshape(*networks, *getattr(self, field.name).shape[old:])
                for field in dataclasses.fields(self)[1:]
            ),
        )


def gradient_descent(
    W: ArrayLike,
    sxx: ArrayLike,
    syx: ArrayLike,
    learning_rates: ArrayLike,
    steps: int,
    shortcut: bool = True,
    weight_decay: ArrayLike = 0.0,
    record_every: int = 1,
) -> Trajectories:
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
    steps = non_negative_integer("steps", steps)
    # Beyond the end any larger number is the same.
    record_every = min(positive_integer("record_every", record_every), steps + 1)
    root, targets = regression(real_array("sxx", sxx, (d, d)), real_array("syx", syx, (d, d)))

    recorded = np.append(np.arange(0, steps, record_every), steps)
    histories = _Histories(recorded, W.shape)
    # Layers first: a step walks through them, and each is then one block of memory for all networks.
    layers = W.transpose(1, 2, 0, 3, 4).copy()
    active = np.arange(networks)
    descent = _Descent(layers, root, targets, shortcut)
    with np.errstate(over="ignore"):
        limits = DIVERGED * np.maximum(descent.forward(layers), np.finfo(np.float64).tiny)
    for step in range(steps + 1):
        excess = descent.forward(layers)
        fine = np.isfinite(excess) & (excess <= limits[active])
        if not fine.all():
            histories.diverged_at[active[~fine]] = step
            active, excess, layers = active[fine], excess[fine], layers[:, :, fine]
            if not active.size:
                break
            descent = _Descent(layers, root, targets, shortcut)
            descent.forward(layers)
        records = step % record_every == 0 or step == steps
        if records:
            histories.record(step, active, layers, excess, shortcut)
        # The last gradient is for the record alone.
        factors = (rates[active], decays[active]) if step < steps else (np.zeros(active.size), np.zeros(active.size))
        squared_norms = descent.backward(layers, *factors, measure=records)
        if records:
            histories.record_gradient(step, active, squared_norms)
    histories.weights[active] = layers.transpose(2, 0, 1, 3, 4)
    return histories.trajectories()


Name = TypeVar("Name", bound=Hashable)


def sweep(
    starts: Mapping[Name, tuple[ArrayLike, bool]],
    sxx: ArrayLike,
    syx: ArrayLike,
    learning_rates: ArrayLike,
    steps: int,
    weight_decay: float = 0.0,
    record_every: int = 1,
    workers: int | None = None,
) -> dict[Name, Trajectories]:
    """Gradient descent from every start with every learning rate, on all cores.

    Args:
        starts: by name, `(W, shortcut)` with W of shape (seeds, units, n, d, d); shapes may differ from name to name.
        sxx, syx: (d, d).
        learning_rates: (rates,).
        steps, weight_decay, record_every: see `gradient_descent`.
        workers: the number of processes; if None as many as there are cores, or one if there is little to do. The
            result does not depend on it.

    Returns:
        A dict by name of `Trajectories` whose leading axes are (seeds, rates).
    """
    rates = real_array("learning_rates", learning_rates, ("rates",))
    steps = non_negative_integer("steps", steps)
    shape = ("seeds", "units", "n", "d", "d")
    checked = {name: (real_array(f"starts[{name!r}]", W, shape), shortcut) for name, (W, shortcut) in starts.items()}
    if workers is None:
        multiplications = sum(W.size * W.shape[-1] for W, _ in checked.values()) * len(rates) * steps * 3
        workers = joblib.cpu_count() if multiplications > WORTH_PROCESSES else 1

    # The longest first, so that no core waits for one that started late. Threads would not do: NumPy's calls are so
    # short here that they spend the time waiting for the interpreter's lock.
    order = sorted(checked, key=lambda name: -checked[name][0].size)
    parallel = joblib.Parallel(n_jobs=min(positive_integer("workers", workers), max(len(order), 1)))
    arguments = sxx, syx, rates, steps, weight_decay, record_every
    every_rate = cast("Callable[..., Any]", joblib.delayed(_every_rate))  # pyright: ignore[reportUnknownMemberType]
    descents = cast("list[Trajectories]", parallel(every_rate(*checked[name], *arguments) for name in order))
    results = dict(zip(order, descents, strict=True))
    return {name: results[name] for name in checked}


def _every_rate(
    W: Floats,
    shortcut: bool,
    sxx: ArrayLike,
    syx: ArrayLike,
    rates: Floats,
    steps: int,
    weight_decay: float,
    record_every: int,
) -> Trajectories:
    networks = np.repeat(W, len(rates), axis=0), sxx, syx, np.tile(rates, len(W))
    return gradient_descent(*networks, steps, shortcut, weight_decay, record_every).reshaped(len(W), len(rates))


class _Descent:
    """Steps of gradient descent of many networks, by backpropagation of the at most d samples.

    Each layer is updated as soon as its gradient is known and before the next one's: what is needed of it is still in
    the cache then, and this, not the arithmetic, decides the time of a step. The arrays for results are kept from step
    to step.

    Args:
        layers: (units, n, networks, d, d).
        root, targets: (d, rank), see `idmatters_tf.linear.statistics.Regression`.
        shortcut: whether each unit adds its input.
    """

    def __init__(self, layers: Floats, root: Floats, targets: Floats, shortcut: bool):
        units, n, networks, d, _ = layers.shape
        self._targets, self._shortcut = targets, shortcut
        self._inputs = np.empty((units, n, networks, d, root.shape[1]))
        self._inputs[0, 0] = root
        self._output, *self._spares = (np.empty(self._inputs.shape[2:]) for _ in range(3))
        self._gradient = np.empty(layers.shape[2:])

    def forward(self, layers: Floats) -> Floats:
        """The excess risk of each network, (networks,). Overflow is how divergence is seen: no warning."""
        inputs, (units, n) = self._inputs, layers.shape[:2]
        with np.errstate(over="ignore", invalid="ignore"):
            for r in range(units):
                for layer in range(n - 1):
                    np.matmul(layers[r, layer], inputs[r, layer], out=inputs[r, layer + 1])
                output = inputs[r + 1, 0] if r + 1 < units else self._output
                np.matmul(layers[r, n - 1], inputs[r, n - 1], out=output)
                if self._shortcut:
                    output += inputs[r, 0]
            self._output -= self._targets
            return np.einsum("kij,kij->k", self._output, self._output) / 2

    def backward(self, layers: Floats, rates: Floats, decays: Floats, measure: bool) -> Floats:
        """Updates the layers in place, after `forward`.

        Args:
            rates, decays: (networks,).
            measure: whether the gradient is measured.

        Returns:
            The squared Frobenius norms of the gradients before the update, (networks,); zeros if not measured.
        """
        units, n, networks = layers.shape[:3]
        squared_norms = np.zeros(networks)
        steps, keeps = -rates[:, None, None], (1 - rates * decays)[:, None, None]
        error, one, other, gradient = self._output, *self._spares, self._gradient
        decaying = decays.any()
        with np.errstate(over="ignore", invalid="ignore"):
            if not measure:
                # All gradients are linear in the error: scaled once, they need not be scaled each.
                error *= steps
            for r in reversed(range(units)):
                behind, before, free = error, one, other
                for layer in reversed(range(n)):
                    weights = layers[r, layer]
                    np.matmul(behind, self._inputs[r, layer].swapaxes(-1, -2), out=gradient)
                    np.matmul(weights.swapaxes(-1, -2), behind, out=before)
                    if measure:
                        squared_norms += np.einsum("kij,kij->k", gradient, gradient)
                        gradient *= steps
                    if decaying:
                        weights *= keeps
                    weights += gradient
                    behind, before, free = before, free, before
                if self._shortcut:
                    error += behind
                else:
                    error, one, other = (behind, error, other) if behind is one else (behind, one, error)
        return squared_norms


class _Histories:
    """Arrays that fill up while the networks descend."""

    def __init__(self, recorded: Integers, shape: tuple[int, ...]):
        networks, units, n = shape[:3]
        self.steps = recorded
        self.excess_risk, self.gradient_norm, self.tau = (np.full((networks, len(recorded)), np.nan) for _ in range(3))
        self.layer_norms = np.full((networks, len(recorded), units, n), np.nan)
        self.diverged_at = np.full(networks, -1)
        self.weights = np.full(shape, np.nan)

    def record_gradient(self, step: int, active: Integers, squared_norms: Floats) -> None:
        self.gradient_norm[active, np.searchsorted(self.steps, step)] = np.sqrt(squared_norms)

    def record(self, step: int, active: Integers, layers: Floats, excess: Floats, shortcut: bool) -> None:
        record = np.searchsorted(self.steps, step)
        self.excess_risk[active, record] = excess
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

    def trajectories(self) -> Trajectories:
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


def _one_each(name: str, values: ArrayLike, networks: int) -> Floats:
    checked = real_array(name, values, None)
    if checked.shape not in ((), (networks,)) or (checked < 0).any():
        raise ValueError(
            f"Argument `{name}` must be a number of 0 or more, or one for each of the {networks} networks. Received: "
            f"{checked.tolist()!r}"
        )
    return np.broadcast_to(checked, (networks,))
