"""Residual branches of a model: their last weights, in which they are linear, and their other weights."""

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

from idmatters_tf._keras_internals import (
    Call,
    find_ancestors,
    get_graph,
    graph_calls,
    graph_inputs,
    intercepted,
    is_addition,
    layers_within,
    own_trainable_variables,
    run_calls,
    substitute_values,
)
from idmatters_tf._keras_types import Structure, Tensor
from idmatters_tf.isometry.blocks import Block, find_operations
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
    calls = graph_calls(model)
    if calls is None:
        raise ValueError(
            f"Argument `model` must be a built functional or Sequential model. Received: {type(model).__name__} "
            f"{model.name!r}. Build it on an input shape, or build a functional model from its layers."
        )
    ancestors = find_ancestors(calls)
    blocks = [block for block in find_operations(model).values() if not _continues_sum(block, calls)]
    _check_streams(blocks, calls)
    record = _Record(model, calls, data)
    finder = _Finder(record, calls, ancestors, blocks, {id(tensor) for tensor in get_graph(model).outputs})
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


def _continues_sum(block: Block, calls: Sequence[Call]) -> bool:
    """Return True for the second addition of (x + f(x)) + g(x), which belongs to the block of the first one."""
    call = next((call for call in calls if call.operation is block.operation), None)
    return call is not None and is_addition(block.operation) and call.inputs[block.index] is not block.start


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
        for layer in layers_within(model):
            for variable in own_trainable_variables(layer):
                if not np.any(ops.convert_to_numpy(variable)):
                    noise = 0.1 * rng.normal(size=tuple(variable.shape))
                    self.values[id(variable)] = variable, ops.convert_to_tensor(noise, dtype=variable.dtype)
        self.arguments: dict[int, tuple[Any, Any]] = {}
        self.counts: dict[int, int] = {}
        self._order: dict[int, int] = {}
        self.tensors: dict[int, Tensor] = {}
        failure: Exception | None = None
        operations = {id(layer): layer for layer in layers_within(model) if not isinstance(layer, keras.Model)}
        handlers = [(layer, functools.partial(self._observe, layer)) for layer in operations.values()]
        # Sizes that a model leaves open, long ones first. Some models of sequences have a largest length.
        for size in (32, 8):
            self.arguments.clear()
            self.counts.clear()
            try:
                with substitute_values(self.values.values()), intercepted(handlers):
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

    def variables(self, operations: Iterable[Any]) -> list[keras.Variable]:
        """Return the variables of operations in the order of their use, each once."""
        layers = [operation for operation in operations if isinstance(operation, keras.layers.Layer)]
        found = {id(v): v for layer in layers for part in layers_within(layer) for v in own_trainable_variables(part)}
        return sorted(found.values(), key=lambda variable: self._order.get(id(variable), len(self._order)))


@dataclasses.dataclass
class _Finder:
    """Search for the weights of the blocks of a model."""

    record: _Record
    calls: Sequence[Call]
    ancestors: Mapping[int, set[int]]
    blocks: Iterable[Block]
    outputs: set[int]

    def find(self, block: Block) -> Branch | None:
        """Return the branch of a block, or None for a layer without a residual sum."""
        operation = block.operation
        listed = sum(call.operation is operation for call in self.calls)
        # The calls of a nested model that is called several times are not listed.
        if self.record.counts.get(id(operation), listed) > 1 or (block.start is not None and not listed):
            raise ValueError(
                f"The block {block.name!r} is called several times. Give each block layers of its own, also a layer "
                f"`Add` for each sum."
            )
        if is_addition(operation):
            return self._find_in_graph(block)
        if isinstance(operation, ConvolutionBlock):
            return self._find_in_convolutions(block)
        return self._find_in_layer(block)

    def _find_in_graph(self, block: Block) -> Branch:
        ends, branches = self._terms(block)
        calls = self._branch_calls(block, ends)

        def evaluate(values: Values) -> NDArray[np.float64]:
            tensors = dict(self.record.tensors)
            with substitute_values(({**self.record.values, **values}).values()):
                run_calls(calls, tensors, training=False)
            return np.asarray(sum(_to_array(tensors[id(branch)]) for branch in branches))

        # The operation of the input and the output of a nested model is the model, whose calls are listed.
        operations = [call.operation for call in calls if call.way is None]
        counts = {id(operation): sum(call.operation is operation for call in self.calls) for operation in operations}
        for operation in operations:
            if counts[id(operation)] > 1 and getattr(operation, "weights", ()):
                raise ValueError(
                    f"The block {block.name!r} contains {operation.name!r}, which is called several times with the "
                    f"same weights. Give each block weights of its own."
                )
        return self._search(block.name, evaluate, operations, self.record.variables(operations))

    def _terms(self, block: Block) -> tuple[list[Call], list[Any]]:
        """Return the additions of a sum x + f(x) + g(x) + ..., and its terms without x."""
        end = next(call for call in self.calls if call.operation is block.operation)
        ends, branches = [end], [tensor for index, tensor in enumerate(end.inputs) if index != block.index]
        while True:
            total = end.outputs[0]
            users = [call for call in self.calls if any(tensor is total for tensor in call.inputs)]
            if len(users) != 1 or not is_addition(users[0].operation) or len(users[0].inputs) != 2:
                return ends, branches
            other = next((tensor for tensor in users[0].inputs if tensor is not total), total)
            if id(block.start) not in self.ancestors.get(id(other), ()):
                return ends, branches
            end = users[0]
            ends.append(end)
            branches.append(other)

    def _branch_calls(self, block: Block, ends: Sequence[Call]) -> list[Call]:
        """Return the calls whose outputs are used only by the branch of a block, which some additions add to x."""
        consumers: dict[int, list[int]] = {}
        for index, call in enumerate(self.calls):
            for tensor in (*call.inputs, *call.masks):
                consumers.setdefault(id(tensor), []).append(index)
        sums = {id(other.end) for other in self.blocks if other.end is not None and other is not block}
        additions = {index for index, call in enumerate(self.calls) if any(call is end for end in ends)}
        inside = set(additions)
        for index, call in reversed(list(enumerate(self.calls))):
            tensors = {id(tensor) for tensor in call.outputs}
            above = set().union(*(self.ancestors.get(key, set()) for key in tensors)) | tensors
            is_used = all(key in consumers and inside.issuperset(consumers[key]) for key in tensors)
            is_end = id(block.start) in tensors or tensors & self.outputs
            if is_used and not is_end and (id(block.start) in above or not above & sums):
                inside.add(index)
        return [self.calls[index] for index in sorted(inside - additions)]

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
            with substitute_values(({**self.record.values, **values}).values()):
                return _to_array(layer.branch(images, False))

        steps = [step for step in layer.branch_steps() if isinstance(step, keras.layers.Layer)]
        return self._search(block.name, evaluate, steps, variables)

    def _search(
        self, name: str, evaluate: Evaluate, operations: Sequence[Any], variables: Sequence[keras.Variable]
    ) -> Branch:
        """Return the branch with a given value as a function of its weights."""
        candidates: list[keras.Variable] = []
        for operation in reversed(operations):
            own = self.record.variables([operation])
            candidates = own + candidates
            if own and not np.any(evaluate(_zeros(candidates))):
                break
        else:
            raise _nonlinear_error(name, "it is not zero when all of its weights are zero")
        last = _last_weights(evaluate, candidates, lambda value: not np.any(value))
        self._check_linear(name, evaluate, last, 0.0)
        chosen = {id(variable) for variable in last}
        return Branch(name, (tuple(last),), tuple(v for v in variables if id(v) not in chosen))

    def _find_in_layer(self, block: Block) -> Branch | None:
        layer = block.operation
        variables = self.record.variables([layer])
        if id(layer) not in self.record.arguments:
            return None
        args, kwargs = self.record.arguments[id(layer)]
        tensors = keras.tree.flatten((args, kwargs))
        first = next(index for index, tensor in enumerate(tensors) if keras.ops.is_tensor(tensor))

        def evaluate(values: Values, factor: float = 1.0) -> NDArray[np.float64]:
            # Positive inputs, which pass a rectifier after the sum. Copies have no masks.
            given: list[Any] = [ops.copy(tensor) if ops.is_tensor(tensor) else tensor for tensor in tensors]
            positive: Any = ops.abs(given[first])
            given[first] = factor * positive + 1
            positional, named = keras.tree.pack_sequence_as((args, kwargs), given)
            with substitute_values(({**self.record.values, **values}).values()):
                return _to_array(keras.tree.flatten(layer.call(*positional, **named))[0])

        positive: Any = ops.abs(tensors[first])
        inputs = _to_array(positive + 1)
        zeros = _zeros(variables)
        if not np.array_equal(evaluate(zeros), inputs):
            kernels = _zeros([variable for variable in variables if len(variable.shape) > 1])
            if np.array_equal(evaluate(kernels), evaluate(kernels, 0.5)):
                return None
            raise ValueError(
                f"The block {block.name!r} ({type(layer).__name__}) changes the sum x + f(x), for example by a "
                f"normalization, which undoes a part of the scale. Use blocks that normalize the input of the branch, "
                f"as by `normalize_first=True`."
            )
        last = _last_weights(evaluate, variables, lambda value: np.array_equal(value, inputs))
        groups: dict[int, list[keras.Variable]] = {}
        owners = {id(v): id(part) for part in layers_within(layer) for v in own_trainable_variables(part)}
        for variable in last:
            groups.setdefault(owners[id(variable)], []).append(variable)
        for group in groups.values():
            others = _zeros([variable for variable in last if owners[id(variable)] != owners[id(group[0])]])
            self._check_linear(block.name, functools.partial(_evaluate_with, evaluate, others), group, inputs)
        chosen = {id(variable) for variable in last}
        inner = tuple(variable for variable in variables if id(variable) not in chosen)
        return Branch(block.name, tuple(map(tuple, groups.values())), inner)

    def _check_linear(self, name: str, evaluate: Evaluate, last: Sequence[keras.Variable], base: Any) -> None:
        """Raise a ValueError if the part of a value beyond `base` is not proportional to the size of weights."""

        def scaled(size: float) -> NDArray[np.float64]:
            values = {id(v): self.record.values.get(id(v), (v, ops.convert_to_tensor(v)))[1] for v in last}
            return evaluate({id(v): (v, ops.cast(size, v.dtype) * values[id(v)]) for v in last}) - base

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


def _evaluate_with(evaluate: Evaluate, fixed: Values, values: Values) -> NDArray[np.float64]:
    return evaluate({**fixed, **values})


def _to_array(tensor: Tensor) -> NDArray[np.float64]:
    return np.asarray(ops.convert_to_numpy(tensor)).astype(np.float64)


def _zeros(variables: Iterable[keras.Variable]) -> Values:
    return {id(variable): (variable, ops.zeros(variable.shape, variable.dtype)) for variable in variables}


def _last_weights(
    evaluate: Evaluate, variables: Sequence[keras.Variable], is_off: Callable[[NDArray[np.float64]], bool]
) -> list[keras.Variable]:
    """Return the last variables, in order of use and as few as possible, whose zeros turn a branch off."""
    zeros = dict(_zeros(variables))
    for variable in variables:
        fewer = {key: value for key, value in zeros.items() if key != id(variable)}
        if is_off(evaluate(fewer)):
            zeros = fewer
    return [variable for variable, _ in zeros.values()]
