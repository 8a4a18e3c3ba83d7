"""Metrics of the global batch.

Metrics of Keras that are sums over the examples count each part, and their variables are summed. All others are
computed on the gathered batch by each replica. The first replica keeps the values, so that its results are those of one
process; the variables of the others are zero, and the sum over the replicas is right.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from idmatters_tf._keras_internals.keras_source import CompileMetrics, MetricsList
from idmatters_tf._keras_internals.losses import has_axis_of_values, is_separable
from idmatters_tf._keras_internals.replicas.collectives import gather, step, sum_over_replicas, value_of_first, within

_SPARSE_NAMES = "SparseCategoricalAccuracy SparseCategoricalCrossentropy SparseTopKCategoricalAccuracy"
_NAMES = """
    AUC Accuracy BinaryAccuracy BinaryCrossentropy BinaryIoU CategoricalAccuracy CategoricalCrossentropy
    CategoricalHinge CosineSimilarity F1Score FBetaScore FalseNegatives FalsePositives Hinge IoU KLDivergence
    LogCoshError MeanAbsoluteError MeanAbsolutePercentageError MeanIoU MeanSquaredError MeanSquaredLogarithmicError
    OneHotIoU OneHotMeanIoU Poisson Precision PrecisionAtRecall R2Score Recall RecallAtPrecision RootMeanSquaredError
    SensitivityAtSpecificity SpecificityAtSensitivity SquaredHinge TopKCategoricalAccuracy TrueNegatives TruePositives
"""
# Metrics of Keras whose variables are sums over the examples, for outputs of rank 2 or more.
_SUMS = tuple(getattr(keras.metrics, name) for name in (*_NAMES.split(), *_SPARSE_NAMES.split()))
_SPARSE = tuple(getattr(keras.metrics, name) for name in _SPARSE_NAMES.split())


def metrics_within(model: Any) -> Iterator[keras.Metric]:
    """Yield the metrics of a model, of its layers, and those that other metrics consist of, once each."""
    seen: set[int] = set()
    stack = [
        *model.metrics,
        *model._get_own_metrics(),
        *(m for layer in model._flatten_layers() for m in layer._metrics),
    ]
    while stack:
        metric = stack.pop()
        if metric is None or id(metric) in seen:
            continue
        seen.add(id(metric))
        stack += metric._metrics
        if isinstance(metric, CompileMetrics | MetricsList):
            stack += metric.metrics
        else:
            yield metric


def updates_of_global_batch(metric: keras.Metric) -> Callable[..., Any]:
    """Return the method `update_state` of a metric for the global batch.

    Raises:
        ValueError: the variables of the metric are not distributed, or those of all replicas are one.
    """
    update = metric.update_state
    for variable in metric.variables:
        if not isinstance(variable.value, tf.distribute.DistributedValues):
            raise ValueError(
                f"The metric {metric.name!r} was created outside of the scope of the strategy. Create it in `with "
                f"strategy.scope():`."
            )
        if variable.synchronization != "on_read":
            raise ValueError(
                f"The variable {variable.path!r} of a metric is not read from all replicas. Create it by "
                f"`add_variable` of the metric."
            )

    @functools.wraps(update)
    def update_state(*args, **kwargs):
        if step.batch not in ("part", "global"):
            return update(*args, **kwargs)
        is_part = step.batch == "part"
        with within("counted"):
            if is_part and _is_sum(metric, *args, **kwargs):
                update(*args, **kwargs)
                _keep(metric, sum_over_replicas([tf.identity(variable.value) for variable in metric.variables]))
                return None
            # The state of one process, on all replicas.
            for variable in metric.variables:
                variable.assign(_total(variable))
            args, kwargs = gather((args, kwargs)) if is_part else (args, kwargs)
            update(*args, **kwargs)
            _keep(metric, [tf.identity(variable.value) for variable in metric.variables])
            return None

    return update_state


def _is_sum(metric, y_true=None, y_pred=None, sample_weight=None, **arguments):
    """Return True if the update of a metric with a part of the batch adds sums over the examples."""
    if type(metric) in (keras.metrics.Mean, keras.metrics.Sum):
        values, weights = arguments.get("values", y_true), y_pred if sample_weight is None else sample_weight
        if _rank(values):
            return True
        if weights is not None and type(metric) is keras.metrics.Sum:
            raise ValueError(
                f"The metric {metric.name!r} received a scalar with weights, which may be of a part of the batch or of "
                f"all. Pass the values of the examples."
            )
        # A loss of the global batch, which all replicas have, with the number of examples of the part.
        return weights is not None
    given = getattr(metric, "_fn_kwargs", {})
    if type(metric) is keras.metrics.MeanMetricWrapper:
        return is_separable(metric._fn, given, y_true, y_pred)
    is_sparse = type(metric) in _SPARSE
    return type(metric) in _SUMS and has_axis_of_values(given.get("axis", -1), y_true, y_pred, is_sparse)


def _rank(values):
    shape: Any = keras.ops.shape(values)
    return len(shape)


def _total(variable):
    """Return the value of a variable for all replicas."""
    value = tf.identity(variable.value)
    return sum_over_replicas(value if variable.aggregation == "sum" else value_of_first(value))


def _keep(metric, values):
    """Assign values to the variables of a metric that are read as their sum over the replicas, or as one of them."""
    for variable, value in zip(metric.variables, values, strict=True):
        variable.assign(value_of_first(value) if variable.aggregation == "sum" else value)
