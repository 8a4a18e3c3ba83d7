"""The update of the training programs, with a plain recipe, for benchmarks that time it."""

from collections.abc import Callable

import keras
import tensorflow as tf

from idmatters_tf.optimizers import Momentum
from trainers.training.loop import Recipe, Trainer

NEVER = 1 << 30


def make_trainer(
    build_model: Callable[[], keras.Model],
    batch_size: int,
    strategy: tf.distribute.Strategy | None = None,
    steps: int = 1,
    learning_rate: float = 0.05,
    log_every: int = NEVER,
) -> Trainer:
    """A trainer with momentum 0.9 and a constant learning rate that neither evaluates nor saves."""
    recipe = Recipe(
        steps=steps,
        learning_rate=learning_rate,
        drop_steps=(),
        drop_factor=10.0,
        make_optimizer=lambda rate: Momentum(rate, 0.9),
        clip_norm=None,
        log_every=log_every,
        evaluate_every=NEVER,
        checkpoint_every=NEVER,
        keep_checkpoints=1,
    )
    return Trainer(strategy or tf.distribute.get_strategy(), build_model, recipe, batch_size)
