"""The experiments of Li et al., *Demystifying ResNet*, section 5: networks in, a table of numbers and a verdict out.

Every experiment is a function that yields once for each piece of work done and returns its rows, dicts with the same
keys; the functions whose names end in `_verdict` say whether the paper's claim is seen in them. "lg" is the logarithm
to base 10, as in the paper's figures; a depth counts layers of weights.
"""

import concurrent.futures
import itertools

import joblib
import numpy as np

from idmatters_tf import linear
from idmatters_tf.curvature.spectrum import summarize
from trainers.shortcuts.curves import interpolated
from trainers.shortcuts.networks import LINEAR_KINDS, RELU_KINDS, linear_descent, relu_descent


def conditions(statistics, depths, runs, seed):
    """Figure 5: condition numbers of the Hessian at the start, by the closed form, against depth.

    A condition number is at most 1 / (P eps) here: what is beyond that is rounding in the 10th percentile.
    """
    rows = []
    with _pool() as pool:
        for kind, network in LINEAR_KINDS.items():
            for depth in depths:
                if depth % network.n:
                    continue
                starts = network.starts(depth, len(statistics.sxx), runs, seed)
                found = []
                for summary in pool.map(lambda W, network=network: _summary_at(W, statistics, network), starts):
                    found.append(summary)
                    yield f"{kind}, depth {depth}"
                limit = 1 / (starts[0].size * np.finfo(np.float64).eps)
                lg = np.log10([min(summary.condition, limit) for summary in found])
                row = {"kind": kind, "depth": depth, "runs": runs, "lg_condition": lg.mean()}
                row |= {"deviation": _deviation(lg), "at_limit": int(np.sum(lg >= np.log10(limit)))}
                row |= {"lg_max_abs": np.mean([np.log10(summary.max_abs) for summary in found])}
                rows.append(row | {"index": np.mean([summary.index for summary in found])})
    return rows


def _summary_at(W, statistics, network):
    return _summary(linear.shortcut_hessian(W, statistics.sxx, statistics.syx, network.shortcut))


def _summary(H):
    return summarize(np.linalg.eigvalsh(H), tolerance=0.0)


def _pool():
    """Threads for eigenvalues, which NumPy computes without Python's lock; see `trainers.shortcuts` on BLAS threads."""
    return concurrent.futures.ThreadPoolExecutor(joblib.cpu_count())


def conditions_verdict(rows):
    """The claim: constant for 2-shortcuts, growing without bound for Xavier, orthogonal and 1-shortcuts."""
    change = {}
    for kind in LINEAR_KINDS:
        curve = sorted((row["depth"], row["lg_condition"]) for row in rows if row["kind"] == kind)
        if len(curve) > 1:
            change[kind] = curve[-1][1] - curve[0][1], curve[0][0], curve[-1][0]
    if "2-shortcut" not in change or "xavier" not in change:
        return None, "needs two even depths at least"
    seen = abs(change["2-shortcut"][0]) < 0.3 and all(
        change[kind][0] > 0.3 for kind in ("xavier", "orthogonal", "1-shortcut") if kind in change
    )
    numbers = "; ".join(
        f"{kind} x {10**lg:.3g} from depth {first} to {last}" for kind, (lg, first, last) in change.items()
    )
    return seen, f"initial condition numbers, constant for 2-shortcuts, growing for the rest but 3-shortcuts: {numbers}"


def best_rates(losses, rates):
    """The rate with the lowest mean of the final losses over the runs, and that mean; infinite for diverged runs.

    Args:
        losses: (runs, rates), not finite where a run diverged.
        rates: (rates,).
    """
    means = np.where(np.isfinite(losses), losses, np.inf).mean(axis=0)
    best = int(np.argmin(means))
    return float(rates[best]), float(means[best])


def final_losses(problem, kinds, depth, activation, rates, runs, epochs, seed):
    """By kind (runs, rates) of final losses, less the optimum for linear networks."""
    networks = {kind: _kinds(activation)[kind] for kind in kinds}
    starts = {kind: network.starts(depth, len(problem.X), runs, seed) for kind, network in networks.items()}
    if activation == "linear":
        named = {kind: (W, networks[kind].shortcut) for kind, W in starts.items()}
        found = linear.sweep(named, *problem.statistics[:2], rates, epochs, record_every=epochs)
        return {kind: trajectories.excess_risk[..., -1] for kind, trajectories in found.items()}
    losses = {}
    for kind, W in starts.items():
        W, each = np.repeat(W, len(rates), axis=0), np.tile(rates, runs)
        *_, last = relu_descent(W, problem.X, problem.Y, each, epochs, networks[kind].shortcut, epochs, "float32")
        losses[kind] = last[1].reshape(runs, len(rates)).astype(np.float64)
    return losses


def sweep(problem, activation, depths, rates, runs, epochs, seed):
    """Figures 9 and 10: final losses, averaged over the runs, for every learning rate."""
    rows = []
    for depth in depths:
        kinds = [kind for kind, network in _kinds(activation).items() if depth % network.n == 0]
        for kind, losses in final_losses(problem, kinds, depth, activation, rates, runs, epochs, seed).items():
            best, _ = best_rates(losses, rates)
            for rate, values in zip(rates, losses.T, strict=True):
                row = {"activation": activation, "kind": kind, "depth": depth, "rate": rate, "best": rate == best}
                diverged = int(np.sum(~np.isfinite(values)))
                mean = None if diverged else float(values.mean())
                rows.append(row | {"loss": mean, "diverged": diverged, "runs": runs, "deviation": _deviation(values)})
        yield f"{activation}, depth {depth}"
    return rows


def sweep_verdict(rows):
    """The claim: 2-shortcut networks end lower than the others at large depth, and take higher learning rates there."""
    best = {}
    for row in rows:
        if row["best"] and row["loss"] is not None:
            best[row["kind"], row["depth"]] = row
    deepest = max((depth for kind, depth in best if kind == "2-shortcut"), default=None)
    others = [kind for kind in ("xavier", "orthogonal") if (kind, deepest) in best]
    if not others:
        return None, "needs a depth that 2-shortcuts and others have"
    ours = best["2-shortcut", deepest]
    theirs = {kind: best[kind, deepest] for kind in others}
    kept = [row["loss"] for (kind, _), row in best.items() if kind == "2-shortcut"]
    seen = all(ours["loss"] < row["loss"] for row in theirs.values())
    numbers = ", ".join(f"{kind} {row['loss']:.3g} (rate {row['rate']:.2g})" for kind, row in theirs.items())
    return seen, (
        f"{ours['activation']}, depth {deepest}, lowest mean final loss: 2-shortcut {ours['loss']:.3g} (rate "
        f"{ours['rate']:.2g}) against {numbers}; 2-shortcuts of all depths {min(kept):.3g} to {max(kept):.3g}"
    )


def norms(problem, activation, depths, rates, runs, epochs, every, seed):
    """Figure 3: the mean Frobenius norm of the weights of 2-shortcut networks against the loss in training.

    Each depth descends with the best of the learning rates on two runs.
    """
    network = _kinds(activation)["2-shortcut"]
    rows = []
    for depth in depths:
        losses = final_losses(problem, ["2-shortcut"], depth, activation, rates, min(runs, 2), epochs, seed)
        rate, _ = best_rates(losses["2-shortcut"], rates)
        yield f"{activation}, depth {depth}"
        for epoch, loss, _, W in _descent(problem, network, depth, activation, rate, runs, epochs, every, seed):
            means = np.linalg.norm(W, axis=(-2, -1)).reshape(runs, -1).mean(axis=1)
            for run in range(runs):
                row = {"activation": activation, "depth": depth, "run": run, "rate": rate, "epoch": epoch}
                rows.append(row | {"loss": float(loss[run]), "mean_frobenius": float(means[run])})
        yield f"{activation}, depth {depth}"
    return rows


def norms_verdict(rows):
    """The claim: the deeper the network, the smaller its mean norm, at the same loss."""
    curves = {}
    for row in rows:
        if np.isfinite(row["loss"]) and row["loss"] > 0:
            curves.setdefault(row["depth"], []).append((np.log10(row["loss"]), row["mean_frobenius"]))
    # The lowest loss that every depth reaches.
    level = max(min(lg for lg, _ in curve) for curve in curves.values())
    at_level = {}
    for depth, curve in sorted(curves.items()):
        lg, norm = np.array(sorted(curve)).T
        at_level[depth] = float(np.interp(level, lg, norm))
    values = list(at_level.values())
    if len(values) < 2:
        return None, "needs two depths at least"
    seen = all(deeper < shallower for shallower, deeper in itertools.pairwise(values))
    numbers = ", ".join(f"{norm:.3f} at depth {depth}" for depth, norm in at_level.items())
    return seen, f"{rows[0]['activation']}, mean Frobenius norm at lg loss {level:.2f} falls with depth: {numbers}"


def trajectory(problem, activation, depth, rates, runs, epochs, records, every, seed, make_hessian):
    """Figures 6 to 8: the Hessian's spectrum against the loss while networks train.

    Each kind descends with the rate whose mean final loss is lowest, none of its runs diverging.

    Args:
        records: for how many moments of each run the spectrum is computed, spread evenly over the logarithm of the
            loss; three times as many for the first run.
        every: instead, every so many epochs; None for `records`.
        make_hessian: `make_hessian(kind)` returns a function from weights (units, n, d, d) to the dense Hessian.
    """
    rows = []
    kinds = ("xavier", "orthogonal", "2-shortcut")
    losses = final_losses(problem, kinds, depth, activation, rates, runs, epochs, seed)
    for kind in kinds:
        network, (rate, _) = _kinds(activation)[kind], best_rates(losses[kind], rates)
        # Every epoch is kept: which ones are wanted is known at the end.
        history = list(_descent(problem, network, depth, activation, rate, runs, epochs, 1, seed))
        hessian = make_hessian(kind)
        for run in range(runs):
            loss = np.array([values[run] for _, values, _, _ in history])
            count = records * (3 if run == 0 else 1)
            chosen = _spread_over_loss(loss, count) if every is None else range(0, epochs + 1, every)
            # The rate was chosen in other rounding: a run may diverge all the same, and ends there.
            finite = np.isfinite(np.array([np.sum(W[run]) for _, _, _, W in history])) & np.isfinite(loss)
            chosen = [epoch for epoch in chosen if finite[: epoch + 1].all()]
            with _pool() as pool:
                spectra = [pool.submit(_summary, hessian(history[epoch][3][run])) for epoch in chosen]
            for epoch, spectrum in zip(chosen, (future.result() for future in spectra), strict=True):
                row = {"activation": activation, "kind": kind, "depth": depth, "run": run, "rate": rate, "epoch": epoch}
                row |= {"loss": float(loss[epoch]), "max_abs": spectrum.max_abs, "p10_abs": spectrum.p10_abs}
                rows.append(row | {"index": spectrum.index, "gradient_norm": float(history[epoch][2][run])})
            yield f"{activation} {kind}, run {run}"
    return rows


def trajectory_verdict(rows):
    """The claims: smaller condition numbers of 2-shortcuts at equal losses, and a smaller index that drops early."""
    conditions, indices = (_at_common_losses(rows, column) for column in ("condition", "index"))
    if conditions is None:
        return None, "the kinds have no losses in common"
    # What the paper shows of Figures 6 and 7 are orthogonal and 2-shortcut networks; Xavier is beside them here.
    ours, theirs = conditions["2-shortcut"], conditions["orthogonal"]
    high = np.mean(theirs[-len(theirs) // 3 :] - ours[-len(ours) // 3 :])
    smaller = np.mean(ours < theirs)
    first = [row for row in rows if row["kind"] == "2-shortcut" and row["run"] == 0]
    peak = max(first, key=lambda row: row["gradient_norm"])
    index = (
        f"index of 2-shortcuts {first[0]['index']:.2f} at the start, {peak['index']:.2f} at the largest gradient "
        f"(epoch {peak['epoch']}), {first[-1]['index']:.2f} at the end"
    )
    lower = np.mean(indices["2-shortcut"] < indices["orthogonal"])
    seen = bool(smaller > 0.9 and high > 0)
    return seen, (
        f"{rows[0]['activation']}, condition number of 2-shortcuts below orthogonal's at {100 * smaller:.0f} % of the "
        f"common losses, x {10**high:.3g} smaller in the upper third; index below at {100 * lower:.0f} %; {index}"
    )


def _at_common_losses(rows, column, points=40):
    """The means over runs at the losses that orthogonal and 2-shortcut networks both pass; by kind."""
    compared = ("orthogonal", "2-shortcut")
    kinds = {kind: [row for row in rows if row["kind"] == kind and row["loss"] > 0] for kind in compared}
    if not all(kinds.values()):
        return None
    spans = []
    for of_kind in kinds.values():
        by_run = {}
        for row in of_kind:
            by_run.setdefault(row["run"], []).append(np.log10(row["loss"]))
        spans.append((max(map(min, by_run.values())), min(map(max, by_run.values()))))
    low, high = max(span[0] for span in spans), min(span[1] for span in spans)
    if low >= high:
        return None
    grid = np.linspace(low, high, points)
    return {kind: np.nanmean(interpolated(of_kind, column, grid), axis=0) for kind, of_kind in kinds.items()}


def _descent(problem, network, depth, activation, rate, runs, epochs, every, seed):
    W = network.starts(depth, len(problem.X), runs, seed)
    rates = np.full(runs, rate)
    if activation == "linear":
        return linear_descent(W, problem.statistics, rates, epochs, network.shortcut, every)
    return relu_descent(W, problem.X, problem.Y, rates, epochs, network.shortcut, every)


def _spread_over_loss(loss, count):
    """Epochs at which lg loss first passes evenly spaced levels; the first and the last among them."""
    loss = np.where(np.isfinite(loss), loss, np.inf)
    lg = np.minimum.accumulate(np.log10(np.maximum(loss, 1e-300)))
    levels = np.linspace(lg[0], lg[-1], count)
    return sorted({int(np.argmax(lg <= level)) for level in levels} | {len(loss) - 1})


def _kinds(activation):
    return LINEAR_KINDS if activation == "linear" else RELU_KINDS


def _deviation(values):
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
