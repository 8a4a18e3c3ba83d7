"""Explain the first difference between two runs of a script with `model.fit`.

python -m idmatters_tf.doctor fit.py --steps 3 --against again restart workers=2
"""

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from idmatters_tf.doctor._explain import explain_differences
from idmatters_tf.doctor._report import exit_code
from idmatters_tf.doctor._runs import KINDS, ScriptError

EPILOG = """
kinds of second runs:
  again       the same command
  restart     killed after the first epoch, and started again
  resume=N    killed after step N (default: 2), and started again
  workers=N   N processes with TF_CONFIG (default: 2)
  replicas=N  N logical CPUs (default: 2)
  threads=N   N threads for each operation (default: 1)
  hashseed    another PYTHONHASHSEED
  listdir     folders list their entries in the reverse order
  folder      another folder for temporary files

Each run has a copy of the working folder. exit codes: 0 equal; 1 different; 2 error
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}. See --help.\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Compare the runs and print a block for each kind. Return the exit code."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = _Parser(
        "python -m idmatters_tf.doctor", description=str(__doc__).splitlines()[0], epilog=EPILOG, formatter_class=layout
    )
    parser.add_argument("script", help="script that calls `fit` of a Keras model")
    parser.add_argument("arguments", nargs="*", default=[], help="arguments of the script, after --")
    parser.add_argument("--steps", type=int, default=3, help="number of steps to compare (default: %(default)s)")
    parser.add_argument(
        "--against", nargs="+", default=["again"], metavar="KIND", help=f"second runs: {', '.join(KINDS)}"
    )
    parser.add_argument("--repetitions", type=int, default=5, help="number of second runs (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(argv)
    arguments = {"arguments": options.arguments, "repetitions": options.repetitions}
    try:
        findings = explain_differences(
            options.script, options.against, options.steps, **arguments, show=lambda text: print(text, file=sys.stderr)
        )
    except (ValueError, ScriptError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps([finding.as_dict() for finding in findings], indent=2))
    else:
        print("\n\n".join(map(str, findings)))
    return exit_code(findings)


if __name__ == "__main__":
    # The processes of the runs end with this one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
