"""Training of networks of equal blocks on JAX, with one compiled block.

Keras compiles each block of a network. Here `jax.lax.scan` runs one block over the stacked weights of all, and
`jax.vmap` one Keras optimizer over their states, so that networks of 64 blocks are compiled in seconds.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from idmatters_tf.optimizers.building import build_optimizer

Arrays = list[Any]


class Stack:
    """Network of `depth` equal blocks with the weights of a Keras model of this or a larger depth.

    Args:
        single: network of one block, from which computations are taken.
        names: layers at the ends of its block.
    """

    def __init__(self, single: keras.Model, names: tuple[str, str]):
        start, end = (single.get_layer(name).output for name in names)
        self.single = single
        self.parts = [keras.Model(single.inputs, start), keras.Model(start, end), keras.Model(end, single.outputs)]
        inside = {id(variable) for variable in self.parts[1].variables}
        self.is_inside = [id(variable) in inside for variable in single.variables]

    def values(self, model: keras.Model, depth: int) -> Arrays:
        """Return the values of a deeper model's variables up to a depth, those of blocks stacked along a new axis."""
        first, count = self.is_inside.index(True), sum(self.is_inside)
        values = [np.asarray(keras.ops.convert_to_numpy(variable)) for variable in model.variables]
        blocks = (len(values) - len(self.is_inside)) // count + 1
        assert self.is_inside[first : first + count] == [True] * count
        stacked = [
            np.stack([values[first + count * number + index] for number in range(depth)]) for index in range(count)
        ]
        return [*values[:first], *stacked, *values[first + count * blocks :]]

    def losses(
        self, optimizer: keras.optimizers.Optimizer, loss: Callable[..., Any], depth: int
    ) -> Callable[[Arrays, float, Any], NDArray[np.float32]]:
        """Return a function of initial values, a learning rate and stacked batches that returns the loss of each step.

        The optimizer must be new.
        """
        import jax

        from idmatters_tf._keras_internals import optimizer_attributes

        model: Any = self.single
        trained: Any = model.trainable_variables
        order = {id(variable): index for index, variable in enumerate(model.variables)}
        trainable = [order[id(variable)] for variable in trained]
        build_optimizer(optimizer, model)
        state: Any = optimizer.variables
        slots = {
            id(slot)
            for slots in optimizer_attributes(optimizer).values()
            if isinstance(slots, (list, tuple)) and len(slots) == len(trained)
            for slot, index in zip(slots, trainable, strict=True)
            if self.is_inside[index]
        }
        weight_axes = [0 if self.is_inside[index] else None for index in trainable]
        state_axes = [0 if id(variable) in slots else None for variable in state]
        rate_index = [variable is optimizer.learning_rate for variable in state].index(True)

        def forward(values: Arrays, x: Any, y: Any) -> tuple[Any, Arrays]:
            """Return the loss and the values of all variables after the call."""
            updated = list(values)

            def call(part: Any, found: Arrays, inputs: Any) -> tuple[Any, Arrays]:
                known = {id(variable): value for variable, value in zip(part.variables, found, strict=True)}
                first, others = (
                    [known[id(v)] for v in vs] for vs in (part.trainable_variables, part.non_trainable_variables)
                )
                outputs, changed = part.stateless_call(first, others, inputs, training=True)
                known |= {id(v): value for v, value in zip(part.non_trainable_variables, changed, strict=True)}
                return outputs, [known[id(variable)] for variable in part.variables]

            hidden = x
            for number, part in enumerate(self.parts):
                indices = [order[id(variable)] for variable in part.variables]
                found = [values[index] for index in indices]
                if number == 1:
                    hidden, found = jax.lax.scan(lambda h, w: call(self.parts[1], w, h), hidden, found)
                else:
                    hidden, found = call(part, found, hidden)
                for index, value in zip(indices, found, strict=True):
                    updated[index] = value
            return loss(y, hidden), updated

        def step(carry: Any, batch: Any) -> Any:
            values, state = carry

            def compute(weights: Arrays) -> Any:
                everything = list(values)
                for index, weight in zip(trainable, weights, strict=True):
                    everything[index] = weight
                return forward(everything, *batch)

            weights = [values[index] for index in trainable]
            (value, updated), gradients = jax.value_and_grad(compute, has_aux=True)(weights)
            apply: Any = jax.vmap(
                lambda state, gradients, weights: optimizer.stateless_apply(state, gradients, weights),
                in_axes=(state_axes, weight_axes, weight_axes),
            )
            weights, state = apply(state, gradients, weights)
            for index, weight, axis in zip(trainable, weights, weight_axes, strict=True):
                updated[index] = weight if axis == 0 else weight[0]
            state = [value if axis == 0 else value[0] for value, axis in zip(state, state_axes, strict=True)]
            return (updated, state), value

        compiled = jax.jit(lambda values, state, batches: jax.lax.scan(step, (values, state), batches)[1])
        fresh = [np.asarray(keras.ops.convert_to_numpy(variable)) for variable in state]
        start = [
            np.broadcast_to(value, (depth, *value.shape)) if axis == 0 else value
            for value, axis in zip(fresh, state_axes, strict=True)
        ]

        def train(values: Arrays, rate: float, batches: Sequence[Any]) -> NDArray[np.float32]:
            state = [np.float32(rate) if index == rate_index else value for index, value in enumerate(start)]
            return np.asarray(compiled(values, state, batches))

        return train
