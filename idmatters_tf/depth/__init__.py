"""Dependence on depth of the start of training and of learning rates, for any Keras architecture."""

from idmatters_tf.depth.measurement import QUANTITIES, DepthMeasurement
from idmatters_tf.depth.power_law import PowerLaw, Prediction, fit_power_law
from idmatters_tf.depth.profile import DepthProfile, Predictions, depth_profile
from idmatters_tf.depth.rates import RateCurve, RateProfile, find_rate, rate_profile
from idmatters_tf.depth.scale import scale_depth

__all__ = [
    "QUANTITIES",
    "DepthMeasurement",
    "DepthProfile",
    "PowerLaw",
    "Prediction",
    "Predictions",
    "RateCurve",
    "RateProfile",
    "depth_profile",
    "find_rate",
    "fit_power_law",
    "rate_profile",
    "scale_depth",
]
