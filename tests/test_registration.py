"""Names under which saved models refer to the classes of the package."""

import importlib
import pkgutil

import keras

import idmatters_tf
from idmatters_tf import layers
from idmatters_tf.depth._scaled_optimizers import SCALED

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
