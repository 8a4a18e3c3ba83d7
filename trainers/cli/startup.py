"""Start and end of all programs: log levels of libraries, one-line error messages, exit codes."""

import contextlib
import io
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Generator, Sequence
from typing import NoReturn

from idmatters_tf._imports import EXTRAS, describe_missing


def run_program(main: Callable[[], int], backends: Sequence[str] = ("tensorflow",)) -> NoReturn:
    """Run `main()` and exit with its code. Known errors become one line on standard error.

    Python's development mode (`python -X dev`) shows tracebacks too.

    Exit codes: 0 done, 1 failed while running, 2 bad input, 130 / 143 stopped by Ctrl-C / SIGTERM after saving. Known
    errors have the attribute `exit_code`.

    Args:
        main: the program, which reads `sys.argv`.
        backends: backends of Keras on which it runs. The first one is the default.
    """
    backend = os.environ.get("KERAS_BACKEND") or backends[0]
    if backend not in backends:
        print_message(f"warning: this program runs on {' or '.join(backends)}, not on KERAS_BACKEND={backend}")
        backend = backends[0]
    # Also if Keras' configuration file selects another backend.
    os.environ["KERAS_BACKEND"] = backend
    enable_onednn()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Names of files may not be UTF-8, and not all terminals print all characters.
            stream.reconfigure(errors="backslashreplace")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        try:
            code = main()
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        print_message("stopped by Ctrl-C; saved files are intact")
        code = 130
    except BrokenPipeError:
        # The reader, such as `head`, has ended. Python would write the rest at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 1
    except Exception as error:
        sentence = describe_error(error)
        if sentence is None:
            raise
        if sys.flags.dev_mode:
            traceback.print_exc()
        print_message(f"error: {sentence}")
        code = getattr(error, "exit_code", 1)
    sys.exit(code)


def enable_onednn() -> None:
    """Enable TensorFlow's oneDNN kernels, which is without effect after its import, unless the user has set them.

    TensorFlow itself enables them only on processors with VNNI instructions. Without them training is slower, and there
    are no convolutions with channels first.
    """
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")


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
    if isinstance(error, ModuleNotFoundError) and error.name in EXTRAS:
        # Of `require`, with all missing packages, or of an import.
        return str(error) if "pip install" in str(error) else describe_missing(error.name)
    # The base class of TensorFlow's errors, which this module does not import.
    if any(kind.__name__ == "OpError" for kind in type(error).__mro__):
        message = str(getattr(error, "message", error)).strip().splitlines()[0]
        return f"TensorFlow failed: {message} (use python -X dev for the traceback)"
    return None


def print_message(text: str) -> None:
    """Print a message to standard error."""
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def print_warnings() -> Generator[None, None, None]:
    """Print warnings inside of the block as messages, without their place in the code."""
    with warnings.catch_warnings():

        def show(message: Warning | str, *_: object, **__: object) -> None:
            print_message(f"warning: {message}")

        warnings.showwarning = show
        yield


def print_lines(*lines: str) -> None:
    """Print lines to standard output."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()
