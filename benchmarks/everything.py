"""Run the benchmarks one after the other; with --record, update the results in benchmarks/README.md.

    python benchmarks/everything.py [NAME ...] [--record] [--peer-python FILE]

Without names, all benchmarks run except `deepen_while_training`, `optimizers` and `trainability`, which train networks
for hours, and `curvature_sweep`, which does not measure time.
"""

import argparse
import pathlib
import subprocess
import sys

from harness.peer import installed

FOLDER = pathlib.Path(__file__).resolve().parent
LEFT_OUT = ("curvature_sweep", "deepen_while_training", "everything", "optimizers", "table", "trainability")
WITH_PEERS = ("curvature_against_torch", "linear_hessian", "training_step")


def main():
    names = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in LEFT_OUT)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"benchmarks to run: {', '.join(names)} (default: all)"
    )
    parser.add_argument("--record", action="store_true", help="store the results and update the table in README.md")
    parser.add_argument(
        "--peer-python",
        default=sys.executable,
        metavar="FILE",
        help="Python interpreter with PyTorch (default: this one)",
    )
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(names))
    if unknown:
        parser.error(f"unknown benchmark {unknown[0]}. Expected one of: {', '.join(names)}")

    failed = []
    for name in options.names or names:
        print(f"== {name}", flush=True)
        if name == "curvature_against_torch" and not installed("hessian_eigenthings", options.peer_python):
            print("skipped: requires PyTorch and its libraries (pip install '.[bench]' or --peer-python)")
            continue
        command = [sys.executable, str(FOLDER / f"{name}.py"), *(["--record"] if options.record else [])]
        command += ["--peer-python", options.peer_python] if name in WITH_PEERS else []
        if subprocess.run(command, cwd=FOLDER.parent, check=False).returncode:
            failed.append(name)
    if options.record:
        subprocess.run([sys.executable, str(FOLDER / "table.py")], check=True)
    if failed:
        sys.exit(f"error: these benchmarks failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
