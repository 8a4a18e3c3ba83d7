"""Runs the benchmarks one after the other and prints one table of their ratios.

    python benchmarks/everything.py [NAME ...] [--out FILE.md]

Each script measures its alternatives in turn in one process; this one only collects what they print. Without names all
run but `cifar_on_jax`, which is a training of its own.
"""

import argparse
import datetime
import os
import pathlib
import platform
import re
import subprocess
import sys
import time

FOLDER = pathlib.Path(__file__).resolve().parent
LEFT_OUT = ("everything", "cifar_on_jax")


def run(name):
    """The lines of a script that hold a ratio; what else it says goes to the terminal as it comes."""
    command = [sys.executable, "-u", str(FOLDER / f"{name}.py")]
    process = subprocess.Popen(command, cwd=FOLDER.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = []
    for line in process.stdout:
        print(f"  {line}", end="", flush=True)
        if re.search(r"ratio\s+[\d.]", line):
            lines.append(" ".join(line.split()))
    return lines if process.wait() == 0 else [*lines, f"failed with exit code {process.returncode}"]


def main():
    names = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in LEFT_OUT)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)} (default: all)")
    parser.add_argument("--out", type=pathlib.Path, help="write the table there, too")
    options = parser.parse_args()
    unknown = set(options.names) - set(names)
    if unknown:
        parser.error(f"there is no benchmark {sorted(unknown)[0]}; expected {', '.join(names)}")

    began, rows = time.monotonic(), []
    for name in options.names or names:
        print(f"== {name}", flush=True)
        rows += [(name, line) for line in run(name)]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    table = "| benchmark | measured |\n|---|---|\n" + "".join(f"| `{name}` | {line} |\n" for name, line in rows)
    table += (
        f"\n{cores} cores ({platform.machine()}), {datetime.date.today()}, "
        f"{(time.monotonic() - began) / 60:.0f} minutes.\n"
    )
    print(f"\n{table}")
    if options.out:
        options.out.write_text(table)
    return any("failed with" in line for _, line in rows)


if __name__ == "__main__":
    sys.exit(main())
