"""Makes Keras find the package's classes when it loads a saved model, after a mere `import idmatters_tf`.

Keras looks custom classes up by name. What is entered here under each name imports the class when a model that needs it
is loaded, so that `import idmatters_tf` imports neither Keras nor the layers. If Keras has not been imported by then,
the names are entered as soon as it is.
"""

import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

PACKAGE = "idmatters_tf"
CLASSES = {
    "idmatters_tf.expressivity": ("BitReader", "ChunkIndicator", "ExactModel", "SlotLabel"),
    "idmatters_tf.initializers": ("IdentityNormal", "ScaledGlorot", "StandardNormal"),
    "idmatters_tf.layers": (
        "BasicBlock2D",
        "ClassNames",
        "LinearResidual",
        "PadShortcut2D",
        "PatchWhitening2D",
        "PerImageStandardization",
        "RandomProjection",
        "ResidualConv2D",
        "ResidualDense",
        "ResidualDenseStack",
        "ScaledConv2D",
        "ScaledResidualConv2D",
        "ShortcutUnit",
        "ZCAWhitening",
    ),
    "idmatters_tf.optimizers": ("Momentum", "Muon"),
}
"""The names of the registered classes by the module that has them."""


BACKENDS = ("tensorflow", "jax", "torch")
"""Packages of Keras' backends."""


class Deferred:
    """Stands for a class in Keras' registry until a saved model needs it.

    Args:
        module, name: where the class is.
    """

    def __init__(self, module: str, name: str):
        self.module, self.name = module, name

    def from_config(self, config: dict[str, Any]) -> Any:
        """Imports the class and makes an instance of it."""
        return getattr(importlib.import_module(self.module), self.name).from_config(config)


def register() -> None:
    """Registers the classes with Keras: at once if it has been imported, else when it is."""
    keras = sys.modules.get("keras")
    if keras is not None:
        _enter(keras)
    elif not any(isinstance(finder, _AfterKeras) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterKeras())


def _enter(keras: ModuleType) -> None:
    registry = keras.saving.get_custom_objects()
    for module, names in CLASSES.items():
        for name in names:
            registry.setdefault(f"{PACKAGE}>{name}", Deferred(module, name))


def _missing_backend(name: str) -> str:
    """Return the error message for a missing backend."""
    install = "pip install torch" if name == "torch" else f"pip install 'idmatters-tf[{name}]'"
    other = next((each for each in ("tensorflow", "jax") if each != name and importlib.util.find_spec(each)), None)
    if other is not None:
        remedy = f"Set the environment variable KERAS_BACKEND={other}, whose package is installed, or use {install}"
    elif name == "tensorflow":
        remedy = f"Use {install}, or pip install 'idmatters-tf[jax]' and the environment variable KERAS_BACKEND=jax"
    else:
        remedy = f"Use {install}"
    return f"The package of Keras' backend {name!r} is not installed. {remedy}."


class _AfterKeras:
    """An import hook that enters the names once Keras has been executed, and then removes itself."""

    def __init__(self) -> None:
        self._searching = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The specification that the other finders have for Keras, with a loader that calls us afterwards."""
        if fullname != "keras" or self._searching:
            return None
        self._searching = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._searching = False
        if spec is None or spec.loader is None:
            return spec
        loader, execute = spec.loader, spec.loader.exec_module

        def execute_and_enter(module: ModuleType) -> None:
            try:
                execute(module)
            except ModuleNotFoundError as error:
                name = (error.name or "").partition(".")[0]
                # A damaged installation keeps its own error message.
                if name not in BACKENDS or importlib.util.find_spec(name) is not None:
                    raise
                raise ModuleNotFoundError(_missing_backend(name), name=name) from None
            sys.meta_path.remove(self)
            _enter(module)

        loader.exec_module = execute_and_enter
        return spec
