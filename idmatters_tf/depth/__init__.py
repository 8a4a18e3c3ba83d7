"""Learning rates that hold at depth: scaled residual branches, and the best and the largest stable rate."""

from idmatters_tf.depth.rates import RateCurve, RateProfile, find_rate, rate_profile
from idmatters_tf.depth.scale import scale_depth

__all__ = ["RateCurve", "RateProfile", "find_rate", "rate_profile", "scale_depth"]
