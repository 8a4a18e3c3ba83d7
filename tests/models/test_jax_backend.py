"""The same layers and network on Keras' JAX backend, in a separate process."""

import contextlib
import importlib.util
import io
import json
import os
import subprocess
import sys
from unittest import mock

import keras
import numpy as np
import pytest

from tests.conftest import ROOT

CODE = """
import json, sys
import numpy as np
import keras
from idmatters_tf import layers
from idmatters_tf.expressivity import memorize
from idmatters_tf.isometry import ConvolutionOperator
from idmatters_tf.optimizers import Momentum
from idmatters_tf.models import linear
from idmatters_tf.models.cifar import identity_resnet

rng = np.random.default_rng(0)
images = rng.normal(size=(4, 15, 16, 3)).astype("float32")
found = {"backend": keras.backend.backend()}
for shortcut in ("projection", "pad"):
    model = identity_resnet((None, None, 3), blocks=1, widths=(8, 12), stem=4, bias=True, shortcut=shortcut)
    found[f"head {shortcut}"] = np.array(model.get_layer("head").kernel).tolist()
    for variable in model.trainable_variables:
        variable.assign(0.2 * rng.normal(size=variable.shape))
    logits = model.predict(images, verbose=0)
    found[f"logits {shortcut}"] = logits.tolist()
dense = keras.Sequential([keras.Input((10,)), layers.ResidualDense(7), layers.LinearResidual("ones"),
                          layers.ShortcutUnit(2, mid="tanh")])
for variable in dense.trainable_variables:
    variable.assign(0.2 * rng.normal(size=variable.shape))
shortcuts = linear.shortcut_network(10, 3, 2, mid="relu")
linear.assign_weights(shortcuts, 0.3 * rng.normal(size=(3, 2, 10, 10)))
assert linear.get_weights(linear.linear_residual(4, 3)).shape == (3, 1, 4, 4)
spectral = ConvolutionOperator(model.get_layer("stage2_block1").conv1.kernel, (15, 16), 2).spectral_norm()
pixels = np.array(layers.PerImageStandardization()(rng.integers(0, 256, (2, 5, 5, 3)).astype("uint8")))
model.compile(Momentum(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
loss = model.fit(images, np.arange(4), epochs=2, shuffle=False, verbose=0).history["loss"]
model.save(sys.argv[1])
same = keras.saving.load_model(sys.argv[1]).predict(images, verbose=0)
assert np.array_equal(same, model.predict(images, verbose=0))
points, labels = rng.normal(size=(60, 5)), rng.integers(0, 4, 60)
memorizer = memorize(points, labels, width=8, dtype="float32")
exact = memorizer.report.verified["float32"]
assert exact.correct == 60 and exact.largest_error < 1e-3, exact
memorizer.compile(keras.optimizers.SGD(1e-3), "mse")
memorizer.fit(points, np.eye(4)[labels], epochs=1, verbose=0)
keras.config.set_dtype_policy("mixed_bfloat16")
half = identity_resnet((16, 16, 3), blocks=1, widths=(8, 12), stem=4)
assert half.output.dtype == "float32", half.output.dtype
half.predict(rng.normal(size=(2, 16, 16, 3)), verbose=0)
print(json.dumps({**found, "loss": loss, "dense": dense.predict(logits, verbose=0).tolist(),
                  "shortcuts": shortcuts.predict(logits, verbose=0).tolist(), "pixels": pixels.tolist(),
                  "spectral": spectral}))
"""


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_jax_gives_what_tensorflow_gives(tmp_path):
    stdout = io.StringIO()
    with mock.patch.object(sys, "argv", ["-c", str(tmp_path / "tensorflow.keras")]), contextlib.redirect_stdout(stdout):
        exec(compile(CODE, "code", "exec"), {})
    arguments = [sys.executable, "-c", CODE, str(tmp_path / "jax.keras")]
    env = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(arguments, cwd=ROOT, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    ours, theirs = (json.loads(text.splitlines()[-1]) for text in (stdout.getvalue(), done.stdout))
    assert (ours.pop("backend"), theirs.pop("backend")) == ("tensorflow", "jax")
    for shortcut in ("projection", "pad"):
        assert ours[f"head {shortcut}"] == theirs[f"head {shortcut}"]
    for name, value in ours.items():
        np.testing.assert_allclose(theirs[name], value, atol=1e-4, err_msg=name)


def test_this_suite_runs_on_tensorflow():
    assert keras.backend.backend() == "tensorflow"
