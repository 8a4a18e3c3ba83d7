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

from idmatters_tf._imports import lazy_attributes

__getattr__, __dir__, __all__ = lazy_attributes(__name__, __file__)
