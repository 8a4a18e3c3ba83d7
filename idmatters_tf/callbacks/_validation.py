"""Whether validation data give the same batches again."""

import inspect
from typing import Any

from idmatters_tf._tensorflow_internals.pipelines import is_reshuffled


def check_repeatable(data: Any) -> None:
    """Checks that the order of the validation data does not depend on how often they were gone through.

    Args:
        data: as given to `fit`; None: there are none.

    Raises:
        ValueError: they are a generator, or a `tf.data.Dataset` that shuffles anew each time.
    """
    x = data[0] if isinstance(data, (tuple, list)) and len(data) else data
    if inspect.isgenerator(x):
        raise ValueError(
            "The validation data are a generator, whose position ExactResume cannot restore. Give arrays, a "
            "tf.data.Dataset or a PyDataset."
        )
    if is_reshuffled(x):
        raise ValueError(
            "The validation data are a tf.data.Dataset that shuffles, in an order that ExactResume cannot restore. "
            "Leave `shuffle` out, or give it `reshuffle_each_iteration=False` and a seed."
        )
