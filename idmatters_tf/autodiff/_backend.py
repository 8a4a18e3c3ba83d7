"""Choice of the backend, and the common interface of `_tensorflow` and `_jax`."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import keras

from idmatters_tf._keras_types import Tensor

Tensors = list[Tensor]
LinearMap = Callable[[Tensors], Tensors]


class CannotVectorize(Exception):
    """Raised if several products cannot be computed at once."""


class Compiler(Protocol):
    """Methods of one object as compiled functions of the current values of variables.

    Compiled functions are freed with the compiler. The object must not refer to the compiler.

    Attributes:
        replicas: number of devices that share the work.
    """

    replicas: int

    def __init__(self, variables: Sequence[keras.Variable]): ...

    def __call__(self, method: Callable[..., Any], parts: Sequence[tuple[Any, ...]], *arguments: Tensor) -> Any:
        """Return `method(values, *part, *arguments)`, summed over the replicas.

        Args:
            method: bound method that returns tensors. It is compiled for each combination of shapes.
            parts: arguments of each replica. The first one is a batch, whose shapes may vary.
            *arguments: tensors that are shared by all replicas.
        """
        ...


MakeCompiler = Callable[[Sequence[keras.Variable]], Compiler]


class Backend(Protocol):
    """Derivatives of functions of lists of tensors."""

    @property
    def FEWEST_VECTORS(self) -> int:
        """Smallest number of vectors for which `batched` is faster than single products."""
        ...

    @property
    def Compiler(self) -> MakeCompiler:
        """Class that compiles the methods of an object."""
        ...

    def tensors(self, structure: Any) -> Any:
        """Convert the arrays of a nested structure to tensors, and keep None."""
        ...

    def gradient(self, function: Callable[[Tensors], Tensor], point: Tensors) -> tuple[Tensor, Tensors]:
        """Return the value of a scalar function and its gradient, which is zero for unused tensors."""
        ...

    def linearize(
        self, function: Callable[[Tensors], tuple[Tensors, Any]], point: Tensors
    ) -> tuple[Tensors, Any, LinearMap, LinearMap]:
        """Return (outputs, auxiliary, jvp, vjp) of a function that returns (outputs, auxiliary).

        The auxiliary structure of tensors is not differentiated.
        """
        ...

    def hessian_product(self, function: Callable[[Tensors], Tensor], point: Tensors) -> LinearMap:
        """Return the product of the Hessian of a scalar function with a vector."""
        ...

    def batched(self, linear_map: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return the linear map of k vectors at once, with k as the first axis of all tensors."""
        ...

    def vectorizing(self) -> AbstractContextManager[None]:
        """Return a context that raises `CannotVectorize` if `batched` fails and single products may work."""
        ...


def current_backend() -> Backend:
    """Return the implementation of derivatives for Keras' current backend.

    Raises:
        ValueError: if the backend is neither TensorFlow nor JAX.
    """
    name = keras.backend.backend()
    if name == "tensorflow":
        from idmatters_tf.autodiff import _tensorflow

        return _tensorflow
    if name == "jax":
        from idmatters_tf.autodiff import _jax

        return _jax
    raise ValueError(f"Derivatives require Keras' TensorFlow or JAX backend. Received: {name!r}. Set KERAS_BACKEND.")
