"""Imports, extras, backends and registered classes of the installed package."""

import configparser
import importlib
import pkgutil
import subprocess
import sys

import keras
import numpy as np
import pytest

import idmatters_tf
from idmatters_tf import layers
from idmatters_tf._imports import EXTRAS
from idmatters_tf.curvature import spectral_density
from idmatters_tf.depth._scaled_optimizers import SCALED
from tests.conftest import ROOT


def test_figures_without_matplotlib(monkeypatch, tmp_path):
    density = spectral_density(np.diag([1.0, 2.0]))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r"matplotlib is not installed. Run pip install '.\[train\]' in the"):
        density.plot(tmp_path / "density.png")


def test_the_extras_contain_the_optional_packages():
    declared = configparser.ConfigParser(interpolation=None)
    declared.read(ROOT / "setup.cfg")
    extras = declared["options.extras_require"]
    everything = {extra: extras[extra].replace("%(data)s", extras["data"]).replace("-", "_") for extra in extras}
    assert [package for package, extra in EXTRAS.items() if f"\n{package}>=" not in everything[extra]] == []


def test_programs_warn_of_other_backends(program):
    done = program("trainers.shortcuts", "--help", env={"KERAS_BACKEND": "jax"})
    assert done.returncode == 0
    assert done.stderr.startswith("warning: this program runs on tensorflow, not on KERAS_BACKEND=jax")


def test_the_mathematics_needs_neither_keras_nor_tensorflow():
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['keras', 'tensorflow', 'matplotlib', 'tensorflow_datasets'])); "
        "import numpy as np; from idmatters_tf import linear; "
        "print(linear.factorize(np.diag([2.0, 3.0]), depth=4).shape, linear.sweep.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["(4,", "2,", "2)", "sweep"]


def test_import_is_light():
    code = (
        "import sys, idmatters_tf.models, trainers; dir(idmatters_tf); "
        "print([name for name in ('numpy', 'keras', 'tensorflow') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


REGISTERED = {
    "expressivity": ["ExactModel", "ResidualDenseStack"],
    "initializers": ["IdentityNormal", "ScaledGlorot", "StandardNormal"],
    "layers": layers.__all__,
    "optimizers": ["Momentum", "Muon"],
}


def test_classes_are_registered_under_the_names_in_saved_models():
    # Import all modules of the library to execute all decorators.
    for info in pkgutil.walk_packages(idmatters_tf.__path__, "idmatters_tf."):
        try:
            importlib.import_module(info.name)
        except ModuleNotFoundError as error:
            # `make lowest` runs without JAX. The modules for JAX register no class.
            if error.name != "jax":
                raise
    registry = keras.saving.get_custom_objects()
    registered = {name: value for name, value in registry.items() if name.startswith("idmatters_tf>")}
    expected = {
        f"idmatters_tf>{name}": getattr(importlib.import_module(f"idmatters_tf.{module}"), name)
        for module, names in REGISTERED.items()
        for name in names
    }
    expected |= {f"idmatters_tf>{kind.__name__}": kind for kind in SCALED.values()}
    assert registered == expected
