"""Callbacks for `model.fit`: exact resume after a kill, and what the theory watches, measured every so many epochs.

ExactResume        goes on after a kill as if nothing had happened
ArrayBatches       its training data: arrays, in an order that is a function of (seed, epoch)
FunctionBatches    its training data: any function of the step
Batches            what both are
BlockNorms         Frobenius and spectral norms of the residual blocks, tau, and whether it is below 1
CurvatureMonitor   the Hessian of the loss: eigenvalues, sharpness over the stability threshold, density
IsometryMonitor    how near the identity each block is at given inputs: ||J - I||, singular values

Each lives beside its subject and is imported when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from idmatters_tf.callbacks.batches import ArrayBatches, Batches, FunctionBatches
    from idmatters_tf.callbacks.block_norms import BlockNorms
    from idmatters_tf.callbacks.exact_resume import ExactResume
    from idmatters_tf.curvature.callbacks import CurvatureMonitor
    from idmatters_tf.isometry.callbacks import IsometryMonitor

_MODULES = {
    "ArrayBatches": "idmatters_tf.callbacks.batches",
    "Batches": "idmatters_tf.callbacks.batches",
    "ExactResume": "idmatters_tf.callbacks.exact_resume",
    "FunctionBatches": "idmatters_tf.callbacks.batches",
    "BlockNorms": "idmatters_tf.callbacks.block_norms",
    "CurvatureMonitor": "idmatters_tf.curvature.callbacks",
    "IsometryMonitor": "idmatters_tf.isometry.callbacks",
}

__all__ = [
    "ArrayBatches",
    "Batches",
    "BlockNorms",
    "CurvatureMonitor",
    "ExactResume",
    "FunctionBatches",
    "IsometryMonitor",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
