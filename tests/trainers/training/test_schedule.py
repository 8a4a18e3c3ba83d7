import numpy as np
import pytest

from trainers.training.optimizers import make_optimizer
from trainers.training.settings import Recipe


@pytest.mark.parametrize(
    ("recipe", "drops", "expected"),
    [
        ({"learning_rate": 0.2}, (2, 4), [0.2, 0.2, 0.02, 0.02, 0.002, 0.002]),
        ({"learning_rate": 0.2}, (), [0.2, 0.2]),
        ({"learning_rate": 0.1, "warm_up_steps": 2}, (4,), [0.01, 0.01, 0.1, 0.1, 0.01]),
        ({"learning_rate": 0.1, "schedule": "decay"}, (1, 2), [0.1, 0.094, 0.08836]),
        (
            {"learning_rate": 0.3, "schedule": "linear", "steps": 7, "warm_up_steps": 2},
            (),
            [0.1, 0.2, 0.3, 0.24, 0.18, 0.12, 0.06, 0.0],
        ),
        ({"learning_rate": 0.3, "schedule": "linear", "steps": 3}, (), [0.3, 0.2, 0.1, 0.0]),
        (
            {"learning_rate": 0.3, "schedule": "airbench", "steps": 4, "warm_up_steps": 1},
            (),
            [0.15, 0.3, 0.207, 0.114, 0.021],
        ),
    ],
)
def test_the_rate_at_each_step(recipe, drops, expected):
    rate = make_optimizer(Recipe(**recipe), drops).schedule
    np.testing.assert_allclose([rate(step) for step in range(len(expected))], expected, rtol=1e-6, atol=1e-7)
