"""Claim: `import idmatters_tf` and every `--help` answer over ten times sooner than `import tensorflow` alone.

    python benchmarks/startup.py [--rounds N]

Each is a fresh process, in turn; medians over the rounds. The interpreter's own start is in all of them.
"""

import argparse
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]


def seconds(*command):
    start = time.perf_counter()
    subprocess.run([sys.executable, *command], cwd=ROOT, check=True, capture_output=True)
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    options = parser.parse_args()

    programs = sorted(
        f"trainers.{path.stem}" for path in (ROOT / "trainers").glob("*.py") if "run_program(" in path.read_text()
    )
    programs.remove("trainers.startup")
    commands = {
        "import tensorflow": ("-c", "import tensorflow"),
        "import idmatters_tf, models, trainers": ("-c", "import idmatters_tf, models, trainers"),
        "import idmatters_tf.linear": ("-c", "from idmatters_tf import linear; linear.factorize"),
        **{f"{program} --help": ("-m", program, "--help") for program in programs},
    }
    times = {name: [] for name in commands}
    for _ in range(options.rounds):
        for name, command in commands.items():
            times[name].append(seconds(*command))
    slowest = statistics.median(times["import tensorflow"])
    for name, values in times.items():
        median = statistics.median(values)
        spread = f"{min(values):.2f} .. {max(values):.2f}"
        print(f"{name:40}{median:7.2f} s   ({spread})   ratio {slowest / median:5.1f}")


if __name__ == "__main__":
    main()
