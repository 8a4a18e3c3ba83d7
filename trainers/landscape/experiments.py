"""List of the experiments of `trainers.landscape`, in the order of execution."""

from trainers.experiments.experiment import AnyExperiment
from trainers.landscape import (
    augmentation,
    block_norms,
    certified,
    depth_laws,
    descent,
    factorization,
    flow,
    projected,
    promises,
    regularization,
    update_laws,
    zero_asymmetric,
)

_MODULES = (factorization, descent, augmentation, regularization, zero_asymmetric, certified, promises)
_MODULES += (projected, flow, depth_laws, update_laws, block_norms)
EXPERIMENTS: tuple[AnyExperiment, ...] = tuple(module.EXPERIMENT for module in _MODULES)
