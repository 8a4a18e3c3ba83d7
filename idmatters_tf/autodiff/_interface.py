"""The interface that `_tensorflow` and `_jax` have in common."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import keras

from idmatters_tf._keras_types import Tensor

Tensors = list[Tensor]
LinearMap = Callable[[Tensors], Tensors]


class CannotVectorize(Exception):
    """Several products cannot be computed at once."""


class Compiler(Protocol):
    """Methods of one object as compiled functions of the values of variables, which are read at each call.

    What has been compiled is freed with the compiler, to which the object must not refer.

    Attributes:
        replicas: number of devices that share the work.
    """

    replicas: int

    def __init__(self, variables: Sequence[keras.Variable]): ...

    def __call__(self, method: Callable[..., Any], parts: Sequence[tuple[Any, ...]], *arguments: Tensor) -> Any:
        """Return `method(values, *part, *arguments)`, summed over the replicas.

        Args:
            method: a bound method that returns tensors; compiled for each combination of shapes.
            parts: for each replica the arguments of its own; the first is a batch, whose shapes may vary.
            arguments: tensors that all replicas have in common.
        """
        ...


MakeCompiler = Callable[[Sequence[keras.Variable]], Compiler]


class Backend(Protocol):
    """Derivatives of functions of lists of tensors."""

    @property
    def FEWEST_VECTORS(self) -> int:
        """Number of vectors from which on `batched` is the better way to compute products."""
        ...

    @property
    def Compiler(self) -> MakeCompiler:
        """Class that compiles the methods of an object."""
        ...

    def tensors(self, structure: Any) -> Any:
        """Convert the arrays of a nested structure, in which None remains."""
        ...

    def gradient(self, function: Callable[[Tensors], Tensor], point: Tensors) -> tuple[Tensor, Tensors]:
        """Return the value of a scalar function and its gradient, zero where it does not depend on a tensor."""
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
        """Return the map of k vectors at once, along a first axis of all tensors."""
        ...

    def vectorizing(self) -> AbstractContextManager[None]:
        """Return a context that raises `CannotVectorize` where `batched` fails and single products may work."""
        ...
