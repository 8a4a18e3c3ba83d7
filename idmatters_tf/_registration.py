"""Registration of the package's classes with Keras, so that saved models load after `import idmatters_tf`.

Keras finds custom classes by name. The registered objects import a class when a saved model needs it, so that
`import idmatters_tf` imports neither Keras nor the layers. An import hook registers them after Keras is imported, and
explains a missing backend.
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
    "idmatters_tf.expressivity": ("ExactModel",),
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
"""Names of the registered classes by their module."""


BACKENDS = ("tensorflow", "jax", "torch")
"""Packages of Keras' backends."""


class Deferred:
    """Placeholder of a class in Keras' registry, until a saved model needs the class.

    Args:
        module: module of the class.
        name: name of the class.
    """

    def __init__(self, module: str, name: str):
        self.module, self.name = module, name

    def from_config(self, config: dict[str, Any]) -> Any:
        """Import the class and return an instance."""
        return getattr(importlib.import_module(self.module), self.name).from_config(config)


def register() -> None:
    """Register the classes with Keras, now or as soon as Keras is imported."""
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
    """Import hook that registers the classes after the import of Keras and then removes itself."""

    def __init__(self) -> None:
        self._searching = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the specification of Keras with a loader that registers the classes afterwards."""
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
