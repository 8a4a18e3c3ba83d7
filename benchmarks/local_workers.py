"""Claim: two workers on one machine take no longer than one device, beyond what the machine itself loses to sharing.

    python benchmarks/local_workers.py [--steps N] [--rounds N]

Ways to train the same network on the same cores with the same global batch, each in processes of its own, in turn: one
device; two workers with half of the batch each, started by `trainers.launch`; and, as the machine's own limits, two
processes with half of the batch each that know nothing of one another, what two workers would take if exchanging
gradients cost nothing; and two that exchange them by hand: a bare compiled step on batches that are there already, the
gradients through a loopback socket, no strategy, no pipeline, no records. Without the first half of each run.
"""

import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time

WIDTHS = (32, 64, 128)
OPTIONS = ["--dataset", "shapes", "--blocks", "1", "--widths", *map(str, WIDTHS), "--log-every", "5"]
OPTIONS += ["--evaluate-every", "100000", "--checkpoint-every", "100000", "--test-images", "128", "--clip-norm", "1"]
BATCH = 128


def seconds_per_step(run):
    """The mean over the second half of the records."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    records = [record for record in records if record["kind"] == "train"]
    records = records[len(records) // 2 :]
    batch = json.loads((run / "config.json").read_text())["settings"]["batch_size"]
    return statistics.mean(batch / record["images_per_second"] for record in records)


def by_hand(number, port, steps):
    """One of two processes that train together over a socket; prints its seconds per step."""
    import numpy as np
    import tensorflow as tf

    from idmatters_tf.data import shapes
    from idmatters_tf.data.augment import AUGMENTATIONS
    from idmatters_tf.data.batches import TrainBatches
    from idmatters_tf.optimizers import Momentum
    from models.cifar import identity_resnet

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

    # The one with the lower number listens.
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
            _exchange(other, ours, theirs, first=number == 0)
            update(tf.constant(ours + theirs))
    print((time.perf_counter() - began) / (steps - steps // 2))


def _exchange(other, ours, theirs, first):
    """Sends and receives; the first one sends first, so that buffers need not hold a whole gradient."""

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


def timed_by_hand(steps):
    """Seconds per step of two processes by hand."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    command = [sys.executable, __file__, "--steps", str(steps), "--by-hand"]
    processes = [
        subprocess.Popen([*command, str(number), str(port)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for number in range(2)
    ]
    return max(float(process.communicate(timeout=600)[0]) for process in processes)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60, help="of each run (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--by-hand", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.by_hand:
        by_hand(*options.by_hand, options.steps)
        return
    words = [*OPTIONS, "--steps", str(options.steps)]
    launch = ["trainers.launch", "--workers", "2", "--", "cifar"]
    times = {"one device": [], "two workers": [], "two apart": [], "two by hand": []}
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
        times["two by hand"].append(timed_by_hand(options.steps))
    for name, values in times.items():
        low, middle, high = (1000 * f(values) for f in (min, statistics.median, max))
        print(f"{name:12} {middle:8.2f} ms a step of {BATCH} pictures   ({low:.2f} .. {high:.2f})")
    for other in ("one device", "two apart", "two by hand"):
        ratio = statistics.median(a / b for a, b in zip(times["two workers"], times[other], strict=True))
        print(f"two workers / {other}: ratio {ratio:.3f} on {len(os.sched_getaffinity(0))} cores")


if __name__ == "__main__":
    main()
