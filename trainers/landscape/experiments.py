"""List of the experiments of `trainers.landscape`, in the order of execution."""

from trainers.landscape import augmentation, descent, factorization

EXPERIMENTS = (factorization.EXPERIMENT, descent.EXPERIMENT, augmentation.EXPERIMENT)
