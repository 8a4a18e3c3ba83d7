import numpy as np
import pytest

from trainers.training.schedule import LinearSchedule, Schedule


def rates(schedule, steps):
    return [float(schedule.rate(step)) for step in range(steps)]


def test_the_rate_drops_at_its_steps():
    np.testing.assert_allclose(rates(Schedule(0.2, (2, 4)), 6), [0.2, 0.2, 0.02, 0.02, 0.002, 0.002], rtol=1e-6)
    assert float(Schedule(0.2).rate(10**9)) == pytest.approx(0.2)


def test_the_rate_warms_up_and_drops():
    schedule = Schedule(0.1, (5,), drop_factor=10.0, warm_up_steps=2)
    np.testing.assert_allclose(rates(schedule, 7), [0.01, 0.01, 0.1, 0.1, 0.1, 0.01, 0.01], rtol=1e-6)


def test_the_linear_rate_rises_to_its_peak_and_falls_to_zero():
    expected = [0.1, 0.2, 0.3, 0.24, 0.18, 0.12, 0.06, 0.0]
    np.testing.assert_allclose(rates(LinearSchedule(0.3, 7, 2), 8), expected, atol=1e-7)
    np.testing.assert_allclose(rates(LinearSchedule(0.3, 3), 4), [0.3, 0.2, 0.1, 0.0], atol=1e-7)
    expected = [0.15, 0.3, 0.24, 0.18, 0.12]
    np.testing.assert_allclose(rates(LinearSchedule(0.3, 4, 1, final_rate=0.4), 5), expected, atol=1e-7)
