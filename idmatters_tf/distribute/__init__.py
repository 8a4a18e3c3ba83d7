"""Keras' `fit` on several devices and machines with `tf.distribute`.

strategies     multi_worker_strategy, mirrored_strategy: TensorFlow's strategies, with Keras corrected for them
callbacks      chief_only: callbacks that write files
checks         checks of a `fit` on several replicas
description    processes of a cluster, from TF_CONFIG or Slurm's variables
tasks          start of all tasks, exchange of values, error messages about lost tasks
"""

from typing import TYPE_CHECKING

from idmatters_tf._lazy import lazy_attributes

if TYPE_CHECKING:
    from idmatters_tf.distribute.callbacks import chief_only
    from idmatters_tf.distribute.description import ClusterDescription, ClusterError, find_cluster
    from idmatters_tf.distribute.strategies import mirrored_strategy, multi_worker_strategy
    from idmatters_tf.distribute.tasks import TaskLost, explain_lost_tasks

__all__ = [
    "ClusterDescription",
    "ClusterError",
    "TaskLost",
    "chief_only",
    "explain_lost_tasks",
    "find_cluster",
    "mirrored_strategy",
    "multi_worker_strategy",
]

_ORIGINS = {
    "ClusterDescription": "idmatters_tf.distribute.description",
    "ClusterError": "idmatters_tf.distribute.description",
    "TaskLost": "idmatters_tf.distribute.tasks",
    "chief_only": "idmatters_tf.distribute.callbacks",
    "explain_lost_tasks": "idmatters_tf.distribute.tasks",
    "find_cluster": "idmatters_tf.distribute.description",
    "mirrored_strategy": "idmatters_tf.distribute.strategies",
    "multi_worker_strategy": "idmatters_tf.distribute.strategies",
}

__getattr__, __dir__ = lazy_attributes(__name__, __all__, _ORIGINS)
