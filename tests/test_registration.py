"""Saved models load after `import idmatters_tf` alone, in processes that have imported nothing else of the package."""

import importlib
import pkgutil
import subprocess
import sys

import keras
import numpy as np
import pytest

import idmatters_tf
from idmatters_tf import initializers, layers, optimizers
from idmatters_tf._registration import CLASSES, PACKAGE
from tests.conftest import ROOT

LOAD = """
import sys
{imports}
assert "idmatters_tf.layers" not in sys.modules
model = keras.saving.load_model({path!r}, safe_mode=True)
import numpy as np
images = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), dtype=np.uint8)
np.save({out!r}, model(images))
print(type(model.optimizer).__module__, type(model.optimizer).__name__)
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The file of a compiled model with our layers, an initialiser and our optimizer, and its outputs."""
    keras.utils.set_random_seed(0)
    images = keras.Input((8, 8, 3), dtype="uint8")
    features = layers.PerImageStandardization()(images)
    features = keras.layers.Conv2D(4, 3, kernel_initializer=initializers.ScaledGlorot())(features)
    features = layers.ResidualConv2D(4)(features)
    features = keras.layers.GlobalAveragePooling2D()(features)
    model = keras.Model(images, layers.RandomProjection(3)(features))
    model.compile(optimizers.Momentum(0.1), "mse")
    path = tmp_path_factory.mktemp("saved") / "model.keras"
    model.save(path)
    return path, model(np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), dtype=np.uint8))


@pytest.mark.parametrize("imports", ["import keras, idmatters_tf", "import idmatters_tf, keras"])
def test_one_import_is_enough(saved, tmp_path, imports):
    path, expected = saved
    out = tmp_path / "outputs.npy"
    code = LOAD.format(imports=imports, path=str(path), out=str(out))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["idmatters_tf.optimizers.momentum", "Momentum"]
    np.testing.assert_allclose(np.load(out), expected, rtol=1e-6)


def test_looking_for_keras_does_not_lose_the_registration():
    code = (
        "import idmatters_tf, importlib.util, sys; importlib.util.find_spec('keras'); "
        "assert 'keras' not in sys.modules; "
        "import keras; print('idmatters_tf>ResidualConv2D' in keras.saving.get_custom_objects())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240, check=True
    )
    assert done.stdout.strip() == "True"


def test_every_registered_class_is_listed():
    # All modules of the library, so that no decorator is missed.
    for info in pkgutil.walk_packages(idmatters_tf.__path__, "idmatters_tf."):
        try:
            importlib.import_module(info.name)
        except ModuleNotFoundError as error:
            # `make lowest` has no JAX, and its modules register nothing.
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
