"""Start and end of all programs: log levels of libraries, one-line error messages, exit codes."""

import importlib.util
import io
import os
import pathlib
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from trainers.cli.arguments import RunError, UsageError

DEBUG = "--debug"
# Optional packages; the extras "tensorflow" and "train" install all of them.
OPTIONAL = ("huggingface_hub", "matplotlib", "tensorboard", "tensorflow", "tensorflow_datasets")
_WITHOUT_TENSORFLOW = ("report",)
# Options that do not train.
_INFORMATION = {"-h", "--help", "--help-all", "--list", "--version"}


def run_program(main: Callable[[Sequence[str]], int]) -> NoReturn:
    """Run `main(argv)` and exit with its code. Known errors become one line on standard error.

    Exit codes: 0 done, 1 failed while running, 2 bad input, 130 / 143 stopped by Ctrl-C / SIGTERM after saving.
    """
    backend = os.environ.get("KERAS_BACKEND") or "tensorflow"
    # The programs require TensorFlow, also if Keras' configuration file selects another backend.
    os.environ["KERAS_BACKEND"] = "tensorflow"
    if DEBUG not in sys.argv:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Like standard error: the encoding of the terminal may lack characters of a file name.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        _check_backend(backend)
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


def _check_backend(backend: str) -> None:
    """Raise UsageError if KERAS_BACKEND names another backend than TensorFlow and the program needs one."""
    if backend == "tensorflow" or _program() in _WITHOUT_TENSORFLOW or _INFORMATION.intersection(sys.argv):
        return
    raise UsageError(
        f"this program needs Keras' TensorFlow backend. Received: KERAS_BACKEND={backend}. Unset it, or train on JAX "
        f"with examples/cifar_with_fit.py"
    )


def _program() -> str:
    """Return the name of the running program: "cifar" for `idmatters-cifar` and `python -m trainers.cifar`."""
    name = pathlib.Path(sys.argv[0]).name
    if name.startswith("idmatters-"):
        return name.removeprefix("idmatters-")
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return "" if spec is None else spec.name.removeprefix("trainers.").removesuffix(".__main__")


def print_message(text: str) -> None:
    """Print a message to standard error."""
    print(text, file=sys.stderr, flush=True)


def print_lines(*lines: str) -> None:
    """Print lines to standard output."""
    print(*lines, sep="\n", flush=True)


def discard_message(text: str) -> None:
    """Discard a message; a substitute for `say`."""


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
        return f"{missing} is not installed: pip install 'idmatters-tf[{_needed_extras()}]'", 1
    tensorflow: Any = sys.modules.get("tensorflow")
    if tensorflow is not None and isinstance(error, tensorflow.errors.OpError):
        message = str(getattr(error, "message", error)).strip()
        if "No space left on device" in message:
            return f"{message.splitlines()[0]}. Free some space, then repeat the command.", 1
        return f"TensorFlow failed: {message.splitlines()[0]} (use {DEBUG} for the traceback)", 1
    return None, 1


def _needed_extras() -> str:
    """Return the extras of the package that the running program needs."""
    # Beside tensorflow-cpu the extra would install TensorFlow a second time.
    lacks = _program() not in _WITHOUT_TENSORFLOW and importlib.util.find_spec("tensorflow") is None
    return "tensorflow,train" if lacks else "train"


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
            tensorflow.get_logger().setLevel("ERROR")
        except Exception:
            hidden.seek(0)
            os.write(visible, hidden.read())
            raise
        finally:
            os.dup2(visible, 2)
            os.close(visible)
