"""Experiments of `trainers.shortcuts` by command."""

from trainers.experiments.experiment import AnyExperiment
from trainers.shortcuts import conditions, norms, sweep, trajectory

EXPERIMENTS: dict[str, AnyExperiment] = {
    experiment.EXPERIMENT.name: experiment.EXPERIMENT for experiment in (conditions, trajectory, sweep, norms)
}
