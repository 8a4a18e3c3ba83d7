"""Residual branches of a model: their last weights, in which they are linear, and their other weights."""

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

from idmatters_tf._keras_internals import (
    Call,
    ModelGraph,
    get_graph,
    graph_inputs,
    intercepted,
    is_addition,
    layers_within,
    own_trainable_variables,
    run_calls,
    substitute_values,
)
from idmatters_tf._keras_types import Structure, Tensor
from idmatters_tf.isometry.blocks import Block, checked_graph, find_operations
from idmatters_tf.layers._images import ConvolutionBlock
from idmatters_tf.surgery._checks import example_inputs

# Values of variables, by `id`, that take the place of those of the model.
Values: TypeAlias = Mapping[int, tuple[keras.Variable, Tensor]]
Evaluate: TypeAlias = Callable[[Values], NDArray[np.float64]]

# Ratio of two sizes of the last weights.
RATIO = 64.0


@dataclasses.dataclass(frozen=True)
class Branch:
    """The branch f of a block h + f(h), or the branches of a layer that contains several sums.

    Attributes:
        name: name of the block.
        last: for each sum, the variables W with f(h; c W) = c f(h; W) for c > 0.
        inner: the other trainable variables of the branch, also frozen ones.
    """

    name: str
    last: tuple[tuple[keras.Variable, ...], ...]
    inner: tuple[keras.Variable, ...]

    @property
    def variables(self) -> list[keras.Variable]:
        """All variables of the block."""
        return [*itertools.chain(*self.last), *self.inner]


def find_branches(model: keras.Model, data: Structure | None = None) -> list[Branch]:
    """Return the residual branches of a model, in order of execution. The model does not change.

    The last weights are found by experiment: with zeros in their place the branch is zero, no smaller set of the last
    weights has this property, and the branch is proportional to their size.

    Args:
        model: built functional or Sequential model.
        data: batch of inputs; random ones if None.

    Raises:
        ValueError: for a model without a graph or without blocks, for shared weights, for a branch that is not linear
            in its last weights, and for a normalization after the sums.
    """
    graph = checked_graph(model)
    calls = graph.calls
    blocks = list(find_operations(model, graph).values())
    _check_streams(blocks, calls)
    finder = _Finder(model, graph, blocks, _Record(model, calls, data))
    found = [branch for block in blocks if (branch := finder.find(block)) is not None]
    if not found:
        raise ValueError(
            f"The model {model.name!r} has no residual blocks. Write them as sums x + f(x) with `keras.layers.Add` or "
            f"`+`, or as layers that compute such sums."
        )
    owners: dict[int, str] = {}
    for branch in found:
        for variable in branch.variables:
            if owners.setdefault(id(variable), branch.name) != branch.name:
                raise ValueError(
                    f"The blocks {owners[id(variable)]!r} and {branch.name!r} share {variable.path!r}. Give each block "
                    f"weights of its own, and put no block inside of the branch of another one."
                )
    return found


def count_sums(branches: Iterable[Branch]) -> int:
    """Return the number of residual sums in blocks."""
    return sum(len(branch.last) for branch in branches)


def _check_streams(blocks: Iterable[Block], calls: Sequence[Call]) -> None:
    """Raise a ValueError if the inputs of at least half of the blocks are normalized sums of other blocks."""
    makers = {id(tensor): call for call in calls for tensor in call.outputs}
    ends = {id(block.end): block.name for block in blocks if block.end is not None}
    starts = [block.start for block in blocks if block.start is not None]
    found: list[tuple[str, str]] = []
    for tensor in starts:
        norm = None
        while (call := makers.get(id(tensor))) is not None and id(tensor) not in ends and len(call.inputs) == 1:
            if re.search("norm", type(call.operation).__name__, re.IGNORECASE) and call.way is None:
                norm = call.name
            elif call.way is None and getattr(call.operation, "weights", ()):
                break
            tensor = call.inputs[0]
        if norm is not None and id(tensor) in ends:
            found.append((ends[id(tensor)], norm))
    # A single one may separate two stages.
    if found and 2 * len(found) >= len(starts):
        raise ValueError(
            f"The sum {found[0][0]!r} is followed by the normalization {found[0][1]!r}, which undoes a part of the "
            f"scale. Normalize the inputs of the branches instead (pre-norm)."
        )


class _Record:
    """One call of a model: values of its symbolic tensors, the arguments of its layers, and their order.

    Weights of zeros are replaced by random ones, so that no branch is zero.
    """

    def __init__(self, model: keras.Model, calls: Sequence[Call], data: Structure | None):
        rng = np.random.default_rng(0)
        self.values: Values = {}
        layers = layers_within(model)
        for variable in itertools.chain(*map(own_trainable_variables, layers)):
            if not np.any(ops.convert_to_numpy(variable)):
                noise = 0.1 * rng.normal(size=tuple(variable.shape))
                self.values[id(variable)] = variable, ops.convert_to_tensor(noise, dtype=variable.dtype)
        self.arguments: dict[int, tuple[Any, Any]] = {}
        self.counts: dict[int, int] = {}
        self._order: dict[int, int] = {}
        self.tensors: dict[int, Tensor] = {}
        failure: Exception | None = None
        operations = {id(layer): layer for layer in layers if not isinstance(layer, keras.Model)}
        handlers = [(layer, functools.partial(self._observe, layer)) for layer in operations.values()]
        # Sizes that a model leaves open, long ones first. Some models of sequences have a largest length.
        for size in (32, 8):
            self.arguments.clear()
            self.counts.clear()
            try:
                with self.substituted({}), intercepted(handlers):
                    self.tensors = graph_inputs(model, example_inputs(model, data, size))
                    run_calls(calls, self.tensors, training=False)
                return
            except Exception as error:
                if data is not None:
                    raise
                failure = error
        raise ValueError(
            f"The model {model.name!r} cannot be called on random inputs. Pass a batch of inputs as `data`. The error: "
            f"{failure}"
        ) from failure

    def _observe(self, layer: Any, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self.counts[id(layer)] = self.counts.get(id(layer), 0) + 1
        self.arguments.setdefault(id(layer), (args, kwargs))
        outputs = call(*args, **kwargs)
        for variable in own_trainable_variables(layer):
            self._order.setdefault(id(variable), len(self._order))
        return outputs

    def substituted(self, values: Values) -> Any:
        """Return a context in which variables have other values, and those of zeros random ones."""
        return substitute_values({**self.values, **values}.values())

    def variables(self, operations: Iterable[Any]) -> list[keras.Variable]:
        """Return the variables of operations in the order of their use, each once."""
        layers = [operation for operation in operations if isinstance(operation, keras.layers.Layer)]
        found = {id(v): v for layer in layers for part in layers_within(layer) for v in own_trainable_variables(part)}
        return sorted(found.values(), key=lambda variable: self._order.get(id(variable), len(self._order)))


class _Finder:
    """Search for the weights of the blocks of a model."""

    def __init__(self, model: keras.Model, graph: ModelGraph, blocks: Collection[Block], record: _Record):
        self.calls, self.ancestors, self.blocks, self.record = graph.calls, graph.ancestors, blocks, record
        self.call_of = {id(call.operation): call for call in graph.calls}
        # Calls that use a tensor, by `id`. Outputs are also used outside of the model.
        self.users: dict[int, set[int]] = {id(tensor): {0} for tensor in get_graph(model).outputs}
        for call in graph.calls:
            for tensor in (*call.inputs, *call.masks):
                self.users.setdefault(id(tensor), set()).add(id(call))

    def find(self, block: Block) -> Branch | None:
        """Return the branch of a block; None for a layer without a residual sum, and for a part of another block."""
        operation = block.operation
        listed = [call for call in self.calls if call.operation is operation]
        # The calls of a nested model that is called several times are not listed.
        if self.record.counts.get(id(operation), len(listed)) > 1 or (block.start is not None and not listed):
            raise ValueError(
                f"The block {block.name!r} is called several times. Give each block layers of its own, also a layer "
                f"`Add` for each sum."
            )
        if is_addition(operation):
            return self._find_in_graph(block)
        if isinstance(operation, ConvolutionBlock):
            return self._find_in_convolutions(block)
        return self._find_in_layer(block)

    def _find_in_graph(self, block: Block) -> Branch | None:
        ends = [self.call_of[id(block.operation)]]
        if ends[0].inputs[block.index] is not block.start:
            # The second addition of (x + f(x)) + g(x).
            return None
        terms = [tensor for index, tensor in enumerate(ends[0].inputs) if index != block.index]
        for other in self.blocks:
            call = self.call_of.get(id(other.operation))
            if call and other.start is block.start and call.inputs[other.index] is ends[-1].outputs[0]:
                ends.append(call)
                terms.append(call.inputs[1 - other.index])
        calls = self._branch_calls(block, ends)

        def evaluate(values: Values) -> NDArray[np.float64]:
            tensors = dict(self.record.tensors)
            with self.record.substituted(values):
                run_calls(calls, tensors, training=False)
            return np.asarray(sum(_to_array(tensors[id(term)]) for term in terms))

        # The operation of the input and the output of a nested model is the model, whose calls are listed.
        operations = [call.operation for call in calls if call.way is None]
        for operation in operations:
            if getattr(operation, "weights", ()) and sum(call.operation is operation for call in self.calls) > 1:
                raise ValueError(
                    f"The block {block.name!r} contains {operation.name!r}, which is called several times with the "
                    f"same weights. Give each block weights of its own."
                )
        return self._search(block.name, evaluate, self.record.variables(operations), {})

    def _branch_calls(self, block: Block, ends: Collection[Call]) -> list[Call]:
        """Return the calls whose outputs are used only by the branch of a block, which some additions add to x."""
        others = {id(other.end) for other in self.blocks if other.end is not None and other is not block}
        inside = {id(end) for end in ends}
        found: list[Call] = []
        for call in reversed(self.calls):
            tensors = {id(tensor) for tensor in call.outputs}
            is_used = all(self.users.get(key, {0}) <= inside for key in tensors)
            if not is_used or id(call) in inside or id(block.start) in tensors:
                continue
            above = tensors.union(*(self.ancestors.get(key, ()) for key in tensors))
            if id(block.start) in above or not above & others:
                inside.add(id(call))
                found.insert(0, call)
        return found

    def _find_in_convolutions(self, block: Block) -> Branch | None:
        layer = block.operation
        if getattr(layer, "shortcut", None) == "none":
            return None
        excluded = [getattr(layer, name, None) for name in ("skip", "skip_norm")]
        if getattr(layer, "preactivation", None) == "both":
            # This normalization is on both paths.
            excluded.append(layer.norm1)
        kept = {id(variable) for variable in self.record.variables(excluded)}
        variables = [variable for variable in self.record.variables([layer]) if id(variable) not in kept]
        if (scale := getattr(layer, "scale", None)) is not None:
            return Branch(block.name, ((scale,),), tuple(v for v in variables if v is not scale))
        (images, *_), _ = self.record.arguments[id(layer)]

        def evaluate(values: Values) -> NDArray[np.float64]:
            with self.record.substituted(values):
                return _to_array(layer.branch(images, False))

        return self._search(block.name, evaluate, variables, {})

    def _find_in_layer(self, block: Block) -> Branch | None:
        layer = block.operation
        if id(layer) not in self.record.arguments:
            return None
        args, kwargs = self.record.arguments[id(layer)]
        tensors = keras.tree.flatten((args, kwargs))
        # Masks may come first among named arguments.
        are_values = [ops.is_tensor(t) and keras.backend.is_float_dtype(ops.dtype(t)) for t in tensors]
        first = are_values.index(True)

        def evaluate(values: Values, factor: float = 1.0) -> NDArray[np.float64]:
            # Positive inputs, which pass a rectifier after the sum. Copies have no masks.
            given: list[Any] = [ops.copy(tensor) if ops.is_tensor(tensor) else tensor for tensor in tensors]
            positive: Any = ops.abs(given[first])
            given[first] = factor * positive + 1
            positional, named = keras.tree.pack_sequence_as((args, kwargs), given)
            with self.record.substituted(values):
                return _to_array(keras.tree.flatten(layer.call(*positional, **named))[0])

        positive: Any = ops.abs(tensors[first])
        inputs = _to_array(positive + 1)
        variables = self.record.variables([layer])
        if not np.array_equal(evaluate(_zeros(variables)), inputs):
            kernels = _zeros([variable for variable in variables if len(variable.shape) > 1])
            if np.array_equal(evaluate(kernels), evaluate(kernels, 0.5)):
                return None
            raise ValueError(
                f"The block {block.name!r} ({type(layer).__name__}) changes the sum x + f(x), for example by a "
                f"normalization, which undoes a part of the scale. Use blocks that normalize the input of the branch, "
                f"as by `normalize_first=True`."
            )
        layers = {id(v): id(part) for part in layers_within(layer) for v in own_trainable_variables(part)}
        return self._search(block.name, lambda values: evaluate(values) - inputs, variables, layers)

    def _search(
        self, name: str, evaluate: Evaluate, variables: Sequence[keras.Variable], layers: Mapping[int, int]
    ) -> Branch:
        """Return the branch with a given value as a function of its weights.

        Args:
            name: name of the block.
            evaluate: function of the values of weights that returns the value of the branch.
            variables: weights of the branch in the order of their use.
            layers: layers of the weights, both by `id`; the last weights in each one are those of a sum.
        """
        tails = (variables[index:] for index in reversed(range(len(variables))))
        last = next((tail for tail in tails if not np.any(evaluate(_zeros(tail)))), None)
        if last is None:
            raise _nonlinear_error(name, "it is not zero when all of its weights are zero")
        for variable in last:
            fewer = [other for other in last if other is not variable]
            last = last if np.any(evaluate(_zeros(fewer))) else fewer
        sums: dict[int, list[keras.Variable]] = {}
        for variable in last:
            sums.setdefault(layers.get(id(variable), 0), []).append(variable)
        for group in sums.values():
            others = _zeros([variable for key in sums for variable in sums[key] if sums[key] is not group])
            self._check_linear(name, lambda values, others=others: evaluate({**others, **values}), group)
        chosen = {id(variable) for variable in last}
        inner = tuple(variable for variable in variables if id(variable) not in chosen)
        return Branch(name, tuple(map(tuple, sums.values())), inner)

    def _check_linear(self, name: str, evaluate: Evaluate, last: Sequence[keras.Variable]) -> None:
        """Raise a ValueError if a branch is not proportional to the size of its last weights."""

        def scaled(size: float) -> NDArray[np.float64]:
            values = {id(v): self.record.values.get(id(v), (v, ops.convert_to_tensor(v)))[1] for v in last}
            return evaluate({id(v): (v, ops.cast(size, v.dtype) * values[id(v)]) for v in last})

        # In steps, because values of 16 bits may be very small. The larger size gives values up to a half.
        size = 1.0
        for _ in range(2):
            largest = np.abs(scaled(size)).max(initial=0.0)
            size *= 2.0 ** round(math.log2(0.5 / largest)) if 0 < largest < np.inf else 1.0
        small, large = scaled(size / RATIO), scaled(size)
        dtypes = {keras.backend.standardize_dtype(thing.dtype) for thing in (*last, *self.record.tensors.values())}
        tolerance = 0.05 if dtypes & {"float16", "bfloat16"} else 1e-3
        if not np.abs(large - RATIO * small).max(initial=0.0) <= tolerance * np.abs(large).max(initial=0.0):
            paths = ", ".join(variable.path for variable in last)
            raise _nonlinear_error(name, f"it is not proportional to its last weights {paths}")


def _nonlinear_error(name: str, reason: str) -> ValueError:
    return ValueError(
        f"The branch of the block {name!r} cannot be scaled by weights: {reason}. End it with a linear layer, or with "
        f"a trained factor."
    )


def _to_array(tensor: Tensor) -> NDArray[np.float64]:
    return np.asarray(ops.convert_to_numpy(tensor)).astype(np.float64)


def _zeros(variables: Iterable[keras.Variable]) -> Values:
    return {id(variable): (variable, ops.zeros(variable.shape, variable.dtype)) for variable in variables}
