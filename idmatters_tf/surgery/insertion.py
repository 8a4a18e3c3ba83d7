"""Insertion of layers into models whose configuration contains their number of layers."""

import difflib
import re
from collections.abc import Sequence
from typing import Any, Literal

import keras
import numpy as np
from keras import ops

from idmatters_tf._configured_models import ConfiguredModel, Slot
from idmatters_tf.surgery._carrying import check_norms_can_grow, compile_like
from idmatters_tf.surgery._checks import check_gradients, compute_outputs, example_inputs

Init = Literal["zero", "copy"]


def insert_layers(
    configured: ConfiguredModel,
    after: Any,
    count: int,
    init: Init,
    optimizer: keras.optimizers.Optimizer | None,
    data: Any,
) -> Any:
    """Return the model with further layers, each a copy of the layer before it. See `deepen` for the arguments."""
    model = configured.model
    chosen = _choose(configured, after)
    sources = [slot for slot in configured.slots for _ in range(1 + count * (slot in chosen))]
    rebuilt = configured.rebuild(sources)
    if init == "zero":
        inputs = _example_inputs(model, data)
        before = compute_outputs(model, inputs, given=True)
        _zero_branches(model, rebuilt.model, rebuilt.inserted, inputs, before)
        for variables in rebuilt.inserted:
            check_gradients(rebuilt.model, inputs, variables[0].path, variables)
    for variables in rebuilt.inserted:
        check_norms_can_grow(optimizer or getattr(model, "optimizer", None), variables[0].path, variables)
    compile_like(rebuilt.model, model, rebuilt.variables, optimizer)
    if hasattr(model, "sampler"):
        # An argument of `CausalLM.compile` that Keras does not save.
        rebuilt.model.sampler = model.sampler
    return rebuilt.model


def _choose(configured: ConfiguredModel, after: Any) -> list[Slot]:
    """Return the slots that are followed by new layers."""
    slots = configured.slots
    names = [slot.prefixes[0] for slot in slots]
    if isinstance(after, str):
        every = re.fullmatch(r"every (\d+)(?:st|nd|rd|th)?", after)
        step = 1 if after == "interleaved" else int(every[1]) if every else 0
        if step:
            return slots[step - 1 :: step]
    chosen = []
    for entry in after if isinstance(after, Sequence) and not isinstance(after, str) else [after]:
        if isinstance(entry, int) and 0 <= entry < len(slots):
            chosen.append(slots[entry])
        elif entry in names:
            chosen.append(slots[names.index(entry)])
        else:
            near = difflib.get_close_matches(str(entry), names, n=3, cutoff=0.3)
            raise ValueError(
                f"Argument `after` must contain numbers of layers below {len(slots)}, names of layers, 'interleaved' "
                f"or 'every 2nd'. Received: {entry!r}." + (f" Did you mean {', '.join(near)}?" if near else "")
            )
    return chosen


def _example_inputs(model: Any, data: Any) -> Any:
    """Return the given inputs, or random ones that are short enough for the model's position embeddings."""
    if data is not None:
        return data
    for length in (32, 16, 8, 4):
        inputs = example_inputs(model, unknown=length)
        try:
            compute_outputs(model, inputs, given=True)
        except Exception:
            continue
        return inputs
    return example_inputs(model, unknown=2)


def _zero_branches(
    model: Any, deeper: Any, inserted: Sequence[Sequence[keras.Variable]], inputs: Any, before: Sequence[Any]
) -> None:
    """Set as few weights of the inserted layers as possible to zero such that they are the identity.

    All weights, without moving averages, are set to zero, then each is restored if the outputs remain equal: biases and
    gains first, then kernels in the order of their creation. In a transformer layer the output projections of attention
    and feed-forward remain zero, with their biases.

    Raises:
        ValueError: if the layers are not the identity with zeros, as with a normalization after the sum.
    """
    candidates = [
        [v for v in variables if keras.backend.is_float_dtype(v.dtype) and not v.name.startswith("moving_")]
        for variables in inserted
    ]
    values = [[ops.convert_to_numpy(variable) for variable in variables] for variables in candidates]
    for variables in candidates:
        for variable in variables:
            variable.assign(ops.zeros_like(variable))

    def is_equal() -> bool:
        after = compute_outputs(deeper, inputs, given=True)
        pairs = zip(before, after, strict=True)
        return all(np.array_equal(ops.convert_to_numpy(old), ops.convert_to_numpy(new)) for old, new in pairs)

    if not is_equal():
        raise ValueError(
            f"The layers of {type(model).__name__} are not the identity when all of their weights are zero, as layers "
            f"with a normalization after the sum. Pass init='copy', which changes the outputs."
        )
    # Layers of the same kind have the same variables, so that one search serves all of them.
    patterns: dict[tuple[tuple[int, ...], ...], set[int]] = {}
    for variables, saved in zip(candidates, values, strict=True):
        kind = tuple(tuple(variable.shape) for variable in variables)
        known = patterns.get(kind)
        kept: set[int] = set()
        for place in sorted(range(len(variables)), key=lambda place: len(kind[place]) > 1):
            if known is None or place not in known:
                variables[place].assign(saved[place])
            if known is None and not is_equal():
                variables[place].assign(np.zeros_like(saved[place]))
                kept.add(place)
        patterns.setdefault(kind, kept)
    if not is_equal():
        raise ValueError(f"The layers of {type(model).__name__} cannot be made the identity. Pass init='copy'.")
