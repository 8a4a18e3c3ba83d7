"""What this package relies on of Keras' internals (version 3.15), all of it."""

from typing import Any

import keras
from keras.src import backend

from idmatters_tf.keras_types import Tensor


def seed_states(model: keras.Model) -> list[keras.Variable]:
    """The variables, (2,) each, that hold the state of the model's `keras.random.SeedGenerator`s, as in dropout.

    They are among `model.variables`, but neither weights nor saved with them.
    """
    return [variable for variable in model.variables if variable.path.endswith("seed_generator_state")]


def random_layers(model: keras.Model) -> list[str]:
    """The names of the layers that own a random generator, at any depth of nesting."""
    layers: Any = model._flatten_layers(include_self=False)
    return [layer.name for layer in layers if getattr(layer, "seed_generator", None) is not None]


def mask_of(tensor: Tensor) -> Tensor | None:
    """The mask that `keras.layers.Masking`, or an `Embedding` with `mask_zero`, has attached to a model's output."""
    return backend.get_keras_mask(tensor)


def compiled_loss(model: keras.Model) -> tuple[Any, Any]:
    """(loss, loss_weights) as given to `model.compile`; (None, None) for a model that was not compiled with a loss."""
    compiled = getattr(model, "_compile_loss", None)
    if compiled is None:
        return None, None
    return compiled._user_loss, compiled._user_loss_weights


def set_mask(tensor: Tensor, mask: Tensor) -> None:
    """Attaches a mask to a tensor, as a layer does to its outputs."""
    backend.set_keras_mask(tensor, mask)
