"""Residual branches of a model, found along its graph: their last weights and their other weights."""

import dataclasses
import itertools
import warnings
from collections.abc import Collection, Iterable, Mapping

import keras

from idmatters_tf._keras_internals import is_position_embedding
from idmatters_tf._keras_internals.structure import Step, nested_models, read_steps
from idmatters_tf.branches.known_layers import (
    Branch,
    extends_layer,
    has_branches,
    is_addition,
    is_examined,
    is_trained,
    is_unknown,
    known_branches,
    make_branch,
    weights_of_branches,
)
from idmatters_tf.branches.last_weights import NORMALIZATIONS, TailFinder, UnknownTailError
from idmatters_tf.branches.named import LastNames, NamedWeights


@dataclasses.dataclass
class _Sum:
    """A sum start + terms of the graph, by one addition or a chain of them."""

    start: keras.KerasTensor
    terms: list[keras.KerasTensor]
    ends: list[Step]

    @property
    def name(self) -> str:
        return self.ends[0].name


def find_branches(model: keras.Model, last: LastNames | None = None, is_complete: bool = True) -> list[Branch]:
    """Return the residual branches of a model, in order of execution.

    Warns about sums that are not counted.

    Args:
        model: built functional or Sequential model.
        last: see `scale_depth`.
        is_complete: True if all names in `last` must be in this model.

    Raises:
        ValueError: for a model without a graph or without blocks, for shared weights, for a branch whose last weights
            neither the table of layers nor `last` contains, and for a normalization after the sums.
    """
    named = NamedWeights(last)
    finder = _Finder(model, named)
    found = finder.find()
    if is_complete:
        named.check_used()
    if not found:
        raise ValueError(
            f"The model {model.name!r} has no residual blocks. Write them as sums x + f(x) with `keras.layers.Add` or "
            f"`+`, or name layers that compute such sums as last={{layer: weights}}.{finder.list_others()}"
        )
    owners: dict[int, str] = {}
    for branch in found:
        for variable in branch.variables:
            if owners.setdefault(id(variable), branch.name) != branch.name:
                raise ValueError(
                    f"The blocks {owners[id(variable)]!r} and {branch.name!r} share {variable.path!r}. Give each block "
                    f"weights of its own, or exclude one of them, as last={{{branch.name!r}: None}}."
                )
    finder.warn()
    return found


def weights_to_zero(block: keras.layers.Layer, within: Collection[int] | None = None) -> list[keras.Variable]:
    """Return the last weights of the branches of a layer or model, which returns its input if they are zero.

    Args:
        block: one of the known layers, or a functional or Sequential model of sums.
        within: `id` of the operations of a model whose sums are chosen; all sums if None.

    Raises:
        ValueError: if the branches or their last weights are unknown.
    """
    known = weights_of_branches(block)
    if known is None and isinstance(block, keras.Model) and read_steps(block) is not None:
        found = _Finder(block, NamedWeights(None)).find(within)
        known = [variable for branch in found for variable in itertools.chain(*branch.last)]
    if not known:
        raise ValueError(
            f"The last weights of the branches of {block.name!r} ({type(block).__name__}) are unknown. It must be a "
            f"layer of idmatters_tf.layers, a known one of KerasHub, or a functional model of sums x + f(x)."
        )
    return known


def count_sums(branches: Iterable[Branch]) -> int:
    """Return the number of residual sums in blocks."""
    return sum(len(branch.last) for branch in branches)


class _Finder:
    """Search for the residual branches of a model."""

    def __init__(self, model: keras.Model, named: NamedWeights):
        read = read_steps(model)
        if read is None:
            raise ValueError(
                f"Argument `model` must be a built functional or Sequential model. Received: {type(model).__name__} "
                f"{model.name!r}. Build it on an input shape, or build a functional model from its layers."
            )
        self._steps, outputs = read
        self._named = named
        self._makers = {id(tensor): step for step in self._steps for tensor in step.outputs}
        # Steps that use a tensor, by `id`; 0 for the output of the model.
        self._users: dict[int, set[int]] = {id(tensor): {0} for tensor in outputs}
        self._ancestors: dict[int, set[int]] = {}
        for step in self._steps:
            above = {id(t) for t in step.inputs}.union(*(self._ancestors.get(id(t), set()) for t in step.inputs))
            above = set() if is_position_embedding(step.operation) else above
            self._ancestors |= {id(output): above for output in step.outputs}
            for tensor in (*step.inputs, *step.masks):
                self._users.setdefault(id(tensor), set()).add(id(step))
        self._counts: dict[int, int] = {}
        for step in self._steps:
            self._counts[id(step.operation)] = self._counts.get(id(step.operation), 0) + 1
        self._tails = TailFinder(self._makers, self._users, self._ancestors, self._named_tail)
        self._not_counted: list[str] = []

    def find(self, within: Collection[int] | None = None) -> list[Branch]:
        """Return the branches of all blocks, or of the sums by operations with some `id`."""
        sums = self._find_sums()
        if within is not None:
            chosen = [each for each in sums if id(each.ends[0].operation) in within]
            return [self._branch(each, self._steps_inside(each, sums)) for each in chosen]
        inside = {id(each.ends[0]): self._steps_inside(each, sums) for each in sums}
        # Sums of activations without weights, as in x + 0.04 x^3.
        trained = [each for each in sums if any(map(is_trained, inside[id(each.ends[0])]))]
        within = {id(step) for each in trained for step in inside[id(each.ends[0])]}
        found = {id(each.ends[0]): self._branch(each, inside[id(each.ends[0])]) for each in trained}
        branches: list[Branch] = []
        starts: list[tuple[keras.KerasTensor, str]] = [(each.start, each.name) for each in trained]
        ends = {id(each.ends[-1].outputs[0]): each.name for each in trained}
        additions = {id(end) for each in trained for end in each.ends}
        for step in self._steps:
            if id(step) in found:
                branches.append(found[id(step)])
            elif id(step) not in additions:
                blocks = self._layer_branches(step, id(step) in within)
                branches += blocks
                if blocks:
                    starts.append((step.inputs[0], step.name))
                    ends[id(step.outputs[0])] = step.name
        self._check_streams(starts, ends)
        self._note_other_sums(additions | within)
        return branches

    def list_others(self) -> str:
        """Return the names of possible sums that were not counted, and of layers that were not examined, if any."""
        names = ", ".join(map(repr, self._not_counted[:8])) + (", ..." if len(self._not_counted) > 8 else "")
        return f" Possible sums: {names}" if names else ""

    def warn(self) -> None:
        """Warn about sums that were not counted, and layers that were not examined."""
        if self._not_counted:
            warnings.warn(
                f"scale_depth has not counted {len(self._not_counted)} possible residual sums. Name the last weights "
                f"of each as last={{name: weights}}, or None for one that is no residual sum.{self.list_others()}",
                stacklevel=5,
            )

    def _find_sums(self) -> list[_Sum]:
        sums: list[_Sum] = []
        for step in self._steps:
            if self._named.is_excluded(step):
                continue
            is_sum = is_addition(step) or (step in self._named and self._joins(step))
            shapes = {tuple(tensor.shape) for tensor in step.inputs}
            if not is_sum or len(step.inputs) < 2 or len(shapes) > 1:
                continue
            if (index := self._skip_index(step)) is not None:
                terms = [tensor for position, tensor in enumerate(step.inputs) if position != index]
                sums.append(_Sum(step.inputs[index], terms, [step]))
                continue
            for each in sums:
                # The second addition of (x + f(x)) + g(x).
                last = each.ends[-1].outputs[0]
                terms = [tensor for tensor in step.inputs if tensor is not last]
                is_next = len(terms) == len(step.inputs) - 1
                if is_next and all(id(each.start) in self._ancestors.get(id(term), ()) for term in terms):
                    each.ends.append(step)
                    each.terms += terms
                    break
        return sums

    def _skip_index(self, step: Step) -> int | None:
        """Return the index of x among the inputs of x + f(x) + ..., from which all other inputs are computed."""
        for index, x in enumerate(step.inputs):
            others = [tensor for position, tensor in enumerate(step.inputs) if position != index]
            if others and all(id(x) in self._ancestors.get(id(tensor), ()) for tensor in others):
                return index
        return None

    def _joins(self, step: Step) -> bool:
        """Return True if a step returns a tensor of the shape of two inputs, one computed from the other."""
        shapes = {tuple(tensor.shape) for tensor in (*step.inputs, *step.outputs)}
        return len(step.inputs) > 1 and len(shapes) == 1 and self._skip_index(step) is not None

    def _steps_inside(self, each: _Sum, sums: list[_Sum]) -> list[Step]:
        """Return the steps whose outputs only the branch of a sum uses."""
        others = {id(other.ends[-1].outputs[0]) for other in sums if other is not each}
        inside = {id(end) for end in each.ends}
        found: list[Step] = []
        for step in reversed(self._steps):
            tensors = {id(tensor) for tensor in step.outputs}
            is_used = all(self._users.get(key, {0}) <= inside for key in tensors)
            if not is_used or id(step) in inside or id(each.start) in tensors:
                continue
            above = tensors.union(*(self._ancestors.get(key, ()) for key in tensors))
            if id(each.start) in above or not above & others:
                inside.add(id(step))
                found.insert(0, step)
        return found

    def _branch(self, each: _Sum, inside: list[Step]) -> Branch:
        """Return the branch of a sum of the graph."""
        end = each.ends[0]
        if self._counts[id(end.operation)] > 1:
            raise ValueError(
                f"The addition {each.name!r} is called several times. Give each block a layer `Add` of its own."
            )
        for step in inside:
            if is_trained(step) and self._counts[id(step.operation)] > 1:
                raise ValueError(
                    f"The block {each.name!r} contains {step.operation.name!r}, which is called several times with the "
                    f"same weights. Give each block weights of its own."
                )
        operations = [step.operation for step in inside]
        if end in self._named:
            sums = self._named.sums(end, operations)
        else:
            try:
                sums = [self._tails.find(each.terms, each.start, set(map(id, each.ends))).weights]
            except UnknownTailError as error:
                raise ValueError(
                    f"The last weights of the branch of {each.name!r} are unknown: {error}. End the branch with a "
                    f"linear layer or a trained factor, or name its last weights as last={{{each.name!r}: weights}}."
                ) from None
        if not sums or not all(sums):
            raise ValueError(f"Argument `last` must name weights of the addition {each.name!r}. Received: none.")
        return make_branch(each.name, sums, operations)

    def _named_tail(self, step: Step) -> list[keras.Variable] | None:
        """Return the last weights that the user names for a layer at the end of a branch."""
        if step not in self._named or is_addition(step) or not isinstance(step.operation, keras.layers.Layer):
            return None
        return list(itertools.chain(*self._named.sums(step, [step.operation])))

    def _layer_branches(self, step: Step, is_within: bool) -> list[Branch]:
        """Return the branches in a layer: those of the user's names and of the tables. Note unknown layers."""
        layer = step.operation
        if self._named.is_excluded(step) or not isinstance(layer, keras.layers.Layer):
            return []
        found: list[Branch] = []
        if step in self._named:
            # In a branch, they are the last weights of a layer at its end.
            sums = [] if is_within else [weights for weights in self._named.sums(step, [layer]) if weights]
            found = [make_branch(step.name, sums, [layer])] if sums else []
        else:
            found = known_branches(step)
            if not found and not is_within:
                self._ask(step, layer)
        if found and self._counts[id(layer)] > 1:
            raise ValueError(f"The block {step.name!r} is called several times. Give each block layers of its own.")
        return found

    def _ask(self, step: Step, layer: keras.layers.Layer) -> None:
        """Raise a ValueError for an unknown layer that may compute residual sums; note one of another shape."""
        for model in nested_models(layer):
            steps, _ = read_steps(model) or ([], [])
            if any(map(has_branches, steps)):
                raise ValueError(
                    f"The model {step.name!r} contains sums, and is called several times or with further arguments. "
                    f"Call it once with its inputs alone, or exclude it, as last={{{step.name!r}: None}}."
                )
        if is_examined(layer) or not is_trained(step) or self._joins(step):
            return
        keeps_shape = bool(step.inputs) and any(tuple(step.inputs[0].shape) == tuple(t.shape) for t in step.outputs)
        if not keeps_shape or extends_layer(layer):
            self._not_counted.append(step.name)
            return
        raise ValueError(
            f"The layer {step.name!r} ({type(layer).__name__}) may compute residual sums, whose last weights are "
            f"unknown. Name them as last={{{type(layer).__name__}: attribute or name}}, or None for a layer without "
            f"such sums."
        )

    def _note_other_sums(self, known: set[int]) -> None:
        """Note additions, and other steps that join x and f(x), outside of the blocks."""
        tensors = [tensor for step in self._steps for tensor in (*step.inputs, *step.outputs)]
        floating = {id(tensor) for tensor in tensors if keras.backend.is_float_dtype(tensor.dtype)}
        for step in self._steps:
            if id(step) in known or self._named.is_excluded(step) or len(step.inputs) < 2:
                continue
            shapes = {tuple(tensor.shape) for tensor in step.inputs}
            above = [{id(tensor), *self._ancestors.get(id(tensor), ())} for tensor in step.inputs]
            # Sums of embeddings have common ancestors of integers only.
            is_branched = bool(set.intersection(*above) & floating)
            is_sum = is_addition(step) or type(step.operation) is keras.layers.Average
            if (is_sum and len(shapes) == 1 and is_branched) or (is_unknown(step.operation) and self._joins(step)):
                self._not_counted.append(step.name)

    def _check_streams(self, starts: list[tuple[keras.KerasTensor, str]], ends: Mapping[int, str]) -> None:
        """Raise a ValueError if the inputs of at least half of the blocks are normalized sums of other blocks."""
        found: list[tuple[str, str]] = []
        for tensor, _ in starts:
            norm = None
            while (step := self._makers.get(id(tensor))) is not None and id(tensor) not in ends:
                if len(step.inputs) != 1:
                    break
                if isinstance(step.operation, NORMALIZATIONS):
                    norm = step.name
                elif is_trained(step):
                    break
                tensor = step.inputs[0]
            if norm is not None and id(tensor) in ends:
                found.append((ends[id(tensor)], norm))
        # A single one may separate two stages.
        if found and 2 * len(found) >= len(starts):
            raise ValueError(
                f"The sum {found[0][0]!r} is followed by the normalization {found[0][1]!r}, which undoes a part of the "
                f"scale. Normalize the inputs of the branches instead (pre-norm)."
            )
