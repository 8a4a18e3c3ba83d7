"""Claim: two workers on one machine take no longer than one device, beyond what the machine itself loses to sharing.

    python benchmarks/local_workers.py [--steps N] [--rounds N]

Three ways to train the same network on the same cores with the same global batch, each in processes of its own, in
turn: one device; two workers with half of the batch each, started by `trainers.launch`; and, as the machine's own
limit, two processes with half of the batch each that know nothing of one another: what two workers would take if
exchanging gradients cost nothing. Rates are those that the runs record, without their first half.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

OPTIONS = ["--dataset", "shapes", "--blocks", "1", "--widths", "32", "64", "128", "--log-every", "5"]
OPTIONS += ["--evaluate-every", "100000", "--checkpoint-every", "100000", "--test-images", "128", "--clip-norm", "1"]
BATCH = 128


def seconds_per_step(run):
    """The mean over the second half of the records."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    records = [record for record in records if record["kind"] == "train"]
    records = records[len(records) // 2 :]
    batch = json.loads((run / "config.json").read_text())["settings"]["batch_size"]
    return statistics.mean(batch / record["images_per_second"] for record in records)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60, help="of each run (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    options = parser.parse_args()
    words = [*OPTIONS, "--steps", str(options.steps)]
    launch = ["trainers.launch", "--workers", "2", "--", "cifar"]
    times = {"one device": [], "two workers": [], "two apart": []}
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            ways = {
                "one device": [(["trainers.cifar"], BATCH, "one")],
                "two workers": [(launch, BATCH, "both")],
                "two apart": [(["trainers.cifar"], BATCH // 2, name) for name in ("left", "right")],
            }
            for name, processes in ways.items():
                started = []
                for program, batch, out in processes:
                    command = [sys.executable, "-m", *program, *words, "--batch-size", str(batch)]
                    command += ["--out", str(folder / out)]
                    started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
                for process in started:
                    if process.wait(timeout=600):
                        raise SystemExit(f"{name} failed")
                times[name].append(max(seconds_per_step(folder / out) for _, _, out in processes))
    for name, values in times.items():
        low, middle, high = (1000 * f(values) for f in (min, statistics.median, max))
        print(f"{name:12} {middle:8.2f} ms a step of {BATCH} pictures   ({low:.2f} .. {high:.2f})")
    for other in ("one device", "two apart"):
        ratio = statistics.median(a / b for a, b in zip(times["two workers"], times[other], strict=True))
        print(f"two workers / {other}: {ratio:.3f} on {len(os.sched_getaffinity(0))} cores")


if __name__ == "__main__":
    main()
