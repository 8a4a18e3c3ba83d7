"""Claim: two workers on one machine take no longer than one device, apart from the machine's own cost of sharing.

    python benchmarks/local_workers.py [--steps N] [--rounds N]

Four ways to train the same network on the same cores with the same global batch, each in separate processes:

- one device;
- two workers with half of the batch each, started by `trainers.launch`;
- two independent processes with half of the batch each, the limit for workers whose exchange of gradients is free;
- two processes that exchange gradients over a loopback socket: a bare compiled step on batches in memory, without
  strategy, pipeline or records.

The first half of each run is not measured.
"""

import argparse
import functools
import json
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from harness import results
from harness.timing import in_turn, ratio

WIDTHS = (32, 64, 128)
OPTIONS = ["--dataset", "shapes", "--blocks", "1", "--widths", *map(str, WIDTHS), "--log-every", "5"]
OPTIONS += ["--evaluate-every", "100000", "--checkpoint-every", "100000", "--test-images", "128", "--clip-norm", "1"]
BATCH = 128


def seconds_per_step(run):
    """Return the mean over the second half of the records."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    records = [record for record in records if record["kind"] == "train"]
    records = records[len(records) // 2 :]
    batch = json.loads((run / "config.json").read_text())["settings"]["batch_size"]
    return statistics.mean(batch / record["images_per_second"] for record in records)


def by_hand(number, port, steps):
    """Run one of two processes that train together over a socket, and print its seconds per step."""
    import numpy as np
    import tensorflow as tf

    from idmatters_tf.data import shapes
    from idmatters_tf.data.augment import AUGMENTATIONS
    from idmatters_tf.data.batches import TrainBatches
    from idmatters_tf.models.cifar import identity_resnet
    from idmatters_tf.optimizers import Momentum

    data = shapes.load()
    train = TrainBatches(data.train_images, data.train_labels, BATCH, 0, AUGMENTATIONS["paper"])
    half = BATCH // 2
    batches = [train.batch(step, number * half, (number + 1) * half) for step in range(8)]
    model = identity_resnet(blocks=1, widths=WIDTHS)
    optimizer = Momentum(0.05, 0.9)
    optimizer.build(model.trainable_variables)
    sizes = [int(np.prod(variable.shape)) for variable in model.trainable_variables]

    @tf.function
    def gradient(images, labels):
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images, training=True))
            loss = tf.reduce_sum(losses) / BATCH + tf.add_n(model.losses) / 2
        parts = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
        return tf.concat([tf.reshape(part, [-1]) for part in parts], 0)

    @tf.function
    def update(flat):
        flat = tf.clip_by_norm(flat, 1.0)
        for part, variable in zip(tf.split(flat, sizes), model.trainable_variables, strict=True):
            optimizer.update_step(tf.reshape(part, variable.shape), variable.value, tf.constant(0.05))

    # The first process listens.
    if number == 0:
        with socket.create_server(("127.0.0.1", port)) as server:
            other, _ = server.accept()
    else:
        deadline = time.monotonic() + 120
        while True:
            try:
                other = socket.create_connection(("127.0.0.1", port), timeout=60)
                break
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
    theirs = np.empty(sum(sizes), np.float32)
    with other:
        other.settimeout(60)
        other.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for step in range(steps):
            if step == steps // 2:
                began = time.perf_counter()
            ours = gradient(*batches[step % 8]).numpy()
            exchange(other, ours, theirs, first=number == 0)
            update(tf.constant(ours + theirs))
    print((time.perf_counter() - began) / (steps - steps // 2))


def exchange(other, ours, theirs, first):
    """Exchange gradients. One process sends first, so that buffers need not hold a whole gradient."""

    def receive():
        view = memoryview(theirs).cast("B")
        while view:
            view = view[other.recv_into(view) :]

    if first:
        other.sendall(memoryview(ours).cast("B"))
        receive()
    else:
        receive()
        other.sendall(memoryview(ours).cast("B"))


def measure_by_hand(steps):
    """Return the seconds per step of two processes that exchange gradients over a socket."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    command = [sys.executable, __file__, "--steps", str(steps), "--by-hand"]
    processes = [
        subprocess.Popen([*command, str(number), str(port)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for number in range(2)
    ]
    return max(float(process.communicate(timeout=600)[0]) for process in processes)


def measure_programs(program, batch, runs, steps):
    """Return the seconds per step of one training run, or of several concurrent ones.

    Args:
        program: the words after `python -m`.
        batch: batch size of each run.
        runs: number of concurrent runs.
        steps: number of steps of each run.
    """
    with tempfile.TemporaryDirectory() as folder:
        folders = [pathlib.Path(folder) / str(number) for number in range(runs)]
        command = [sys.executable, "-m", *program, *OPTIONS, "--steps", str(steps), "--batch-size", str(batch), "--out"]
        processes = [
            subprocess.Popen([*command, str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for out in folders
        ]
        codes = [process.wait(timeout=600) for process in processes]
        if any(codes):
            raise SystemExit(f"error: {' '.join(program)} failed")
        return max(seconds_per_step(out) for out in folders)


def main():
    parser = results.parser(__doc__, rounds=3)
    parser.add_argument("--steps", type=int, default=60, help="steps of each run (default: %(default)s)")
    parser.add_argument("--by-hand", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.by_hand:
        by_hand(*options.by_hand, options.steps)
        return
    report = results.Report(__file__, options, ["tensorflow", "keras"])
    train = functools.partial(measure_programs, steps=options.steps)
    launch = ("trainers.launch", "--workers", "2", "--", "cifar")
    ways = {
        "two workers": lambda: train(launch, BATCH, runs=1),
        "one device": lambda: train(("trainers.cifar",), BATCH, runs=1),
        "two independent processes": lambda: train(("trainers.cifar",), BATCH // 2, runs=2),
        "two processes that exchange by hand": lambda: measure_by_hand(options.steps),
    }
    times = in_turn(ways, options.rounds)
    ours = times["two workers"]
    for name, values in times.items():
        report.add(name, values, "ms a step", 1e3, ratio=ratio(ours, values) if values is not ours else None)
    report.finish(f"Steps of {BATCH} images.")


if __name__ == "__main__":
    main()
