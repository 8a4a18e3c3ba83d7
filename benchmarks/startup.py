"""Claim: `import idmatters_tf` and every `--help` are over ten times faster than `import tensorflow`.

    python benchmarks/startup.py [--rounds N]

Each command runs in a new process; all times include the start of the interpreter.
"""

import pathlib
import subprocess
import sys

from harness import results
from harness.timing import in_turn, ratio, timed

ROOT = pathlib.Path(__file__).resolve().parents[1]


def programs():
    """Return the names of all programs that can be run with `python -m`."""
    trainers = ROOT / "trainers"
    candidates = [*trainers.glob("*.py"), *trainers.glob("*/__main__.py")]
    paths = [path for path in candidates if "run_program(" in path.read_text()]
    return sorted(f"trainers.{path.parent.name if path.stem == '__main__' else path.stem}" for path in paths)


def main():
    options = results.parser(__doc__, rounds=5).parse_args()
    report = results.Report(__file__, options, ["tensorflow", "keras", "numpy", "scipy"])
    commands = {
        "import tensorflow": ("-c", "import tensorflow"),
        "import idmatters_tf.models, trainers": ("-c", "import idmatters_tf.models, trainers"),
        "import idmatters_tf.linear": ("-c", "from idmatters_tf import linear; linear.factorize"),
        **{f"{program} --help": ("-m", program, "--help") for program in programs()},
    }

    def start(command):
        return lambda: subprocess.run([sys.executable, *command], cwd=ROOT, check=True, capture_output=True)

    times = in_turn({name: timed(start(command)) for name, command in commands.items()}, options.rounds)
    slowest = times["import tensorflow"]
    for name, values in times.items():
        report.add(name, values, "s", ratio=ratio(slowest, values) if values is not slowest else None)
    report.finish()


if __name__ == "__main__":
    main()
