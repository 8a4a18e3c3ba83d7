"""The whole Hessian as a matrix."""

from typing import Any

import keras

from idmatters_tf.curvature._products import Array
from idmatters_tf.curvature.operators import DEFAULT_CHUNK, CurvatureOperator, HessianOperator


def dense_hessian(
    model: keras.Model | CurvatureOperator,
    loss: Any = None,
    data: Any = None,
    variables: Any = None,
    *,
    chunk: int = DEFAULT_CHUNK,
    **options: Any,
) -> Array:
    """The Hessian of a model's loss on a data set, dense.

    By products with unit vectors, `chunk` of them at once: what is needed beside the matrix itself is the memory of
    `chunk` Hessian-vector products on one batch.

    Args:
        model: a `keras.Model`; or an operator, without `loss`, `data` and the others.
        loss, data, variables, options: see `HessianOperator`.
        chunk: unit vectors at once; more is faster up to some point and takes more memory.

    Returns:
        (P, P), symmetric, in the order of the variables, each flattened by rows.

    Raises:
        ValueError: as `HessianOperator`, and where the matrix would take more than half of the machine's memory.
    """
    if isinstance(model, CurvatureOperator):
        if options or not (loss is data is variables is None):
            raise ValueError("With an operator the loss, the data and the options are its own. Pass it alone.")
        return model.to_dense(chunk)
    return HessianOperator(model, loss, data, variables, chunk=chunk, **options).to_dense()
