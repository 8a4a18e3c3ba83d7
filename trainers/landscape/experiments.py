"""List of the experiments of `trainers.landscape`, in the order of execution."""

from trainers.experiments.experiment import AnyExperiment
from trainers.landscape import augmentation, descent, factorization

_MODULES = (factorization, descent, augmentation)
EXPERIMENTS: tuple[AnyExperiment, ...] = tuple(module.EXPERIMENT for module in _MODULES)
