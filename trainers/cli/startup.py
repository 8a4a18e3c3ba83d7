"""Start and end of all programs: log levels of libraries, one-line error messages, exit codes."""

import contextlib
import importlib.util
import io
import os
import pathlib
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from trainers.cli.arguments import RunError, UsageError
from trainers.cli.text import escape_controls

DEBUG = "--debug"
# Environment variable with a file descriptor that reaches its end when the launcher of this process ends.
LAUNCHER_VARIABLE = "IDMATTERS_LAUNCHER"
_INTERRUPTED = "stopped by Ctrl-C; saved files are intact"
# Number of seconds after which an interrupted process is ended if a library has suppressed the exception.
_SWALLOWED_AFTER = 10.0
# Number of seconds after which an exception is raised again that Python has ignored in a destructor or a callback.
_RAISED_AGAIN_AFTER = 0.1
# Optional packages; the extras "tensorflow" and "train" install all of them but shtab.
OPTIONAL = ("huggingface_hub", "matplotlib", "shtab", "tensorboard", "tensorflow", "tensorflow_datasets")
_WITHOUT_TENSORFLOW = ("plan", "report")
# Options that do not train.
_INFORMATION = {"-h", "--dry-run", "--help", "--help-all", "--list", "--print-completion", "--version"}
# File descriptor of the terminal while `import_tensorflow` redirects standard error.
_visible = 2
# True after Ctrl-C, even if a library has suppressed the exception.
_interrupted = False


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
    _end_with_launcher()
    interrupts = _Interrupts()
    try:
        _check_backend(backend)
        code = main(sys.argv[1:])
    except BaseException as error:
        sentence, code = explain_error(error)
        # Libraries convert Ctrl-C into other exceptions.
        if interrupts.received and not isinstance(error, SystemExit):
            sentence, code = _INTERRUPTED, 130
        if sentence is None:
            raise
        if DEBUG in sys.argv:
            traceback.print_exc()
        say_before_exit(sentence if sentence is _INTERRUPTED else f"error: {escape_controls(sentence)}")
    finally:
        interrupts.ignore()
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


class _Interrupts:
    """Handler of Ctrl-C: raises KeyboardInterrupt, and ends the process if a library suppresses it.

    Python ignores exceptions in destructors and in callbacks of the garbage collection. There it is raised again.
    """

    def __init__(self) -> None:
        self.received = False
        self._hook = sys.unraisablehook
        # In the background of a script, SIGINT is ignored from the start and stays ignored.
        self._wanted = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
        if self._wanted:
            signal.signal(signal.SIGINT, self._receive)
            sys.unraisablehook = self._raise_again

    def _raise_again(self, unraisable):
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            self._hook(unraisable)
            return
        timer = threading.Timer(_RAISED_AGAIN_AFTER, os.kill, (os.getpid(), signal.SIGINT))
        timer.daemon = True
        timer.start()

    def _receive(self, _number, _frame):
        global _interrupted
        self.received = _interrupted = True
        timer = threading.Timer(_SWALLOWED_AFTER, self._end)
        timer.daemon = True
        timer.start()
        raise KeyboardInterrupt

    def _end(self):
        say_before_exit(_INTERRUPTED)
        os._exit(130)

    def ignore(self):
        """Ignore further interrupts."""
        if self._wanted:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def print_message(text: str) -> None:
    """Print a message to standard error, from any thread, also during the import of TensorFlow.

    Control and unprintable characters are shown as escape sequences, since the text may contain file names or data
    from another machine.
    """
    shown = escape_controls(text, keep="\n")
    if _visible == 2:
        print(shown, file=sys.stderr, flush=True)
    else:
        os.write(_visible, f"{shown}\n".encode())


def print_lines(*lines: str) -> None:
    """Print lines to standard output, with control characters, including line breaks, as escape sequences."""
    for line in lines:
        print(escape_controls(line), flush=True)


def discard_message(text: str) -> None:
    """Discard a message; a substitute for `say`."""


def say_before_exit(text: str) -> None:
    """Print a message to standard error, and ignore a closed stream."""
    with contextlib.suppress(OSError, ValueError):
        print_message(text)


def explain_error(error: Any) -> tuple[str | None, int]:
    """Return (message, exit code) for expected errors, and (None, 1) for errors of the program."""
    if isinstance(error, UsageError):
        return str(error), 2
    if isinstance(error, KeyboardInterrupt):
        return _INTERRUPTED, 130
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
        extras = "completion" if missing == "shtab" else _needed_extras()
        return f"{missing} is not installed: pip install 'idmatters-tf[{extras}]'", 1
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


def _end_with_launcher():
    """End this process when its launcher has ended, for whatever reason."""
    descriptor = os.environ.pop(LAUNCHER_VARIABLE, "")
    if not descriptor.isdecimal():
        return

    def watch():
        with contextlib.suppress(OSError):
            os.set_inheritable(int(descriptor), False)
            # Nothing is written to the pipe: reading returns when the launcher ends.
            os.read(int(descriptor), 1)
            say_before_exit("error: the launcher of this process has ended")
            os._exit(1)

    threading.Thread(target=watch, name="launcher watch", daemon=True).start()


def import_tensorflow() -> None:
    """Import TensorFlow and discard the messages that it logs before its log level takes effect."""
    if DEBUG in sys.argv or "tensorflow" in sys.modules:
        return
    global _visible
    sys.stderr.flush()
    kept = _visible = os.dup(2)
    with tempfile.TemporaryFile() as hidden:
        os.dup2(hidden.fileno(), 2)
        try:
            import tensorflow

            # The first query of devices logs that there are no GPUs.
            tensorflow.config.list_physical_devices()
            tensorflow.get_logger().setLevel("ERROR")
            _drop_errors_of_destructors(tensorflow.errors.OpError)
        except Exception:
            # Messages about an interrupted import are misleading.
            if not _interrupted:
                hidden.seek(0)
                os.write(kept, hidden.read())
            raise
        finally:
            os.dup2(kept, 2)
            _visible = 2
            os.close(kept)


def _drop_errors_of_destructors(kind: type[Exception]):
    """Suppress the messages of Python about errors of a type in destructors.

    TensorFlow's objects wait for their devices when they are destroyed, which fails after the loss of a task of the
    cluster. The loss itself is handled where it is detected.
    """
    previous = sys.unraisablehook

    def hook(unraisable):
        if not isinstance(unraisable.exc_value, kind):
            previous(unraisable)

    sys.unraisablehook = hook
