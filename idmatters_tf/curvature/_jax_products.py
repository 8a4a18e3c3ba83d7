"""Products on JAX: Hessian-vector products as the forward derivative of the gradient, vectorised by `jax.vmap`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from numpy.typing import NDArray

from idmatters_tf._keras_internals import mask_of, set_mask
from idmatters_tf.curvature._objective import Objective, penalty_share
from idmatters_tf.curvature._products import Array, Kind, Products, fisher_scales

Tree = list[Any]


class JaxProducts(Products):
    """`Products` on Keras' JAX backend. Everything that a model holds is an argument: nothing of it is traced as a
    constant, so that an operator follows a model in training.
    """

    def __init__(self, objective: Objective):
        super().__init__(objective)
        self._compiled: dict[str, Any] = {}

    def counts(self, batch: Any) -> NDArray[np.float64]:
        batch = _arrays(batch)
        outputs, _ = self.objective.forward(self._theta(), batch, others=self._others())
        return np.asarray(self.objective.counts(batch, outputs), np.float64)

    def outputs(self, batch: Any) -> Any:
        return self.objective.forward(self._theta(), _arrays(batch), others=self._others())[0]

    def loss(self) -> float:
        return float(self._sum("value", self._value))

    def loss_and_gradient(self, draw: int = 0, offset: Array | None = None, batch: Any = None) -> tuple[float, Array]:
        offset = np.zeros(self.objective.size) if offset is None else offset
        arguments = jnp.asarray(draw), jnp.asarray(offset, self.objective.dtype)
        batches = None if batch is None else [batch]
        value, gradient = self._sum("gradient", self._loss_and_gradient, *arguments, batches=batches)
        return float(value), np.asarray(gradient)

    def product(self, kind: Kind, vectors: Array) -> Array:
        function = {"hessian": self._hessian, "gauss_newton": self._gauss_newton, "fisher": self._fisher}[kind]

        def products(theta: Tree, others: Tree, batch: Any, scales: Any, vectors: Any) -> Any:
            linear_map = function(theta, others, batch, scales)
            flat = self.objective.flatten
            return jax.vmap(lambda vector: flat(linear_map(self.objective.split(vector))))(vectors)

        return np.asarray(self._sum(kind, products, jnp.asarray(vectors, self.objective.dtype)))

    # What follows is traced.

    def _value(self, theta: Tree, others: Tree, batch: Any, scales: Any) -> Any:
        return self.objective.value(theta, batch, scales, others=others)

    def _loss_and_gradient(
        self, theta: Tree, others: Tree, batch: Any, scales: Any, draw: Any, offset: Any
    ) -> tuple[Any, Any]:
        theta = [value + part for value, part in zip(theta, self.objective.split(offset), strict=True)]

        def value(theta: Tree) -> Any:
            return self.objective.value(theta, batch, scales, draw, others)

        total, gradient = jax.value_and_grad(value)(theta)
        return total, self.objective.flatten(gradient)

    def _hessian(self, theta: Tree, others: Tree, batch: Any, scales: Any) -> Callable[[Tree], Tree]:
        gradient = jax.grad(lambda theta: self.objective.value(theta, batch, scales, others=others))
        return lambda vector: jax.jvp(gradient, (theta,), (vector,))[1]

    def _gauss_newton(self, theta: Tree, others: Tree, batch: Any, scales: Any) -> Callable[[Tree], Tree]:
        # The mask belongs to the tensor that the model returns, not to the one that stands for it below.
        masks: list[Any] = []

        def outputs_at(theta: Tree) -> Any:
            outputs, _ = self.objective.forward(theta, batch, others=others)
            masks[:] = [mask_of(output) for output in keras.tree.flatten(outputs)]
            return outputs

        def loss_at(outputs: Any) -> Any:
            for output, mask in zip(keras.tree.flatten(outputs), masks, strict=True):
                if mask is not None:
                    set_mask(output, mask)
            return self.objective.data_loss(batch, outputs, scales[:-1])

        def penalty_at(theta: Tree) -> Any:
            penalties = self.objective.forward(theta, batch, others=others)[1]
            return jnp.zeros((), self.objective.dtype) if penalties is None else penalties * scales[-1]

        def product(vector: Tree) -> Tree:
            outputs, directions = jax.jvp(outputs_at, (theta,), (vector,))
            curved = jax.jvp(jax.grad(loss_at), (outputs,), (directions,))[1]
            transposed = jax.vjp(outputs_at, theta)[1](curved)[0]
            if not self.objective.regularization:
                return transposed
            added = jax.jvp(jax.grad(penalty_at), (theta,), (vector,))[1]
            return [part + other for part, other in zip(transposed, added, strict=True)]

        return product

    def _fisher(self, theta: Tree, others: Tree, batch: Any, scales: Any) -> Callable[[Tree], Tree]:
        def losses_at(theta: Tree) -> Any:
            outputs, _ = self.objective.forward(theta, batch, others=others)
            return self.objective.example_losses(batch, outputs, scales[:-1])

        def product(vector: Tree) -> Tree:
            _, directions, weights = jax.jvp(losses_at, (theta,), (vector,), has_aux=True)
            _, transpose, _ = jax.vjp(losses_at, theta, has_aux=True)
            factor = scales[-1] if weights is None else scales[-1] * weights
            return transpose(factor * directions)[0]

        return product

    # What follows goes through the data.

    def _sum(self, name: str, function: Callable[..., Any], *arguments: Any, batches: Any = None) -> Any:
        """The sum over the batches of a function of (theta, others, batch, scales, *arguments)."""
        factors, examples = self.scales()
        compiled = self._compiled.setdefault(name, jax.jit(function))
        theta, others, sums = self._theta(), self._others(), None
        for batch in self.objective.batches if batches is None else batches:
            scales = (
                fisher_scales(self.objective, factors, examples)
                if name == "fisher"
                else [*factors, penalty_share(batch, examples)]
            )
            result = compiled(theta, others, _arrays(batch), jnp.asarray(scales, self.objective.dtype), *arguments)
            sums = result if sums is None else jax.tree_util.tree_map(jnp.add, sums, result)
        return sums

    def _theta(self) -> Tree:
        return [variable.value for variable in self.objective.variables]

    def _others(self) -> Tree:
        return [variable.value for variable in self.objective.others]


def _arrays(batch: Any) -> Any:
    """A batch as JAX arrays, also from a tf.data.Dataset."""
    return keras.tree.map_structure(lambda part: None if part is None else jnp.asarray(np.asarray(part)), batch)
