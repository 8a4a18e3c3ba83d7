"""Saved models load after `import idmatters_tf` alone, without other imports of the package."""

import importlib
import os
import pkgutil
import subprocess
import sys

import keras
import numpy as np
import pytest

import idmatters_tf
from idmatters_tf import initializers, layers, optimizers
from idmatters_tf._registration import CLASSES, PACKAGE, Deferred, register
from tests.conftest import ROOT

LOAD = """
import idmatters_tf, importlib.util, sys
importlib.util.find_spec("keras")
assert "keras" not in sys.modules
import keras
assert "idmatters_tf.layers" not in sys.modules
model = keras.saving.load_model(sys.argv[1], safe_mode=True)
import numpy as np
images = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), dtype=np.uint8)
np.save(sys.argv[2], model(images))
print(type(model.optimizer).__module__, type(model.optimizer).__name__)
"""


def test_one_import_is_enough(tmp_path):
    """The classes are registered when Keras is imported later, also after a search for Keras."""
    keras.utils.set_random_seed(0)
    images = keras.Input((8, 8, 3), dtype="uint8")
    features = layers.PerImageStandardization()(images)
    features = keras.layers.Conv2D(4, 3, kernel_initializer=initializers.ScaledGlorot())(features)
    features = layers.ResidualConv2D(4)(features)
    features = keras.layers.GlobalAveragePooling2D()(features)
    model = keras.Model(images, layers.RandomProjection(3)(features))
    model.compile(optimizers.Momentum(0.1), "mse")
    path, out = tmp_path / "model.keras", tmp_path / "outputs.npy"
    model.save(path)
    done = subprocess.run(
        [sys.executable, "-c", LOAD, path, out], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["idmatters_tf.optimizers.momentum", "Momentum"]
    expected = model(np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), dtype=np.uint8))
    np.testing.assert_allclose(np.load(out), expected, rtol=1e-6)


def test_keras_may_be_imported_first(monkeypatch):
    name = f"{PACKAGE}>Momentum"
    monkeypatch.delitem(keras.saving.get_custom_objects(), name)
    register()
    registered = keras.saving.get_custom_objects()[name]
    assert isinstance(registered, Deferred)
    assert isinstance(registered.from_config(optimizers.Momentum(0.1).get_config()), optimizers.Momentum)


def test_every_registered_class_is_listed():
    # Import all modules of the library to execute all decorators.
    for info in pkgutil.walk_packages(idmatters_tf.__path__, "idmatters_tf."):
        try:
            importlib.import_module(info.name)
        except ModuleNotFoundError as error:
            # `make lowest` runs without JAX. The modules for JAX register no class.
            if error.name != "jax":
                raise
    registry = keras.saving.get_custom_objects()
    registered = {
        name for name, value in registry.items() if name.startswith(f"{PACKAGE}>") and isinstance(value, type)
    }
    assert registered == {f"{PACKAGE}>{name}" for names in CLASSES.values() for name in names}
    for module, names in CLASSES.items():
        for name in names:
            assert getattr(sys.modules[module], name).__name__ == name


INSTALL_JAX = "pip install 'idmatters-tf[jax]'"
INSTALL_BOTH = (
    f"pip install 'idmatters-tf[tensorflow]', or {INSTALL_JAX} and the environment variable KERAS_BACKEND=jax"
)
SET_TENSORFLOW = "Set the environment variable KERAS_BACKEND=tensorflow, whose package is installed"


@pytest.mark.parametrize(
    ("backend", "missing", "remedy"),
    [
        ("", ("tensorflow", "jax"), f"Use {INSTALL_BOTH}."),
        ("jax", ("tensorflow", "jax"), f"Use {INSTALL_JAX}."),
        ("jax", ("jax",), f"{SET_TENSORFLOW}, or use {INSTALL_JAX}."),
    ],
)
def test_a_missing_backend_is_explained(backend, missing, remedy, tmp_path):
    """Modules that need Keras raise an ImportError with the remedy; `linear` is usable."""
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({missing!r}))\n"
        "from idmatters_tf import linear; linear.compose\n"
        "import importlib\n"
        "for name in ('layers', 'models.cifar', 'layers'):\n"
        "    try: importlib.import_module(f'idmatters_tf.{name}')\n"
        "    except ImportError as error: print(error, error.name, error.__suppress_context__)\n"
    )
    env = {**os.environ, "KERAS_BACKEND": backend, "KERAS_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, timeout=240, check=False
    )
    name = backend or "tensorflow"
    expected = f"The package of Keras' backend {name!r} is not installed. {remedy} {name} True"
    assert done.stdout.splitlines() == [expected] * 3, done.stderr
