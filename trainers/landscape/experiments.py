"""The experiments of `trainers.landscape`, in the order in which they are run."""

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

EXPERIMENTS: tuple[AnyExperiment, ...] = (
    factorization.EXPERIMENT,
    descent.EXPERIMENT,
    augmentation.EXPERIMENT,
    regularization.EXPERIMENT,
    zero_asymmetric.EXPERIMENT,
    certified.EXPERIMENT,
    promises.EXPERIMENT,
    projected.EXPERIMENT,
    flow.EXPERIMENT,
    depth_laws.EXPERIMENT,
    update_laws.EXPERIMENT,
    block_norms.EXPERIMENT,
)
