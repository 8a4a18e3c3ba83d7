"""Update step of the training programs with a plain recipe."""

from collections.abc import Callable

import keras
import tensorflow as tf

from idmatters_tf.optimizers import Momentum
from trainers.training.learner import Learner
from trainers.training.settings import Recipe
from trainers.training.synchronous import SynchronousTrainer


def make_trainer(
    build_model: Callable[[], keras.Model],
    batch_size: int,
    strategy: tf.distribute.Strategy | None = None,
    learning_rate: float = 0.05,
) -> SynchronousTrainer:
    """Return a trainer with momentum 0.9 and a constant learning rate."""
    strategy, recipe = strategy or tf.distribute.get_strategy(), Recipe(batch_size=batch_size)

    def schedule(_step):
        return tf.constant(learning_rate)

    return SynchronousTrainer(Learner(strategy, build_model, lambda: Momentum(learning_rate, 0.9), schedule, recipe))
