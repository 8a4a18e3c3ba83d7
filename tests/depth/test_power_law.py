"""Power laws against SciPy's linear regression, coverage of their intervals, and verdicts."""

import numpy as np
import pytest
import scipy.stats

from idmatters_tf.depth import fit_power_law

DEPTHS = np.repeat([2.0, 4.0, 8.0, 16.0], 3)
MIXED = np.array([np.nan, 1, 1, np.inf, 1, 1, 1e-3, -1, 1, -1, 1, 1])


def noisy(exponent, deviation, seed=0):
    return -3 * DEPTHS**exponent * np.exp(np.random.default_rng(seed).normal(0, deviation, len(DEPTHS)))


def test_fit_is_that_of_scipy():
    values = noisy(0.7, 0.2)
    law, expected = fit_power_law(DEPTHS, values), scipy.stats.linregress(np.log(DEPTHS), np.log(-values))
    half = scipy.stats.t.ppf(0.975, len(DEPTHS) - 2) * expected.stderr
    interval = [expected.slope, expected.slope - half, expected.slope + half]
    np.testing.assert_allclose([law.exponent, law.low, law.high], interval, rtol=1e-12)
    assert law.scale == pytest.approx(-np.exp(expected.intercept))
    assert law.verdict().startswith(f"grows like depth^{law.exponent:.2f} (95 % interval {law.low:.2f} to ")


def test_prediction_intervals_contain_19_of_20_new_values():
    inside, rng = 0, np.random.default_rng(1)
    for seed in range(1000):
        prediction = fit_power_law(DEPTHS, noisy(0.7, 0.2, seed)).predict(64)
        inside += prediction.low <= -3 * 64**0.7 * np.exp(rng.normal(0, 0.2)) <= prediction.high
    assert 930 <= inside <= 970


@pytest.mark.parametrize(
    ("values", "errors", "state", "words"),
    [
        (noisy(0.01, 0.01), 0, "constant", "does not depend on depth (exponent 0.01, 95 % interval 0.00 to 0.01)"),
        (noisy(-1, 0.1), 0, "falls", "falls like depth^-1.0"),
        (noisy(0, 0.5, 1), 0, "undetermined", "may or may not depend on depth"),
        (2.0**DEPTHS, 0, "no power law", "follows no power law"),
        (noisy(1, 1.0), 0, "grows", "grows like"),  # means deviate by the scatter of the seeds
        (noisy(1, 0.1), 1000, "zero", "cannot be distinguished from zero"),
        (MIXED, 0.1, "undefined", "it is not defined at depth 2 and infinite or not resolved at depth 4 and "),
        (MIXED, 0.1, "undefined", "and below its error at depth 8 and of another sign at depth 8, 16"),
    ],
)
def test_verdicts(values, errors, state, words):
    law = fit_power_law(DEPTHS, values, errors)
    prediction = law.predict(32)
    assert law.state == state
    assert words in law.verdict()
    assert np.isnan(prediction).all() == (state in ("no power law", "undefined"))
    assert (prediction == (0, 0, 0)) == (state == "zero")
