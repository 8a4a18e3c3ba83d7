"""Synchronous training of a task by Keras' `fit`, on one device, several devices or several machines."""

import functools
import signal
import warnings
from collections.abc import Mapping
from typing import Any

import keras

from idmatters_tf.callbacks import ExactResume
from idmatters_tf.callbacks.saved import Checkpoint
from idmatters_tf.distribute import ClusterDescription
from trainers.cli.arguments import UsageError
from trainers.cli.startup import print_message
from trainers.run.folder import Run
from trainers.run.signals import SignalHandler
from trainers.training.build import make_train_batches, with_image_size
from trainers.training.callbacks import DeviceLogs, Training
from trainers.training.checkpoints import KEPT, explain_write_errors
from trainers.training.measure import measure
from trainers.training.reports import Reports
from trainers.training.task import Task


def fit(
    task: Task,
    model: keras.Model,
    run: Run,
    cluster: ClusterDescription | None,
    checkpoint: Checkpoint | None,
    identity: Mapping[str, Any] | None,
) -> signal.Signals | None:
    """Train to the end of a run. Returns None, or the signal that stopped it after a checkpoint was saved.

    Args:
        task: training task.
        model: compiled network, with the weights of the checkpoint.
        run: folder of the run.
        cluster: tasks that train together; None for a single process.
        checkpoint: newest checkpoint; None for a new run.
        identity: identity of the run on the chief.
    """
    settings, source = task.settings, task.source
    done = 0 if checkpoint is None else checkpoint.step
    test = functools.partial(measure, model, source.test_batches(), source.test_images, run.writes)
    network = with_image_size(model, *task.data.image_shape[:2]) if settings.recipe.train_sizes else model
    reports = Reports(run, settings, network, test, identity, checkpoint)
    after, every = None, settings.run.curvature_every
    if every is not None:
        from trainers.training.curvature import curvature_callback

        after = curvature_callback(task, model, run, every)
    with SignalHandler() as handler, reports.progress:
        training = Training(reports, handler, after, cluster is not None)
        if reports.evaluation_is_due(done) and not reports.evaluate(done, training.is_interrupted):
            return handler.received
        if done >= settings.recipe.steps:
            return None
        if run.writes:
            print_message("compiling the training step ...")
        resume = ExactResume(run.checkpoints_path, settings.run.checkpoint_every, KEPT)
        batches = make_train_batches(task)
        silent: Any = 0  # Keras annotates `verbose` as a string
        steps = batches.steps_per_epoch
        epochs = -(-settings.recipe.steps // steps)
        callbacks = DeviceLogs([training, resume], add_history=True, model=model, epochs=epochs, steps=steps, verbose=0)
        with warnings.catch_warnings(), explain_write_errors(run.checkpoints_path):
            # The program has compared the versions, threads and devices.
            warnings.filterwarnings("ignore", message=".*results will differ by rounding", category=UserWarning)
            try:
                model.fit(batches, epochs=epochs, shuffle=False, verbose=silent, callbacks=callbacks)
            except ValueError as error:
                if checkpoint is None or str(checkpoint.path.resolve()) not in str(error):
                    raise
                raise UsageError(str(error)) from error
            finally:
                resume.close()
        return None if training.is_complete else handler.received or signal.SIGTERM
