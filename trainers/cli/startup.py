"""How every program starts and ends: quiet libraries, known errors as one line, exit codes."""

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
# Names a descriptor that is readable for as long as the launcher of this process lives.
LAUNCHER_VARIABLE = "IDMATTERS_LAUNCHER"
_INTERRUPTED = "stopped by Ctrl-C; what was saved before is intact"
# How many seconds the process has to end in order.
_SWALLOWED_AFTER = 10.0
# Optional packages; the extras "tensorflow" and "train" install all of them.
OPTIONAL = ("huggingface_hub", "matplotlib", "tensorboard", "tensorflow", "tensorflow_datasets")
_WITHOUT_TENSORFLOW = ("plan", "report")
_INFORMATION = {"-h", "--help", "--help-all", "--version"}
# Where standard error leads while `import_tensorflow` hides it.
_visible = 2
# Whether Ctrl-C was pressed, whatever libraries have made of it.
_interrupted = False


def run_program(main: Callable[[Sequence[str]], int]) -> NoReturn:
    """Runs `main(argv)` and ends the process with its exit code; known errors become one line on standard error.

    Exit codes: 0 done, 1 failed while running, 2 bad input, 130 / 143 stopped by Ctrl-C / SIGTERM after saving.
    """
    backend = os.environ.get("KERAS_BACKEND") or "tensorflow"
    # Also where Keras' own configuration file names another backend.
    os.environ["KERAS_BACKEND"] = "tensorflow"
    if DEBUG not in sys.argv:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # As standard error does: the terminal may lack letters of a name.
        sys.stdout.reconfigure(errors="backslashreplace")
    _end_with_launcher()
    interrupts = _Interrupts()
    try:
        _check_backend(backend)
        code = main(sys.argv[1:])
    except BaseException as error:
        sentence, code = explained(error)
        # Libraries make errors of their own of Ctrl-C.
        if interrupts.received and not isinstance(error, SystemExit):
            sentence, code = _INTERRUPTED, 130
        if sentence is None:
            raise
        if DEBUG in sys.argv:
            traceback.print_exc()
        last_words(sentence if sentence is _INTERRUPTED else f"error: {escape_controls(sentence)}")
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
    """Ends the process on Ctrl-C with an orderly exception, and at once where a library has swallowed that."""

    def __init__(self) -> None:
        self.received = False
        # Ignored from the start, as in the background of a script: it stays so.
        self._wanted = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
        if self._wanted:
            signal.signal(signal.SIGINT, self._receive)

    def _receive(self, _number, _frame):
        global _interrupted
        self.received = _interrupted = True
        timer = threading.Timer(_SWALLOWED_AFTER, self._end)
        timer.daemon = True
        timer.start()
        raise KeyboardInterrupt

    def _end(self):
        last_words(_INTERRUPTED)
        os._exit(130)

    def ignore(self):
        """Nothing is left to be interrupted."""
        if self._wanted:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def say(text: str) -> None:
    """Prints a sentence for people on standard error, from any thread, also while TensorFlow is being imported.

    What would move the cursor or cannot be printed is shown as an escape sequence: parts of the sentence may come
    from file names, or from another machine.
    """
    shown = escape_controls(text, keep="\n")
    if _visible == 2:
        print(shown, file=sys.stderr, flush=True)
    else:
        os.write(_visible, f"{shown}\n".encode())


def tell(*lines: str) -> None:
    """Prints lines on standard output, each with the escapes of `say`: one line stays one line."""
    for line in lines:
        print(escape_controls(line), flush=True)


def say_nothing(text: str) -> None:
    """In place of `say`, where others say it or nobody needs to know."""


def last_words(text: str) -> None:
    """Like `say`, for a process that is about to end: nobody may be listening any more."""
    with contextlib.suppress(OSError, ValueError):
        say(text)


def explained(error: Any) -> tuple[str | None, int]:
    """A sentence and an exit code for errors that are no fault of the program; (None, 1) for the others."""
    if isinstance(error, UsageError):
        return str(error), 2
    if isinstance(error, KeyboardInterrupt):
        return _INTERRUPTED, 130
    # Not imported for this: where neither has been imported, the error is not one of theirs.
    images: Any = sys.modules.get("idmatters_tf.data.images")
    if images is not None and isinstance(error, images.DataError):
        # The library names arguments; the options of the programs have the same names.
        options = " or ".join(f"--{name.replace('_', '-')}" for name in error.arguments)
        return f"{error} (option {options})" if options else str(error), 2
    ownership: Any = sys.modules.get("idmatters_tf._ownership")
    if ownership is not None and isinstance(error, ownership.PathOccupied):
        return str(error), 2
    if isinstance(error, RunError):
        return str(error), 1
    if isinstance(error, MemoryError):
        return f"there is not enough memory for this: {str(error) or 'ask for less'}", 1
    if isinstance(error, OSError):
        return f"{error.strerror or error}: {error.filename or 'while reading or writing'}", 1
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing in OPTIONAL:
        return f"{missing} is not installed: pip install 'idmatters-tf[{_needed_extras()}]'", 1
    tensorflow: Any = sys.modules.get("tensorflow")
    if tensorflow is not None and isinstance(error, tensorflow.errors.OpError):
        message = str(getattr(error, "message", error)).strip()
        if "No space left on device" in message:
            return f"{message.splitlines()[0]}. Make room, then give the same command again.", 1
        return f"TensorFlow failed: {message.splitlines()[0]} (use {DEBUG} for the whole story)", 1
    return None, 1


def _needed_extras() -> str:
    """Return the extras of the package that the running program needs."""
    # Beside tensorflow-cpu the extra would install TensorFlow a second time.
    lacks = _program() not in _WITHOUT_TENSORFLOW and importlib.util.find_spec("tensorflow") is None
    return "tensorflow,train" if lacks else "train"


def _end_with_launcher():
    """Ends this process when the launcher that started it is gone, however it ended."""
    descriptor = os.environ.pop(LAUNCHER_VARIABLE, "")
    if not descriptor.isdecimal():
        return

    def watch():
        with contextlib.suppress(OSError):
            os.set_inheritable(int(descriptor), False)
            # Nothing is ever written: this returns at the end of the launcher.
            os.read(int(descriptor), 1)
            last_words("error: the launcher of this process is gone")
            os._exit(1)

    threading.Thread(target=watch, name="launcher watch", daemon=True).start()


def import_tensorflow() -> None:
    """Imports TensorFlow without what it logs while loading, before its own log settings are in force."""
    if DEBUG in sys.argv or "tensorflow" in sys.modules:
        return
    global _visible
    sys.stderr.flush()
    kept = _visible = os.dup(2)
    with tempfile.TemporaryFile() as hidden:
        os.dup2(hidden.fileno(), 2)
        try:
            import tensorflow

            # Looking for devices is what logs that there are none.
            tensorflow.config.list_physical_devices()
            tensorflow.get_logger().setLevel("ERROR")
            _drop_errors_of_destructors(tensorflow.errors.OpError)
        except Exception:
            # What libraries log of an interrupted import says nothing.
            if not _interrupted:
                hidden.seek(0)
                os.write(kept, hidden.read())
            raise
        finally:
            os.dup2(kept, 2)
            _visible = 2
            os.close(kept)


def _drop_errors_of_destructors(kind: type[Exception]):
    """Has Python no longer print errors of a kind that a destructor raised.

    TensorFlow's objects wait for their devices when they are destroyed, which fails once a task of the cluster is lost.
    The program deals with that loss where it was noticed, and has nothing to do with these.
    """
    previous = sys.unraisablehook

    def hook(unraisable):
        if not isinstance(unraisable.exc_value, kind):
            previous(unraisable)

    sys.unraisablehook = hook
