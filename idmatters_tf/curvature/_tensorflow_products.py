"""Products by TensorFlow's tapes: reverse over reverse (Pearlmutter, 1994), traced once for each shape of a batch.

On one device, or over the replicas of the `tf.distribute.MirroredStrategy` in whose scope this is made.
"""

import contextlib
import gc
import itertools
import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from idmatters_tf._keras_internals import mask_of, set_mask
from idmatters_tf.curvature import _tapes
from idmatters_tf.curvature._batches import length
from idmatters_tf.curvature._objective import Objective, penalty_share
from idmatters_tf.curvature._products import Array, Kind, Products, fisher_scales
from idmatters_tf.curvature._second_derivatives import differentiable_twice
from idmatters_tf.curvature._tracing import Traced, quiet

# A function of (theta, batch, scales, *arguments).
OnBatch = Callable[..., Any]


class TensorFlowProducts(Products):
    """`Products` on Keras' TensorFlow backend."""

    def __init__(self, objective: Objective):
        super().__init__(objective)
        self._strategy: Any = tf.distribute.get_strategy()
        self.replicas = int(self._strategy.num_replicas_in_sync)
        if isinstance(
            self._strategy,
            (tf.distribute.MultiWorkerMirroredStrategy, tf.distribute.experimental.ParameterServerStrategy),
        ):
            raise ValueError(
                "Curvature is computed on one machine: leave the scope of the multi-worker strategy, or use "
                "tf.distribute.MirroredStrategy."
            )
        self._traces: dict[str, Traced] = {}
        # TensorFlow's graphs are full of cycles, a megabyte for each operator, which would wait for a later collection.
        weakref.finalize(self, _release, self._traces).atexit = False
        # A batch and its tensors: arrays of one batch, as they are for small models, are converted once.
        self._last: tuple[Any, Any] = (None, None)
        # False once TensorFlow has failed to vectorise this model, as it does for RNNs that are not unrolled.
        self._vectorizes = True

    def scales(self) -> tuple[NDArray[np.float64], int]:
        loss = self.objective.loss
        if self.replicas > 1 and any(term.joins_examples for term in loss.terms):
            raise ValueError(
                f"The loss {loss!r} joins the examples of a batch, which would be split over {self.replicas} "
                f"replicas. Leave the strategy's scope."
            )
        if self.replicas > 1 and (loss.is_compute_loss or any(term.is_opaque for term in loss.terms)):
            raise ValueError(
                f"The loss {loss!r} reduces by itself, and Keras divides losses by the number of replicas, here "
                f"{self.replicas}. Leave the strategy's scope."
            )
        return super().scales()

    def counts(self, batch: Any) -> NDArray[np.float64]:
        batch = _tensors(batch)
        outputs, _ = self.objective.forward(self._theta(), batch)
        return self.objective.counts(batch, outputs).numpy().astype(np.float64)

    def outputs(self, batch: Any) -> Any:
        return self.objective.forward(self._theta(), _tensors(batch))[0]

    def loss(self) -> float:
        return float(self._sum("value"))

    def loss_and_gradient(self, draw: int = 0, offset: Array | None = None, batch: Any = None) -> tuple[float, Array]:
        # Tensors, so that one trace serves all.
        offset = np.zeros(self.objective.size) if offset is None else offset
        arguments = tf.constant(draw), tf.constant(offset, self.objective.dtype)
        value, gradient = self._sum("loss_and_gradient", *arguments, batches=None if batch is None else [batch])
        return float(value), gradient.numpy()

    def product(self, kind: Kind, vectors: Array) -> Array:
        dtype = self.objective.dtype
        if len(vectors) > 1 and self._vectorizes:
            try:
                with quiet(logging.ERROR):
                    return np.asarray(self._sum(f"{kind}_products", tf.constant(vectors, dtype)))
            except (ValueError, NotImplementedError, tf.errors.OpError):
                # Where single products fail, too, the error is theirs.
                self._vectorizes = False
        products = np.empty(vectors.shape, dtype)
        for vector, product in zip(vectors, products, strict=True):
            parts = self._sum(f"{kind}_products", tf.constant(vector, dtype))
            # Joined here: numpy() would copy each part, tf.concat all of them.
            np.concatenate([np.ravel(np.asarray(part)) for part in parts], out=product)
        return products

    # What follows is traced: functions of (theta, batch, scales, *arguments).

    def _on_value(self, theta: Any, batch: Any, scales: Any) -> Any:
        return self.objective.value(theta, batch, scales)

    def _on_loss_and_gradient(self, theta: Any, batch: Any, scales: Any, draw: Any, offset: Any) -> Any:
        theta = [value + part for value, part in zip(theta, self.objective.split(offset), strict=True)]
        with tf.GradientTape() as tape:
            tape.watch(theta)
            value = self.objective.value(theta, batch, scales, draw)
        return value, self.objective.flatten(_tapes.gradient(tape, value, theta))

    def _on_hessian_products(self, theta: Any, batch: Any, scales: Any, vectors: Any) -> Any:
        return self._mapped(self._hessian(theta, batch, scales), vectors)

    def _on_gauss_newton_products(self, theta: Any, batch: Any, scales: Any, vectors: Any) -> Any:
        return self._mapped(self._gauss_newton(theta, batch, scales), vectors)

    def _on_fisher_products(self, theta: Any, batch: Any, scales: Any, vectors: Any) -> Any:
        return self._mapped(self._fisher(theta, batch, scales), vectors)

    def _mapped(self, linear_map: Callable[[list[Any]], list[Any]], vectors: Any) -> Any:
        """A list of parts like the variables for a vector (P,); (k, P) for k vectors."""
        if vectors.shape.rank == 1:
            return linear_map(self.objective.split(vectors))
        flat, split = self.objective.flatten, self.objective.split
        return tf.vectorized_map(lambda vector: flat(linear_map(split(vector))), vectors)

    def _hessian(self, theta: Any, batch: Any, scales: Any) -> Callable[[list[Any]], list[Any]]:
        with tf.GradientTape() as outer:
            outer.watch(theta)
            with tf.GradientTape() as inner:
                inner.watch(theta)
                value = self.objective.value(theta, batch, scales)
            gradient = _tapes.gradient(inner, value, theta)
        return lambda vector: _tapes.gradient(outer, gradient, theta, vector)

    def _gauss_newton(self, theta: Any, batch: Any, scales: Any) -> Callable[[list[Any]], list[Any]]:
        with tf.GradientTape(persistent=True) as second:
            second.watch(theta)
            with tf.GradientTape(persistent=True) as first:
                first.watch(theta)
                structure, penalties = self.objective.forward(theta, batch)
                outputs = tf.nest.flatten(structure)
            penalty_gradient = None if penalties is None else _tapes.gradient(first, penalties, theta)
        jvp = _tapes.jvp(first, theta, outputs)
        # The Hessian at the outputs, as a function of them alone.
        points = [_like(output) for output in outputs]
        with tf.GradientTape() as outer:
            outer.watch(points)
            with tf.GradientTape() as inner:
                inner.watch(points)
                value = self.objective.data_loss(batch, tf.nest.pack_sequence_as(structure, points), scales[:-1])
            slope = _tapes.gradient(inner, value, points)

        def product(vector: list[Any]) -> list[Any]:
            vjp = _tapes.gradient(first, outputs, theta, _tapes.gradient(outer, slope, points, jvp(vector)))
            if penalty_gradient is None:
                return vjp
            added = _tapes.gradient(second, penalty_gradient, theta, vector)
            return [part + scales[-1] * other for part, other in zip(vjp, added, strict=True)]

        return product

    def _fisher(self, theta: Any, batch: Any, scales: Any) -> Callable[[list[Any]], list[Any]]:
        # scales: of the terms, then the factor of the sum of g g^T.
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(theta)
            outputs, _ = self.objective.forward(theta, batch)
            losses, weights = self.objective.example_losses(batch, outputs, scales[:-1])
        jvp = _tapes.jvp(tape, theta, [losses])
        factor = scales[-1] if weights is None else scales[-1] * weights
        return lambda vector: _tapes.gradient(tape, losses, theta, factor * jvp(vector)[0])

    # What follows goes through the data.

    def _sum(self, name: str, *arguments: Any, batches: Any = None) -> Any:
        """The sum over the batches of the function `_on_NAME`."""
        factors, examples = self.scales()
        fisher = name.startswith("fisher")
        sums = None
        # Contexts that matter while a graph is made; `Traced` enters them itself.
        with contextlib.ExitStack() as contexts:
            if self.replicas > 1:
                contexts.enter_context(differentiable_twice())
                contexts.enter_context(quiet())
            for batch in self.objective.batches if batches is None else batches:
                if self._last[0] is not batch or not self.objective.batches.kept:
                    self._last = batch, _tensors(batch)
                parts = _shares(self._last[1], self.replicas)
                scales = [
                    tf.constant(
                        fisher_scales(self.objective, factors, examples, share)
                        if fisher
                        else [*(factors * share), share * penalty_share(part, examples)],
                        self.objective.dtype,
                    )
                    for part, share in parts
                ]
                traced = self._trace(name, self.replicas > 1)
                try:
                    if self.replicas == 1:
                        result = traced(parts[0][0], scales[0], *arguments)
                    else:
                        spread = self._spread([part for part, _ in parts]), self._spread(scales)
                        result = traced.function(*spread, *arguments)
                except Exception as error:
                    reason = _missing_gradient(error)
                    if reason is None:
                        raise
                    raise ValueError(
                        f"TensorFlow cannot differentiate this model and loss twice. It says: {reason}. A "
                        f"FisherOperator can do without second derivatives of the loss; KERAS_BACKEND=jax has them all."
                    ) from error
                sums = result if sums is None else tf.nest.map_structure(tf.add, sums, result)
        return sums

    def _trace(self, name: str, replicated: bool) -> Traced:
        if name not in self._traces:
            # Weak, or this object would live as long as its traces.
            this = weakref.ref(self)

            def on_replica(batch: Any, scales: Any, *arguments: Any) -> Any:
                products: Any = this()
                return getattr(products, f"_on_{name}")(products._theta(), batch, scales, *arguments)

            strategy = self._strategy

            def on_replicas(batch: Any, scales: Any, *arguments: Any) -> Any:
                results = strategy.run(on_replica, args=(batch, scales, *arguments))
                return tf.nest.map_structure(
                    lambda result: strategy.reduce(tf.distribute.ReduceOp.SUM, result, axis=None), results
                )

            self._traces[name] = Traced(on_replicas if replicated else on_replica)
        return self._traces[name]

    def _theta(self) -> list[Any]:
        return [tf.convert_to_tensor(variable.value) for variable in self.objective.variables]

    def _spread(self, values: Sequence[Any]) -> Any:
        """One value for each replica."""
        return self._strategy.experimental_distribute_values_from_function(
            lambda context: values[context.replica_id_in_sync_group]
        )


def _like(output: Any) -> Any:
    """The same values without their history, with their Keras mask."""
    point: Any = tf.identity(tf.stop_gradient(output))
    mask = mask_of(output)
    if mask is not None:
        set_mask(point, mask)
    return point


def _missing_gradient(error: Exception) -> str | None:
    """What TensorFlow says where an operation has no gradient; None for all other errors.

    Tracing wraps the error in one of its own. Inside a loop nothing is noticed before the graph runs.
    """
    for cause in (error, error.__context__):
        lines = str(cause).strip().splitlines()
        if lines and ("gradient registry" in lines[-1] or "SymbolicGradient" in lines[-1]):
            return lines[-1].strip()
    return None


def _release(traces: dict[str, Traced]) -> None:
    """Frees the graphs of an operator that is no longer used."""
    traces.clear()
    gc.collect()


def _tensors(batch: Any) -> Any:
    return tf.nest.map_structure(lambda part: None if part is None else tf.convert_to_tensor(part), batch)


def _shares(batch: Any, replicas: int) -> list[tuple[Any, float]]:
    """(part, factor) for each replica; parts differ in size by at most one example.

    A batch with fewer examples than replicas is given to all of them, and counts on the first alone.
    """
    if replicas == 1:
        return [(batch, 1.0)]
    size = length(batch)
    if size < replicas:
        return [(batch, float(replica == 0)) for replica in range(replicas)]
    bounds = np.linspace(0, size, replicas + 1).round().astype(int)
    return [
        (tf.nest.map_structure(lambda tensor, a=a, b=b: tensor[a:b], batch), 1.0) for a, b in itertools.pairwise(bounds)
    ]
