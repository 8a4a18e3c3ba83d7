"""Common interface of the backends `_tensorflow` and `_jax`: derivatives of functions of lists of tensors."""

from collections.abc import Callable, Sequence
from typing import Protocol

import keras

from idmatters_tf._keras_types import Structure, Tensor

Tensors = list[Tensor]
LinearMap = Callable[[Tensors], Tensors]


class Compiler(Protocol):
    """Methods of one object as compiled functions of the current values of variables.

    Compiled functions are freed with the compiler. The object must not refer to the compiler.
    """

    def __call__(self, method: Callable[..., Structure], batch: Structure, *arguments: Tensor) -> Structure:
        """Return `method(values, batch, *arguments)`, compiled for all shapes; those of batches may vary."""
        ...


class Backend(Protocol):
    """Derivatives of functions of lists of tensors."""

    @property
    def FEWEST_VECTORS(self) -> int:
        """Smallest number of vectors for which `batched` is faster than single products."""
        ...

    @property
    def VECTORIZATION_ERRORS(self) -> tuple[type[Exception], ...]:
        """Errors of `batched` after which single products may work."""
        ...

    @property
    def Compiler(self) -> Callable[[Sequence[keras.Variable]], Compiler]:
        """Class that compiles the methods of an object."""
        ...

    def tensors(self, structure: Structure) -> Structure:
        """Convert the arrays of a nested structure to tensors, and keep None."""
        ...

    def gradient(self, function: Callable[[Tensors], Tensor], point: Tensors) -> tuple[Tensor, Tensors]:
        """Return the value of a scalar function and its gradient, which is zero for unused tensors."""
        ...

    def linearize(
        self, function: Callable[[Tensors], tuple[Tensors, Structure]], point: Tensors
    ) -> tuple[Tensors, Structure, LinearMap, LinearMap]:
        """Return (outputs, auxiliary, jvp, vjp) of a function that returns (outputs, auxiliary).

        The auxiliary structure of tensors is not differentiated.
        """
        ...

    def hessian_product(self, function: Callable[[Tensors], Tensor], point: Tensors) -> LinearMap:
        """Return the product of the Hessian of a scalar function with a vector."""
        ...

    def batched(self, linear_map: Callable[[Structure], Structure]) -> Callable[[Structure], Structure]:
        """Return the linear map of k vectors at once, with k as the first axis of all tensors."""
        ...
