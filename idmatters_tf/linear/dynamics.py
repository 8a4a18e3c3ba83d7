"""Full-batch gradient descent of many deep linear networks in parallel, on second moments in place of data.

The loss is Li et al.'s, L = ||Y - f X||_F^2 / (2m). A regression on at most d samples with the same second moments has
the same gradient, and the cost of a step does not depend on the number of samples.
"""

# pyright: reportConstantRedefinition=false
# Matrices have uppercase names, and checked arguments are reassigned.

import dataclasses
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar, cast

import joblib  # pyright: ignore[reportMissingTypeStubs]
import numpy as np
from numpy.typing import ArrayLike

from idmatters_tf._arguments import non_negative_integer, positive_integer
from idmatters_tf.linear._arguments import Booleans, Floats, Integers, real_array
from idmatters_tf.linear.network import layer_norms
from idmatters_tf.linear.statistics import regression

# Factor of the initial loss beyond which a network counts as diverged; the next steps overflow.
DIVERGED = 1e6

# Starting processes takes about a second, in which one core does this many multiplications in small matrices.
WORTH_PROCESSES = 1e9


@dataclasses.dataclass(frozen=True)
class Trajectories:
    """Histories of many runs. Entries of a network are NaN after its divergence.

    Attributes:
        steps: number of updates before each record, (records,).
        excess_risk: L - L_min, (networks..., records).
        gradient_norm: Frobenius norm of the full gradient, (networks..., records); infinite if its square overflows.
        layer_norms: spectral norms of the layers W[r, l], (networks..., records, units, n).
        tau: largest spectral norm of (map of a unit - I), (networks..., records). For n = 1 with shortcuts it is
            Hardt & Ma's |||A|||, and for plain networks that of A_i = W_i - I.
        diverged_at: first step with an excess risk that is not finite or above 1e6 times the initial one, to which the
            initial penalty of the weight decay is added, (networks...) int; -1 without divergence.
        weights: final weights, (networks..., units, n, d, d); NaN for diverged networks.
    """

    steps: Integers
    excess_risk: Floats
    gradient_norm: Floats
    layer_norms: Floats
    tau: Floats
    diverged_at: Integers
    weights: Floats

    @property
    def inside(self) -> Booleans:
        """Records inside the ball tau < 1, (networks..., records) bool.

        For n = 1, gradient dominance (2.3) guarantees progress in it.
        """
        return self.tau < 1


def gradient_descent(
    W: ArrayLike,
    sxx: ArrayLike,
    syx: ArrayLike,
    learning_rates: ArrayLike,
    steps: int,
    *,
    shortcut: bool = True,
    record_every: int = 1,
) -> Trajectories:
    """Run gradient descent W <- W - rate * dL/dW of many networks of the same shape in parallel.

    Source: Li et al., Eq. 7. Diverged networks are removed and do not affect the others.

    Args:
        W: starting points, (networks, units, n, d, d).
        sxx: X X^T / m, (d, d).
        syx: Y X^T / m, (d, d).
        learning_rates: a number, or one for each network.
        steps: number of updates.
        shortcut: False for plain networks.
        record_every: number of updates between records. The start and the end are always recorded.

    Returns:
        `Trajectories`.
    """
    W = real_array("W", W, ("networks", "units", "n", "d", "d"))
    networks = len(W)
    d = W.shape[-1]
    rates = np.broadcast_to(real_array("learning_rates", learning_rates, None), (networks,))
    steps = non_negative_integer("steps", steps)
    # All larger numbers are equivalent.
    record_every = min(positive_integer("record_every", record_every), steps + 1)
    root, targets = regression(real_array("sxx", sxx, (d, d)), real_array("syx", syx, (d, d)))

    recorded = np.append(np.arange(0, steps, record_every), steps)
    histories = _empty_histories(W, recorded)
    # Layers are the first axes, so that each layer is one block of memory for all networks.
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
            active = active[fine]
            excess = excess[fine]
            layers = layers[:, :, fine]
            if not active.size:
                break
            descent = _Descent(layers, root, targets, shortcut)
            descent.forward(layers)
        records = step % record_every == 0 or step == steps
        record = active, np.searchsorted(recorded, step)
        if records:
            norms = layer_norms(layers)
            histories.excess_risk[record] = excess
            histories.layer_norms[record] = norms.transpose(2, 0, 1)
            histories.tau[record] = _unit_norms(layers, norms, shortcut).max(axis=0)
        # The last gradient is only recorded.
        used = rates[active] if step < steps else np.zeros(active.size)
        squared_norms = descent.backward(layers, used, measure=records)
        if records:
            histories.gradient_norm[record] = np.sqrt(squared_norms)
    histories.weights[active] = layers.transpose(2, 0, 1, 3, 4)
    return histories


def _empty_histories(W: Floats, recorded: Integers) -> Trajectories:
    records = len(W), len(recorded)
    return Trajectories(
        recorded,
        excess_risk=np.full(records, np.nan),
        gradient_norm=np.full(records, np.nan),
        layer_norms=np.full((*records, *W.shape[1:3]), np.nan),
        tau=np.full(records, np.nan),
        diverged_at=np.full(len(W), -1),
        weights=np.full(W.shape, np.nan),
    )


Name = TypeVar("Name", bound=Hashable)


def sweep(
    starts: Mapping[Name, tuple[ArrayLike, bool]],
    sxx: ArrayLike,
    syx: ArrayLike,
    learning_rates: ArrayLike,
    steps: int,
    *,
    record_every: int = 1,
    workers: int | None = None,
) -> dict[Name, Trajectories]:
    """Run gradient descent from every start with every learning rate, on all cores.

    Args:
        starts: dict of `(W, shortcut)` by name, with W of shape (seeds, units, n, d, d). Shapes may differ by name.
        sxx: X X^T / m, (d, d).
        syx: Y X^T / m, (d, d).
        learning_rates: (rates,).
        steps: see `gradient_descent`.
        record_every: see `gradient_descent`.
        workers: number of processes; if None, the number of cores, or one for small sweeps. The result does not depend
            on it.

    Returns:
        Dict of `Trajectories` by name, with leading axes (seeds, rates).
    """
    rates = real_array("learning_rates", learning_rates, ("rates",))
    steps = non_negative_integer("steps", steps)
    shape = ("seeds", "units", "n", "d", "d")
    checked = {name: (real_array(f"starts[{name!r}]", W, shape), shortcut) for name, (W, shortcut) in starts.items()}
    if workers is None:
        multiplications = sum(W.size * W.shape[-1] for W, _ in checked.values()) * len(rates) * steps * 3
        workers = joblib.cpu_count() if multiplications > WORTH_PROCESSES else 1

    # The longest runs start first, to balance the load. Threads are too slow, because short NumPy calls mostly wait for
    # the interpreter lock.
    order = sorted(checked, key=lambda name: -checked[name][0].size)
    parallel = joblib.Parallel(n_jobs=min(positive_integer("workers", workers), max(len(order), 1)))
    arguments = sxx, syx, rates, steps, record_every
    descend = cast("Callable[..., Any]", joblib.delayed(_run_every_rate))  # pyright: ignore[reportUnknownMemberType]
    descents = cast("list[Trajectories]", parallel(descend(*checked[name], *arguments) for name in order))
    results = dict(zip(order, descents, strict=True))
    return {name: results[name] for name in checked}


def _run_every_rate(
    W: Floats,
    shortcut: bool,
    sxx: ArrayLike,
    syx: ArrayLike,
    rates: Floats,
    steps: int,
    record_every: int,
) -> Trajectories:
    networks = np.repeat(W, len(rates), axis=0), sxx, syx, np.tile(rates, len(W))
    flat = gradient_descent(*networks, steps, shortcut=shortcut, record_every=record_every)
    histories = {
        name: values.reshape(len(W), len(rates), *values.shape[1:])
        for name, values in vars(flat).items()
        if name != "steps"
    }
    return Trajectories(flat.steps, **histories)


class _Descent:
    """Steps of gradient descent of many networks, by backpropagation of at most d samples.

    Each layer is updated as soon as its gradient is computed, while it is in the cache: memory access, not arithmetic,
    determines the time of a step. The arrays of results are reused.

    Args:
        layers: (units, n, networks, d, d).
        root, targets: (d, rank), see `idmatters_tf.linear.statistics.regression`.
        shortcut: True if each unit adds its input.
    """

    def __init__(self, layers: Floats, root: Floats, targets: Floats, shortcut: bool):
        units, n, networks, d, _ = layers.shape
        self._targets = targets
        self._shortcut = shortcut
        self._inputs = np.empty((units, n, networks, d, root.shape[1]))
        self._inputs[0, 0] = root
        self._output, *self._spares = (np.empty(self._inputs.shape[2:]) for _ in range(3))
        self._gradient = np.empty(layers.shape[2:])

    def forward(self, layers: Floats) -> Floats:
        """Compute the excess risk of each network, (networks,).

        Overflow indicates divergence and causes no warning.
        """
        inputs = self._inputs
        units, n = layers.shape[:2]
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

    def backward(self, layers: Floats, rates: Floats, measure: bool) -> Floats:
        """Update the layers in place, after `forward`.

        Args:
            layers: (units, n, networks, d, d).
            rates: learning rates, (networks,).
            measure: True computes the norms of the gradients.

        Returns:
            Squared Frobenius norms of the gradients before the update, (networks,); zeros without `measure`.
        """
        units, n, networks = layers.shape[:3]
        squared_norms = np.zeros(networks)
        steps = -rates[:, None, None]
        error = self._output
        one, other = self._spares
        gradient = self._gradient
        with np.errstate(over="ignore", invalid="ignore"):
            if not measure:
                # All gradients are linear in the error, which is scaled once in place of each gradient.
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
                    weights += gradient
                    behind, before, free = before, free, before
                if self._shortcut:
                    error += behind
                else:
                    error, one, other = (behind, error, other) if behind is one else (behind, one, error)
        return squared_norms


def _unit_norms(layers: Floats, norms: Floats, shortcut: bool) -> Floats:
    """Compute the spectral norms of (map of a unit - I), (units, networks).

    Args:
        layers: (units, n, networks, d, d).
        norms: spectral norms of the layers, (units, n, networks).
        shortcut: True if each unit adds its input.
    """
    if shortcut and layers.shape[1] == 1:
        return norms[:, 0]
    branch = layers[:, 0]
    for layer in range(1, layers.shape[1]):
        branch = layers[:, layer] @ branch
    return layer_norms(branch if shortcut else branch - np.eye(layers.shape[-1]))
