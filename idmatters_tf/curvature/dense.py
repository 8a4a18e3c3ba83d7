"""The whole Hessian as a matrix."""

from idmatters_tf.curvature.operators import DEFAULT_CHUNK, HessianOperator


def dense_hessian(model, loss, data, variables=None, *, chunk=DEFAULT_CHUNK, **options):
    """The Hessian of a model's loss on a data set, dense.

    By products with unit vectors, `chunk` of them at once: what is needed beside the matrix itself is the memory of
    `chunk` Hessian-vector products on one batch.

    Args:
        model, loss, data, variables, options: see `HessianOperator`.
        chunk: unit vectors at once; more is faster up to some point and takes more memory.

    Returns:
        (P, P), symmetric, in the order of the variables, each flattened by rows.

    Raises:
        ValueError: as `HessianOperator`, and where the matrix would take more than half of the machine's memory.
    """
    return HessianOperator(model, loss, data, variables, chunk=chunk, **options).to_dense()
