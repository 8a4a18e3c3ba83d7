"""Seeds and deterministic algorithms."""

import os
import subprocess
import sys

import pytest

from idmatters_tf.determinism import make_deterministic
from tests.conftest import ROOT
from tests.support.processes import run_steps

# In a separate process, because the settings cannot be reverted.
SCRIPT = """
import random, keras, numpy as np, tensorflow as tf
from idmatters_tf.determinism import make_deterministic

def draws(seed):
    done = make_deterministic(seed)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dropout(0.5)])
    numbers = random.random(), np.random.rand(), float(tf.random.uniform(())), model(np.ones((2, 3)), training=True)
    return done, [np.asarray(number).tobytes() for number in numbers]

done, first = draws(3)
assert (done["seed"], done["op determinism"]) == (3, True), done
assert draws(3)[1] == first
assert all(one != other for one, other in zip(draws(4)[1], first))
"""


# `import tensorflow` raises ImportError.
BLOCKED = """
import sys

sys.modules["tensorflow"] = None
from idmatters_tf.determinism import make_deterministic

assert "op determinism" not in make_deterministic(0)
"""


def test_seeds_and_switches(tmp_path):
    run_steps([["script", SCRIPT]], tmp_path)


def test_jax_without_tensorflow():
    pytest.importorskip("jax")
    env = {**os.environ, "KERAS_BACKEND": "jax"}
    command = [sys.executable, "-c", BLOCKED]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("seed", [-1, 2**32, 0.5])
def test_refused(seed):
    with pytest.raises(ValueError, match="Argument `seed` must be"):
        make_deterministic(seed)
