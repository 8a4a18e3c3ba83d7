"""Dependence on depth of the measurements of Li et al. and Hardt & Ma, for any Keras architecture."""

from idmatters_tf.depth.measurement import QUANTITIES, DepthMeasurement
from idmatters_tf.depth.power_law import PowerLaw, Prediction, fit_power_law
from idmatters_tf.depth.profile import DepthProfile, Predictions, depth_profile

__all__ = [
    "QUANTITIES",
    "DepthMeasurement",
    "DepthProfile",
    "PowerLaw",
    "Prediction",
    "Predictions",
    "depth_profile",
    "fit_power_law",
]
