"""The experiments of `trainers.landscape`, in the order in which they are run."""

from trainers.experiments.registry import AnyExperiment
from trainers.landscape import augmentation, descent, factorization, regularization

EXPERIMENTS: tuple[AnyExperiment, ...] = (
    factorization.EXPERIMENT,
    descent.EXPERIMENT,
    augmentation.EXPERIMENT,
    regularization.EXPERIMENT,
)
