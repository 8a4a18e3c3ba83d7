"""Start and end of all programs: log levels of libraries, one-line error messages, exit codes."""

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from trainers.cli.arguments import DEBUG

# Optional packages; the extras "tensorflow" and "train" install all of them.
OPTIONAL = ("huggingface_hub", "matplotlib", "tensorboard", "tensorflow", "tensorflow_datasets")


def run_program(main: Callable[[Sequence[str]], int], backends: Sequence[str] = ("tensorflow",)) -> NoReturn:
    """Run `main(argv)` and exit with its code. Known errors become one line on standard error.

    Exit codes: 0 done, 1 failed while running, 2 bad input, 130 / 143 stopped by Ctrl-C / SIGTERM after saving. Known
    errors have the attribute `exit_code`.

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
        sentence = describe_error(error)
        if sentence is None:
            raise
        if DEBUG in sys.argv:
            traceback.print_exc()
        print_message(f"error: {sentence}")
        code = getattr(error, "exit_code", 1)
    sys.exit(code)


def describe_error(error: Exception) -> str | None:
    """Return a message for an expected error, and None for an error of the program."""
    if hasattr(error, "exit_code"):
        # Errors of the library list arguments, and options have the same names.
        options = " or ".join(f"--{name.replace('_', '-')}" for name in getattr(error, "arguments", ()))
        return f"{error} (option {options})" if options else str(error)
    if isinstance(error, MemoryError):
        return f"not enough memory: {str(error) or 'reduce the sizes'}"
    if isinstance(error, OSError):
        return f"{error.strerror or error}: {error.filename or 'while reading or writing'}"
    if isinstance(error, ModuleNotFoundError) and error.name in OPTIONAL:
        extras = "tensorflow,train" if error.name == "tensorflow" else "train"
        return f"{error.name} is not installed: pip install 'idmatters-tf[{extras}]'"
    # The base class of TensorFlow's errors, which this module does not import.
    if any(kind.__name__ == "OpError" for kind in type(error).__mro__):
        message = str(getattr(error, "message", error)).strip().splitlines()[0]
        return f"TensorFlow failed: {message} (use {DEBUG} for the traceback)"
    return None


def print_message(text: str) -> None:
    """Print a message to standard error."""
    print(text, file=sys.stderr, flush=True)


def print_lines(*lines: str) -> None:
    """Print lines to standard output."""
    print(*lines, sep="\n", flush=True)
