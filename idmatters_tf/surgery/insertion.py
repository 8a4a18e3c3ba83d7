"""Insertion of layers into models whose configuration contains their number of layers."""

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import keras
import numpy as np
from keras import ops

from idmatters_tf._keras_types import Structure, Tensor
from idmatters_tf.branches.search import weights_to_zero
from idmatters_tf.surgery._blocks import assign_zeros
from idmatters_tf.surgery._carrying import check_norms_can_grow, compile_like
from idmatters_tf.surgery._checks import UNKNOWN_SIZE, check_gradients, compute_outputs, example_inputs
from idmatters_tf.surgery._configured import ConfiguredModel, Rebuilt, Slot

Init = Literal["zero", "copy"]


def insert_layers(
    configured: ConfiguredModel,
    after: str | int | Sequence[str | int],
    count: int,
    init: Init,
    optimizer: keras.optimizers.Optimizer | None,
    data: Structure | None,
) -> keras.Model:
    """Return the model with further layers, each a copy of the layer before it. See `deepen` for the arguments."""
    model = configured.model
    chosen = _choose(configured.slots, after)
    rebuilt = configured.rebuild([slot for slot in configured.slots for _ in range(1 + count * (slot in chosen))])
    blocks = {slot.names[0]: [v for layer in slot.layers for v in layer.weights] for slot in rebuilt.inserted}
    if init == "zero":
        # Sequences as short as position embeddings.
        limit = configured.backbone.get_config().get("max_sequence_length", UNKNOWN_SIZE)
        inputs = example_inputs(model, data, unknown=min(UNKNOWN_SIZE, limit))
        before = compute_outputs(model, inputs, given=data is not None)
        _zero_branches(model, rebuilt, inputs, before)
        check_gradients(rebuilt.model, inputs, blocks)
    elif rebuilt.unlike:
        names = ", ".join(dict.fromkeys(rebuilt.unlike))
        raise ValueError(
            f"Argument `init` must be 'zero' after {names}: the next layer is of another kind and cannot be a copy."
        )
    check_norms_can_grow(optimizer or getattr(model, "optimizer", None), rebuilt.model, blocks)
    compile_like(rebuilt.model, model, rebuilt.variables, optimizer)
    return rebuilt.model


def _choose(slots: Sequence[Slot], after: str | int | Sequence[str | int]) -> list[Slot]:
    """Return the slots that are followed by new layers."""
    every = re.fullmatch(r"interleaved|every ([1-9]\d*)(st|nd|rd|th)?", after) if isinstance(after, str) else None
    if every is not None:
        step = int(every[1] or 1)
        chosen: list[Slot | None] = [*slots[step - 1 :: step]]
    else:
        names = {name: slot for slot in slots for name in slot.names}
        entries: Any = after if isinstance(after, Iterable) and not isinstance(after, str) else [after]
        chosen = [slots[entry] if entry in range(len(slots)) else names.get(str(entry)) for entry in entries]
    if not chosen or None in chosen:
        raise ValueError(
            f"Argument `after` must be numbers or names of the {len(slots)} layers {slots[0].names[0]} to "
            f"{slots[-1].names[0]}, 'interleaved' or 'every 2nd'. Received: after={after!r}"
        )
    return [slot for slot in slots if slot in chosen]


def _zero_branches(model: keras.Model, rebuilt: Rebuilt, inputs: Structure, before: Sequence[Tensor]) -> None:
    """Set the last weights of the branches of the inserted layers to zero, so that outputs are unchanged.

    In a transformer layer these are the output projections of attention and feed-forward, with their biases.
    """
    backbone = getattr(rebuilt.model, "backbone", None) or rebuilt.model
    for slot in rebuilt.inserted:
        if len(slot.names) == len(slot.layers):
            parts = [weights_to_zero(layer) for layer in slot.layers]
        else:
            parts = [weights_to_zero(backbone, {id(layer) for layer in slot.layers})]
        assign_zeros(itertools.chain(*parts))
    outputs = [map(ops.convert_to_numpy, part) for part in (before, compute_outputs(rebuilt.model, inputs, given=True))]
    if not all(np.array_equal(np.asarray(old), np.asarray(new)) for old, new in zip(*outputs, strict=True)):
        raise ValueError(
            f"The layers of {type(model).__name__} are not the identity when the last weights of their branches are "
            f"zero, as layers with a normalization after the sum. Pass init='copy', which changes the outputs."
        )
