"""Seeds, deterministic algorithms and threads."""

import subprocess
import sys

import pytest

from idmatters_tf.determinism import make_deterministic
from tests.conftest import ROOT

# In a separate process, because the settings cannot be reverted.
SCRIPT = """
import random, keras, numpy as np, tensorflow as tf
from idmatters_tf.determinism import make_deterministic

def draws(seed, **options):
    done = make_deterministic(seed, **options)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dropout(0.5)])
    numbers = random.random(), np.random.rand(), float(tf.random.uniform(())), model(np.ones((2, 3)), training=True)
    return done, [np.asarray(number).tobytes() for number in numbers]

done, first = draws(3, threads=1)
assert (done["seed"], done["threads"], done["op determinism"]) == (3, 1, True), done
assert tf.config.threading.get_intra_op_parallelism_threads() == 1
assert draws(3)[1] == first
assert all(one != other for one, other in zip(draws(4)[1], first))
try:
    make_deterministic(3, threads=2)
except RuntimeError as error:
    print(error)
"""


def test_seeds_switches_and_threads():
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert "threads=2 has no effect" in done.stdout
    assert "TF_NUM_INTRAOP_THREADS=2" in done.stdout


@pytest.mark.parametrize("options", [{"seed": -1}, {"seed": 2**32}, {"seed": 0.5}, {"seed": 0, "threads": 0}])
def test_refused(options):
    with pytest.raises(ValueError, match=f"Argument `{list(options)[-1]}` must be"):
        make_deterministic(**options)
