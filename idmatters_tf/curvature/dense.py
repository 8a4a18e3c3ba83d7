"""Dense Hessian matrices."""

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
    """Compute the dense Hessian of a model's loss on a data set.

    The matrix is computed by products with unit vectors, `chunk` at once. The memory beside the matrix is that of
    `chunk` Hessian-vector products on one batch.

    Args:
        model: a `keras.Model`, or an operator without further arguments.
        loss: see `HessianOperator`.
        data: see `HessianOperator`.
        variables: see `HessianOperator`.
        chunk: number of unit vectors multiplied at once. Larger values are faster up to a point and need more memory.
        **options: see `HessianOperator`.

    Returns:
        Symmetric matrix (P, P) in the order of the variables, each flattened by rows.

    Raises:
        ValueError: as `HessianOperator`, and if the matrix would exceed half of the machine's memory.
    """
    if isinstance(model, CurvatureOperator):
        if options or not (loss is data is variables is None):
            raise ValueError("Arguments `loss`, `data` and options are not allowed with an operator. Pass it alone.")
        return model.to_dense(chunk)
    return HessianOperator(model, loss, data, variables, chunk=chunk, **options).to_dense()
