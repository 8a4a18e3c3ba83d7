"""How every program starts and ends: quiet libraries, known errors as one line, exit codes."""

import os
import sys
import tempfile
import traceback

from trainers.cli.arguments import RunError, UsageError

DEBUG = "--debug"


def run_program(main):
    """Runs `main(argv)` and ends the process with its exit code; known errors become one line on standard error.

    Exit codes: 0 done, 1 failed while running, 2 bad input, 130 / 143 stopped by Ctrl-C / SIGTERM after saving.
    """
    # The programs are TensorFlow's, whatever backend the user's other projects use.
    os.environ["KERAS_BACKEND"] = "tensorflow"
    if DEBUG not in sys.argv:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        code = main(sys.argv[1:])
    except KeyboardInterrupt:
        print("stopped by Ctrl-C; what was saved before is intact", file=sys.stderr)
        code = 130
    except Exception as error:
        sentence, code = _explained(error)
        if sentence is None:
            raise
        if DEBUG in sys.argv:
            traceback.print_exc()
        print(f"error: {sentence}", file=sys.stderr)
    sys.exit(code)


def _explained(error):
    """A sentence and an exit code for errors that are no fault of the program; (None, 1) for the others."""
    if isinstance(error, UsageError):
        return str(error), 2
    images = sys.modules.get("idmatters_tf.data.images")
    if images is not None and isinstance(error, images.DataError):
        # The library names arguments; the options of the programs have the same names.
        options = " or ".join(f"--{name.replace('_', '-')}" for name in error.arguments)
        return f"{error} (option {options})" if options else str(error), 2
    if isinstance(error, RunError):
        return str(error), 1
    if isinstance(error, OSError):
        return f"{error.strerror or error}: {error.filename or 'while reading or writing'}", 1
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and isinstance(error, tensorflow.errors.OpError):
        return f"TensorFlow failed: {error.message.strip().splitlines()[0]} (use {DEBUG} for the whole story)", 1
    return None, 1


def import_tensorflow():
    """Imports TensorFlow without what it logs while loading, before its own log settings are in force."""
    if DEBUG in sys.argv or "tensorflow" in sys.modules:
        return
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as hidden:
        os.dup2(hidden.fileno(), 2)
        try:
            import tensorflow

            # Looking for devices is what logs that there are none.
            tensorflow.config.list_physical_devices()
            tensorflow.get_logger().setLevel("ERROR")
        except BaseException:
            hidden.seek(0)
            os.write(kept, hidden.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)
