"""Callbacks for `model.fit`: what the theory watches, measured every so many epochs.

CurvatureMonitor   the Hessian of the loss: eigenvalues, sharpness over the stability threshold, density

Each lives beside its subject and is imported when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from idmatters_tf.curvature.callbacks import CurvatureMonitor

_MODULES = {
    "CurvatureMonitor": "idmatters_tf.curvature.callbacks",
}

__all__ = ["CurvatureMonitor"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
