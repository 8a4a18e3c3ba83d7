"""Checks of validation data for a repeatable order."""

import inspect
from typing import Any

from idmatters_tf._tensorflow_internals.pipelines import is_reshuffled


def check_repeatable(data: Any) -> None:
    """Check that each pass over the validation data has the same order.

    Args:
        data: the `validation_data` of `fit`, or None.

    Raises:
        ValueError: the data are a generator, or a `tf.data.Dataset` that is reshuffled in each pass.
    """
    x = data[0] if isinstance(data, (tuple, list)) and len(data) else data
    if inspect.isgenerator(x):
        raise ValueError(
            "The validation data are a generator, whose position ExactResume cannot restore. Pass arrays, a "
            "tf.data.Dataset or a PyDataset."
        )
    if is_reshuffled(x):
        raise ValueError(
            "The validation data are a tf.data.Dataset that shuffles, in an order that ExactResume cannot restore. "
            "Remove `shuffle`, or set a seed and `reshuffle_each_iteration=False`."
        )
