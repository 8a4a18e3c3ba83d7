"""Building of an optimizer for a model."""

import keras

from idmatters_tf._keras_internals import inner_optimizer
from idmatters_tf.optimizers.muon import Muon


def build_optimizer(optimizer: keras.optimizers.Optimizer, model: keras.Model) -> None:
    """Build an optimizer for the trainable variables of a model. `Muon`, also inside of it, learns the layers."""
    inner = inner_optimizer(optimizer)
    if isinstance(inner, Muon):
        inner.build_for(model)
    optimizer.build(model.trainable_variables)
