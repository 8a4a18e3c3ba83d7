"""Keras' `fit` on several devices and machines with `tf.distribute`.

strategies     multi_worker_strategy, mirrored_strategy: TensorFlow's strategies, with Keras corrected for them
reductions     global_mean: means in training steps of the user
callbacks      chief_only, is_chief: callbacks that write files
checks         checks of a `fit` on several replicas
description    processes of a cluster, from TF_CONFIG or Slurm's variables
tasks          start of all tasks, exchange of values, error messages about lost tasks
"""

from idmatters_tf._imports import lazy_attributes

__getattr__, __dir__, __all__ = lazy_attributes(__name__, __file__)
