"""Experiments of `trainers.shortcuts` by command."""

from trainers.shortcuts import conditions, norms, sweep, trajectory

EXPERIMENTS = {module.EXPERIMENT.name: module.EXPERIMENT for module in (conditions, trajectory, sweep, norms)}
