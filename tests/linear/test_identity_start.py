"""Descent from the identity: recursions, and the barrier of negative eigenvalues in exact arithmetic."""

from fractions import Fraction

import numpy as np
import pytest

from idmatters_tf import linear

# Rational, so that eigenvectors are exact: columns (3, 4) / 5 and (-4, 3) / 5.
BASIS = np.array([[Fraction(3, 5), Fraction(-4, 5)], [Fraction(4, 5), Fraction(3, 5)]])


def exact_target(eigenvalues):
    return BASIS * np.array(eigenvalues) @ BASIS.T


def exact_descent(eigenvalues, depth, rate, steps):
    """Return twice the excess risks of gradient descent from the identity, in rational arithmetic, layer by layer."""
    identity = np.array([[Fraction(1), Fraction(0)], [Fraction(0), Fraction(1)]])
    layers, risks = [identity] * depth, []
    for _ in range(steps + 1):
        below, above = [identity], [identity]
        for layer in layers:
            below.append(layer @ below[-1])
        for layer in reversed(layers):
            above.append(above[-1] @ layer)
        error = below[-1] - exact_target(eigenvalues)
        risks.append(np.sum(error * error))
        layers = [layer - rate * above[depth - 1 - j].T @ error @ below[j].T for j, layer in enumerate(layers)]
    return risks


def descend(depth, R, rate, steps, shortcut=False):
    start = linear.initial_weights("zero" if shortcut else "identity", depth, 1, len(R))
    return linear.gradient_descent(start[None], np.eye(len(R)), R, rate, steps, shortcut)


@pytest.mark.parametrize(("depth", "steps"), [(2, 6), (3, 4), (4, 3), (5, 3)])
@pytest.mark.parametrize("rate", [Fraction(1, 10), Fraction(5, 9), Fraction(2, 3), Fraction(3, 1)])
def test_in_exact_arithmetic_the_barrier_is_never_crossed(depth, steps, rate):
    # Up to 1 / (1 + 4/5) = 5/9 at any depth, and beyond it at even depths.
    eigenvalues = Fraction(2), Fraction(-4, 5)
    R = exact_target(eigenvalues).astype(float)
    barrier = linear.identity_start_barrier(R, depth, float(rate) * (1 - 1e-15))
    held = depth % 2 == 0 or rate <= Fraction(5, 9)
    assert barrier == pytest.approx(0.32 if held else 0, rel=1e-12)
    if held:
        assert all(risk >= eigenvalues[1] ** 2 for risk in exact_descent(eigenvalues, depth, rate, steps))


def test_the_condition_on_the_rate_is_sharp_for_odd_depths():
    # The other eigenvalue starts at its target.
    eigenvalues, rate = (Fraction(1), Fraction(-4, 5)), Fraction(5, 9) + Fraction(1, 100)
    assert linear.identity_start_barrier(np.diag([1.0, -0.8]), 3, float(rate)) == 0
    assert exact_descent(eigenvalues, 3, rate, 1)[1] < eigenvalues[1] ** 2


def test_one_layer_has_no_barrier():
    R = np.diag([2.0, -0.8])
    assert linear.identity_start_barrier(R, 1, 0.1) == 0
    assert descend(1, R, 0.1, 400).excess_risk[0, -1] < 1e-20
    risks = exact_descent((Fraction(2), Fraction(-4, 5)), 1, Fraction(1, 2), 5)
    assert risks[-1] < Fraction(4, 5) ** 2


def test_only_blocked_eigenvalues_count():
    R = np.diag([2.0, -0.5, -3.0])
    assert linear.identity_start_barrier(R, 3, 0.1) == pytest.approx((0.25 + 9) / 2)
    assert linear.identity_start_barrier(R, 3, 0.3) == pytest.approx(0.25 / 2)
    assert linear.identity_start_barrier(R, 2, 0.3) == pytest.approx((0.25 + 9) / 2)


def test_descent_stays_at_the_barrier_until_rounding_has_grown():
    basis = linear.initial_weights("orthogonal", 1, 1, 3, seed=2)[0, 0]
    R = basis * [2.0, 0.7, -0.8] @ basis.T
    rate = 0.2
    found = descend(2, R, rate, 400, shortcut=True).excess_risk[0]
    barrier = linear.identity_start_barrier((R + R.T) / 2, 2, rate)
    # Rounding errors of about 1e-16 grow by 1 + rate * 0.8 a step.
    crossed = np.argmax(found < barrier * (1 - 1e-9))
    assert 100 < crossed < 400
    assert found[crossed // 2] == pytest.approx(barrier, rel=1e-3)
    assert found[-1] < 1e-20


def test_recursions_that_diverge_are_nan():
    a = linear.scalar_recursions([2.0, 1.0], 3, 100.0, 20)
    assert np.isnan(a[-1, 0])
    assert (a[:, 1] == 1).all()
