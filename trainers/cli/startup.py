"""Start and end of all programs: log levels of libraries, one-line error messages, exit codes."""

import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from trainers.cli.arguments import RunError, UsageError

DEBUG = "--debug"
# Optional packages; the extras "tensorflow" and "train" install all of them.
OPTIONAL = ("huggingface_hub", "matplotlib", "tensorboard", "tensorflow", "tensorflow_datasets")


def run_program(main: Callable[[Sequence[str]], int], backends: Sequence[str] = ("tensorflow",)) -> NoReturn:
    """Run `main(argv)` and exit with its code. Known errors become one line on standard error.

    Exit codes: 0 done, 1 failed while running, 2 bad input, 130 / 143 stopped by Ctrl-C / SIGTERM after saving.

    Args:
        main: the program.
        backends: backends of Keras on which it runs. The first one is the default.
    """
    backend = os.environ.get("KERAS_BACKEND") or backends[0]
    if backend not in backends:
        print_message(f"warning: this program runs on {' or '.join(backends)}, not on KERAS_BACKEND={backend}")
        backend = backends[0]
    # Also if Keras' configuration file selects another backend.
    os.environ["KERAS_BACKEND"] = backend
    if DEBUG not in sys.argv:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        code = main(sys.argv[1:])
    except KeyboardInterrupt:
        print_message("stopped by Ctrl-C; saved files are intact")
        code = 130
    except Exception as error:
        sentence, code = explain_error(error)
        if sentence is None:
            raise
        if DEBUG in sys.argv:
            traceback.print_exc()
        print_message(f"error: {sentence}")
    sys.exit(code)


def runs_on_tensorflow() -> bool:
    """Return True if TensorFlow is Keras' backend."""
    return (os.environ.get("KERAS_BACKEND") or "tensorflow") == "tensorflow"


def print_message(text: str) -> None:
    """Print a message to standard error."""
    print(text, file=sys.stderr, flush=True)


def print_lines(*lines: str) -> None:
    """Print lines to standard output."""
    print(*lines, sep="\n", flush=True)


def explain_error(error: Any) -> tuple[str | None, int]:
    """Return (message, exit code) for expected errors, and (None, 1) for errors of the program."""
    if isinstance(error, UsageError):
        return str(error), 2
    # Modules that have not been imported cannot have raised the error.
    images: Any = sys.modules.get("idmatters_tf.data.images")
    if images is not None and isinstance(error, images.DataError):
        # Errors of the library list arguments, and options have the same names.
        options = " or ".join(f"--{name.replace('_', '-')}" for name in error.arguments)
        return f"{error} (option {options})" if options else str(error), 2
    clusters: Any = sys.modules.get("idmatters_tf.distribute.description")
    if clusters is not None and isinstance(error, clusters.ClusterError):
        return str(error), 2
    tasks: Any = sys.modules.get("idmatters_tf.distribute.tasks")
    if tasks is not None and isinstance(error, tasks.TaskLost):
        return str(error), 1
    checkpointing: Any = sys.modules.get("idmatters_tf.checkpointing")
    if checkpointing is not None and isinstance(error, checkpointing.PathOccupied):
        return str(error), 2
    if isinstance(error, RunError):
        return str(error), 1
    if isinstance(error, MemoryError):
        return f"not enough memory: {str(error) or 'reduce the sizes'}", 1
    if isinstance(error, OSError):
        return f"{error.strerror or error}: {error.filename or 'while reading or writing'}", 1
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing in OPTIONAL:
        extras = "tensorflow,train" if missing == "tensorflow" else "train"
        return f"{missing} is not installed: pip install 'idmatters-tf[{extras}]'", 1
    tensorflow: Any = sys.modules.get("tensorflow")
    if tensorflow is not None and isinstance(error, tensorflow.errors.OpError):
        message = str(getattr(error, "message", error)).strip().splitlines()[0]
        return f"TensorFlow failed: {message} (use {DEBUG} for the traceback)", 1
    return None, 1


def import_tensorflow() -> None:
    """Import TensorFlow and discard the messages that it logs before its log level takes effect."""
    if DEBUG in sys.argv or "tensorflow" in sys.modules:
        return
    sys.stderr.flush()
    visible = os.dup(2)
    with tempfile.TemporaryFile() as hidden:
        os.dup2(hidden.fileno(), 2)
        try:
            import tensorflow

            # The first query of devices logs that there are no GPUs.
            tensorflow.config.list_physical_devices()
            if not runs_on_tensorflow():
                # TensorFlow prepares the batches only, and would reserve the memory of the GPUs.
                tensorflow.config.set_visible_devices([], "GPU")
            tensorflow.get_logger().setLevel("ERROR")
        except Exception:
            hidden.seek(0)
            os.write(visible, hidden.read())
            raise
        finally:
            os.dup2(visible, 2)
            os.close(visible)
