"""Callbacks for `model.fit`: exact resume after a kill, and periodic measurements.

ExactResume        exact resume after a kill, bit for bit as an uninterrupted run
ArrayBatches       training data in arrays, in an order that is a function of (seed, epoch)
FunctionBatches    training data from a function of the step
Batches            base class of both
load_weights       weights of the newest checkpoint, for evaluation and export
BlockNorms         Frobenius and spectral norms of the residual blocks, and tau: a NormsMeasurement
CurvatureMonitor   Hessian of the loss: eigenvalues, sharpness relative to the stability threshold, density
IsometryMonitor    distances of the blocks from the identity at given inputs: ||J - I||, singular values

Each class is imported on first use.
"""

from typing import TYPE_CHECKING

from idmatters_tf._lazy import lazy_attributes

if TYPE_CHECKING:
    from idmatters_tf.callbacks.batches import ArrayBatches, Batches, FunctionBatches
    from idmatters_tf.callbacks.exact_resume import ExactResume
    from idmatters_tf.callbacks.saved import load_weights
    from idmatters_tf.curvature.callbacks import CurvatureMonitor
    from idmatters_tf.isometry.callbacks import BlockNorms, IsometryMonitor, NormsMeasurement

_ORIGINS = {
    "ArrayBatches": "idmatters_tf.callbacks.batches",
    "Batches": "idmatters_tf.callbacks.batches",
    "ExactResume": "idmatters_tf.callbacks.exact_resume",
    "FunctionBatches": "idmatters_tf.callbacks.batches",
    "load_weights": "idmatters_tf.callbacks.saved",
    "BlockNorms": "idmatters_tf.isometry.callbacks",
    "NormsMeasurement": "idmatters_tf.isometry.callbacks",
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
    "NormsMeasurement",
    "load_weights",
]

__getattr__, __dir__ = lazy_attributes(__name__, __all__, _ORIGINS)
