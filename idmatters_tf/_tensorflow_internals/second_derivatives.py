"""Replacements of TensorFlow 2.21 functions whose derivatives are wrong.

`tf.nn.moments` stops the gradient at the mean inside the variance. First derivatives are right, because the derivative
of the sum of squares with respect to the mean is zero. Second derivatives lack the contribution of the mean.
LayerNormalization, GroupNormalization and BatchNormalization with `training=True` use this function.

The gradient of bilinear resizing is registered as not differentiable. A tape uses a derivative of zero, although the
gradient is linear in its input. Second derivatives of Resizing and UpSampling2D with bilinear interpolation lack its
contribution.

The CPU kernels of `MaxPoolGradGrad` and `MaxPool3DGradGrad` overwrite their argument `grad` while they read it, if its
size is that of the result and no other operation in the graph uses it. Second derivatives and Jacobian-vector products
of max pooling that keeps the shape are wrong in graphs.

`tf.recompute_grad`, which is `keras.remat`, differentiates a function with respect to its arguments and the variables
that it reads. Tensors that take the place of variables, as in a stateless scope, have a gradient of zero. The function
is called without rematerialization, at the cost of memory.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import tensorflow as tf
from tensorflow.python.eager import record

# The registered gradients use the functions of these modules. TensorFlow has no public names for them.
from tensorflow.python.ops import custom_gradient, gen_image_ops, gen_nn_ops

from idmatters_tf._keras_types import Tensor
from idmatters_tf._tensorflow_internals.patching import Patch

# A function whose tensors are differentiated.
Function: TypeAlias = Callable[..., Tensor]
_POOLING = ("max_pool_grad_grad", "max_pool3d_grad_grad")
_resize_bilinear_grad = gen_image_ops.resize_bilinear_grad


def moments(
    x: Tensor, axes: Tensor, shift: Tensor | None = None, keepdims: bool = False, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """Compute `tf.nn.moments` without its `stop_gradient`."""
    del shift
    with tf.name_scope(name or "moments"):
        x = tf.convert_to_tensor(x)
        y: Tensor = tf.cast(x, tf.float32) if x.dtype == tf.float16 else x
        mean: Tensor = tf.reduce_mean(y, axes, keepdims=True)
        variance: Tensor = tf.reduce_mean(tf.math.squared_difference(y, mean), axes, keepdims=True)
        if not keepdims:
            mean, variance = tf.squeeze(mean, axes), tf.squeeze(variance, axes)
        if x.dtype == tf.float16:
            return tf.cast(mean, tf.float16), tf.cast(variance, tf.float16)
        return mean, variance


def resize_bilinear_grad(
    grads: Tensor,
    original_image: Tensor,
    align_corners: bool = False,
    half_pixel_centers: bool = False,
    name: str | None = None,
) -> Tensor:
    """Compute the transpose of bilinear resizing, with the resizing as its derivative."""
    options = {"align_corners": align_corners, "half_pixel_centers": half_pixel_centers}

    @tf.custom_gradient
    def transposed(grads: Tensor) -> tuple[Tensor, Function]:
        def resized(upstream: Tensor) -> Tensor:
            return tf.raw_ops.ResizeBilinear(images=upstream, size=tf.shape(grads)[1:3], **options)

        return _resize_bilinear_grad(grads, original_image, **options, name=name), resized

    return transposed(grads)


def _into_new_memory(grad_grad: Function) -> Function:
    """Return a second derivative of max pooling that computes from a padded `grad`, which is larger than the result."""

    def padded(
        inputs: Tensor,
        outputs: Tensor,
        grad: Tensor,
        ksize: Sequence[int],
        strides: Sequence[int],
        padding: str,
        **options: object,
    ) -> Tensor:
        del padding
        if max(ksize) == 1:
            return tf.strided_slice(grad, [0] * len(strides), tf.shape(grad), strides)
        # The padding of "same"; zero for "valid".
        total = tf.maximum((tf.shape(outputs) - 1) * strides + ksize - tf.shape(inputs), 0)
        widths = tf.stack([total // 2, total - total // 2], axis=1)
        inputs = tf.pad(inputs, widths, constant_values=inputs.dtype.min)
        return grad_grad(inputs, outputs, tf.pad(grad, widths), ksize, strides, padding="VALID", **options)

    return padded


def _without_rematerialization(decorated: Function) -> Function:
    """Return a version of a function that calls functions with custom gradients, without those of `recompute_grad`."""

    def call(function: Function, args: Sequence[object], kwargs: Mapping[str, object]) -> Tensor:
        if function.__qualname__ == "recompute_grad.<locals>.inner":
            return inspect.getclosurevars(function).nonlocals["f"](*args, **kwargs)
        return decorated(function, args, kwargs)

    return call


_rematerialization = Patch(
    *(
        (custom_gradient, name, _without_rematerialization(getattr(custom_gradient, name)))
        for name in ("_eager_mode_decorator", "_graph_mode_decorator")
    )
)
_patch = Patch(
    (tf.nn, "moments", moments),
    (gen_image_ops, "resize_bilinear_grad", resize_bilinear_grad),
    *((gen_nn_ops, name, _into_new_memory(getattr(gen_nn_ops, name))) for name in _POOLING),
)


def differentiable() -> contextlib.AbstractContextManager[None]:
    """Return a context in which rematerialized functions have gradients with respect to all tensors."""
    return _rematerialization


@contextlib.contextmanager
def differentiable_twice() -> Iterator[None]:
    """Replace the functions of TensorFlow by those above inside the context, for Keras and custom layers."""
    with _rematerialization, _patch:
        yield


def is_recording() -> bool:
    """Return True if a tape may record the operations of this thread."""
    return record.could_possibly_record()
