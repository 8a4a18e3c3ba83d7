"""The experiments of `trainers.landscape`: random targets in, a table of numbers out.

Every experiment is a function that yields once for each piece of work done and returns its rows, dicts with the same
keys. The risk is Hardt & Ma's f - C, twice the excess risk of `idmatters_tf.linear.dynamics`; the inputs are white.
"""

import numpy as np

from idmatters_tf import linear

# Of the largest curvature at the optimum of smallest norm: far from divergence, near enough to the fastest rate.
RATE = 0.3
SMALL_START = 1e-3
ROUGH_START = 0.2


def random_target(dim, condition, determinant, seed):
    """R = U K V^T with Haar-distributed U and V and singular values evenly spread in logarithm, gamma smallest.

    Args:
        dim: d.
        condition: sigma_max / sigma_min; 1 for d = 1.
        determinant: +1 or -1, the sign of det R.
        seed: of NumPy's generator.

    Returns:
        (d, d) float64.
    """
    U, V = linear.initial_weights("orthogonal", 2, 1, dim, seed=seed)[:, 0]
    spread = np.linspace(0.5, -0.5, dim) if dim > 1 else np.zeros(1)
    R = U * condition**spread @ V.T
    if np.sign(np.linalg.slogdet(R)[0]) != determinant:
        R[:, 0] = -R[:, 0]
    return R


def learning_rate(R, depth):
    """A rate for L = f / 2: the curvature at a balanced optimum is at most about depth * sigma_max(R)^2."""
    return RATE / (depth * max(np.linalg.norm(R, 2), 1.0) ** 2)


def factorization(targets, depths):
    """(a) The norm |||A||| of every factorisation against depth, next to its bounds.

    Args:
        targets: by name, (d, d) with positive determinant.
        depths: a list.
    """
    rows = []
    for name, R in targets.items():
        for depth in depths:
            bounds = linear.factorization_bounds(R, depth)
            row = {"target": name, "depth": depth, "gamma": bounds.gamma, "theorem": bounds.theorem}
            row |= {"theorem_applies": bounds.theorem_applies, "polar_bound": bounds.polar, "lower_bound": bounds.lower}
            for method in ("polar", "paper", "log"):
                row[method] = _norm_or_nothing(R, depth, method)
            rows.append(row)
            yield
    return rows


def _norm_or_nothing(R, depth, method):
    try:
        return linear.tensor_norm(linear.factorize(R, depth, method))
    except ValueError:
        # Too shallow for the paper's construction, or no principal logarithm: an empty place in the table.
        return None


def descent(targets, depths, steps, record_every):
    """(b) Gradient descent: residual networks from zero, and both parameterisations from the same small start.

    Args:
        targets: by name, (d, d).
        depths: a list.
        steps, record_every: of gradient descent.
    """
    rows = []
    for name, R in targets.items():
        d = len(R)
        for depth in depths:
            small = SMALL_START * linear.initial_weights("xavier", depth, 1, d)
            for kind, start, shortcut in (
                ("residual from zero", np.zeros_like(small), True),
                ("residual", small, True),
                ("standard", small, False),
            ):
                found = linear.gradient_descent(
                    start[None], np.eye(d), R, learning_rate(R, depth), steps, shortcut, record_every=record_every
                )
                for k, step in enumerate(found.steps):
                    row = {"target": name, "depth": depth, "network": kind, "step": int(step)}
                    row |= {"risk": 2 * found.excess_risk[0, k], "gradient": 4 * found.gradient_norm[0, k] ** 2}
                    rows.append(row | _certificate(found, k, shortcut))
                yield
    return rows


def _certificate(found, k, shortcut):
    """tau and the two bounds (2.3) on the squared gradient of f at record k; none where (2.3) promises nothing.

    In the standard parameterisation tau is that of W_i - I, which starts outside the ball."""
    inside = bool(found.inside[0, k])
    bound = sharper = None
    if inside and shortcut:
        uniform, per_layer = linear.dominance_factors(found.layer_norms[0, k].ravel())
        bound, sharper = (float(factor) * 2 * found.excess_risk[0, k] for factor in (uniform, per_layer))
    return {"bound": bound, "per_layer_bound": sharper, "tau": found.tau[0, k], "inside": inside}


def augmentation(targets, depth, starts, steps, record_every):
    """(c) Gradient descent from small random starts on R with a negative determinant, and on diag(R, -1).

    A path that stays inside the ball keeps the sign of the determinant, so that the risk of R itself stays above
    sigma_min(R)^2, the distance to the singular maps; for diag(R, -1) the optimum lies on the start's side.

    Args:
        targets: by name, (d, d) with negative determinant.
        depth: of the networks.
        starts: how many for each problem.
        steps, record_every: of gradient descent.
    """
    rows = []
    for name, R in targets.items():
        barrier = float(np.linalg.svd(R, compute_uv=False)[-1] ** 2)
        for kind, target in (("as it is", R), ("augmented", linear.augment(R))):
            d, rate = len(target), learning_rate(R, depth) / 2
            start = ROUGH_START * linear.initial_weights("xavier", depth, 1, d, seed=1, networks=starts)
            found = linear.gradient_descent(start, np.eye(d), target, rate, steps, record_every=record_every)
            for number in range(starts):
                for k, step in enumerate(found.steps):
                    row = {"target": name, "problem": kind, "start": number, "depth": depth, "step": int(step)}
                    row |= {"risk": 2 * found.excess_risk[number, k], "tau": found.tau[number, k]}
                    rows.append(row | {"inside": bool(found.inside[number, k]), "barrier": barrier})
            yield
    return rows


def regularization(targets, depth, decays, steps):
    """(d) Which optimum weight decay finds from a start that is not small: |||A||| and risk against the rate.

    Args:
        targets: by name, (d, d) with positive determinant.
        depth: of the networks.
        decays: rates of weight decay.
        steps: of gradient descent.
    """
    rows = []
    for name, R in targets.items():
        d, decays = len(R), np.asarray(decays, dtype=float)
        bounds = linear.factorization_bounds(R, depth)
        start = 0.3 * linear.initial_weights("xavier", depth, 1, d, seed=2)
        starts = np.repeat(start[None], len(decays), axis=0)
        # The large start is steeper than the optimum.
        found = linear.gradient_descent(
            starts, np.eye(d), R, learning_rate(R, depth) / 2, steps, weight_decay=decays, record_every=steps
        )
        for k, decay in enumerate(decays):
            row = {"target": name, "depth": depth, "weight_decay": decay, "risk": 2 * found.excess_risk[k, -1]}
            row |= {
                "tau_at_start": found.tau[k, 0],
                "tau": found.tau[k, -1],
                "polar": _norm_or_nothing(R, depth, "polar"),
            }
            rows.append(row | {"lower_bound": bounds.lower, "theorem": bounds.theorem})
        yield
    return rows
