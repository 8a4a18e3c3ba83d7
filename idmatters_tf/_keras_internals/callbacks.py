"""Internals of Keras' callbacks."""

import pathlib
from typing import Any

import keras

from idmatters_tf._keras_internals.versions import ORBAX_CHECKPOINTS_SINCE_3_14

# Attributes of Keras' callbacks that are not state: arguments of `fit`, files, writers, clocks, and what
# `MonitorCallback` derives from its arguments.
CALLBACK_INTERNALS: dict[type, tuple[str, ...]] = {
    keras.callbacks.Callback: ("_model", "params"),
    keras.callbacks.CSVLogger: ("append_header", "csv_file", "writer"),
    keras.callbacks.ProgbarLogger: ("_called_in_fit", "epochs", "progbar", "seen", "target"),
    keras.callbacks.TensorBoard: (
        "_batch_start_time",
        "_batch_trace_context",
        "_epoch_start_time",
        "_is_tracing",
        "_log_write_dir",
        "_prev_summary_state",
        "_previous_epoch_iterations",
        "_profiler_started",
        "_should_trace",
        "_should_write_train_graph",
        "_start_batch",
        "_stop_batch",
        "_summary_module",
        "_train_accumulated_time",
        "_train_dir",
        "_val_dir",
        "_writers",
    ),
    **dict.fromkeys(
        (keras.callbacks.EarlyStopping, keras.callbacks.ModelCheckpoint, keras.callbacks.ReduceLROnPlateau),
        ("min_delta", "monitor_op"),
    ),
    **dict.fromkeys(
        ORBAX_CHECKPOINTS_SINCE_3_14,
        ("_async_futures", "_multihost_initialized", "checkpointer", "min_delta", "monitor_op"),
    ),
}
# Keras' callbacks that do not change the training.
OBSERVERS: tuple[type, ...] = (
    keras.callbacks.CSVLogger,
    keras.callbacks.History,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.ProgbarLogger,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TensorBoard,
    *ORBAX_CHECKPOINTS_SINCE_3_14,
)


def model_of(callback: keras.callbacks.Callback) -> keras.Model:
    """Return the model of a callback, which Keras sets before training."""
    model: Any = callback.model
    return model


def flush_events(callback: keras.callbacks.TensorBoard) -> None:
    """Write the collected points of a `TensorBoard` callback to its files."""
    for writer in callback._writers.values():
        writer.flush()


def read_log(logger: keras.callbacks.CSVLogger, path: pathlib.Path) -> str | None:
    """Return the content of the file of a `CSVLogger`, or None if it is not open."""
    if logger.csv_file is None or logger.csv_file.closed:
        return None
    logger.csv_file.flush()
    # Bytes preserve the line ends \r\n.
    return path.read_bytes().decode()


def restore_log(logger: keras.callbacks.CSVLogger, text: str | None) -> None:
    """Restore the result of `read_log`, in the new file that `on_train_begin` has created."""
    if text is not None and logger.csv_file is not None:
        logger.csv_file.seek(0)
        logger.csv_file.truncate()
        logger.csv_file.write(text)
        logger.csv_file.flush()
        logger.writer, logger.append_header = None, not text
