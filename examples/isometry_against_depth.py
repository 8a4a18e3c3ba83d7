"""Distance of each block from the identity, ||J - I||, before and after training, for networks of different depths.

    python examples/isometry_against_depth.py [--data-dir DIR] [--depths N ...] [--steps N] [--out DIR]

The networks are narrow versions of Hardt & Ma's Table 1 with 1 to 18 blocks per stage, with identity initialization,
standard initialization, Fixup, and batch normalization. The data are the first images of CIFAR-10, or the built-in
shapes without --data-dir. The batch-normalized networks are measured on a batch of 8 images as one point, with the
statistics of that batch, the others on two images.

Takes about half an hour on two CPU cores, and a few minutes with --steps 0, without training. Each result is saved in
a file below --out: the same command resumes an interrupted run, and --draw draws the saved results. At the end there
are a figure and a table, results.md.
"""

import argparse
import json
import pathlib
import sys

import quiet  # noqa: F401 - TensorFlow's start-up messages stay off the screen

# isort: split
import keras
import numpy as np
from matplotlib.figure import Figure

from idmatters_tf.data import shapes
from idmatters_tf.isometry import block_distances
from idmatters_tf.isometry.measurement import plot_distances
from idmatters_tf.models.cifar import identity_resnet
from idmatters_tf.optimizers import Momentum

KINDS = {
    "identity": {},
    "standard": {"initializer": "standard"},
    "fixup": {"initializer": "fixup", "branch_scale": 1.0, "bias": True, "head": "trained"},
    "batch": {"initializer": "standard", "norm": "batch"},
}
TITLES = {
    "identity": "identity initialization",
    "standard": "standard initialization",
    "fixup": "Fixup",
    "batch": "batch normalization",
}


def load(options):
    """Return standardized images and labels."""
    if options.data_dir:
        from idmatters_tf.data import cifar

        data = cifar.load("cifar10", options.data_dir)
    else:
        data = shapes.load(options.images, 10)
    images = data.train_images[: options.images].astype("float32")
    return (images - images.mean()) / images.std(), np.asarray(data.train_labels[: options.images])


def measure_distances(model, kind, images):
    """Return ||J - I|| at each input, as a list, by the name of the block."""
    batch = kind == "batch"
    distances = block_distances(model, images[: 8 if batch else 2], training=batch, progress=True)
    return {name: values.tolist() for name, values in distances.items()}


def train(model, images, labels, options):
    """Train a model. Return the mean loss over all steps, or None if it is not finite."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(Momentum(options.rate, 0.9, global_clipnorm=1.0), loss)
    needed = options.steps * options.batch_size
    order = np.resize(np.random.default_rng(0).permutation(len(images)), needed)
    history = model.fit(images[order], labels[order], batch_size=options.batch_size, shuffle=False, verbose=0)
    loss = history.history["loss"][-1]
    return loss if np.isfinite(loss) else None


def compute_result(kind, depth, data, options):
    """Return the saved results of a network: its distances before and after training. Compute missing results."""
    path = options.out / f"{kind}-{depth}.json"
    saved = json.loads(path.read_text()) if path.exists() else {}
    settings = {"widths": options.widths, "data": "cifar10" if options.data_dir else "shapes", "images": options.images}
    recipe = {"steps": options.steps, "rate": options.rate, "batch_size": options.batch_size}
    if saved.get("settings") != settings:
        saved = {"settings": settings}
    wanted = options.steps > 0 and saved.get("recipe") != recipe
    if options.draw or ("start" in saved and not wanted):
        return saved
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    images, labels = data
    print(f"{kind:8} {depth:3} blocks a stage: {3 * depth} blocks to measure", file=sys.stderr, flush=True)
    model = identity_resnet(blocks=depth, widths=options.widths, stem=options.widths[0], **KINDS[kind])
    saved.setdefault("start", measure_distances(model, kind, images))
    if wanted:
        print(f"{kind:8} {depth:3} blocks a stage: training for {options.steps} steps", file=sys.stderr, flush=True)
        saved |= {"loss": train(model, images, labels, options), "recipe": recipe}
        saved.pop("after", None)
        if saved["loss"] is not None:
            saved["after"] = measure_distances(model, kind, images)
    path.write_text(json.dumps(saved))
    return saved


def make_table_row(kind, saved):
    """Return the line of results.md for one kind of network. `saved` contains its results by depth."""
    cells = []
    for moment in ("start", "after"):
        blocks = [points for result in saved.values() for points in result.get(moment, {}).values()]
        distances = np.concatenate([*blocks, []])
        if blocks:
            cells += [f"{distances.min():.2g} to {distances.max():.2g}", f"{np.mean(distances < 1):.0%}"]
        else:
            cells += ["", ""]
    losses = [
        f"{depth}: {'diverged' if result['loss'] is None else format(result['loss'], '.2f')}"
        for depth, result in saved.items()
        if "loss" in result
    ]
    return f"| {TITLES[kind]} | {' | '.join(cells)} | {', '.join(losses)} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", help="folder of CIFAR-10's binary files (default: the built-in shapes)")
    parser.add_argument(
        "--depths", type=int, nargs="+", default=[1, 2, 3, 6, 9, 18], help="blocks per stage (default: 1 2 3 6 9 18)"
    )
    parser.add_argument(
        "--kinds", nargs="+", default=list(KINDS), choices=KINDS, help="kinds of networks (default: all)"
    )
    parser.add_argument(
        "--widths", type=int, nargs=3, default=[4, 8, 16], help="channels of the stages (default: 4 8 16)"
    )
    parser.add_argument("--images", type=int, default=5000, help="training images (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=300, help="training steps, 0 for none (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="batch size (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=0.05, help="learning rate (default: %(default)s)")
    parser.add_argument("--draw", action="store_true", help="draw the saved results")
    parser.add_argument(
        "--out", type=pathlib.Path, default="runs/isometry", help="folder of the results (default: %(default)s)"
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    data = load(options)

    moments = {"start": "at the start"} | ({"after": f"after {options.steps} steps"} if options.steps else {})
    panels = [(kind, moment) for kind in options.kinds for moment in moments]
    # Two panels in a row fit the width of a page.
    shape = -(-len(panels) // 2), min(len(panels), 2)
    figure = Figure(figsize=(4.0 * shape[1], 2.5 * shape[0] + 0.5), layout="constrained")
    axes = dict(zip(panels, figure.subplots(*shape, sharey="row", squeeze=False).flat, strict=False))
    columns = ["network", "‖J − I‖ at the start", "below 1", f"after {options.steps} steps", "below 1"]
    columns += ["mean training loss by blocks a stage"]
    table = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for kind in options.kinds:
        curves, kept = {moment: {} for moment in moments}, {}
        for depth in options.depths:
            saved = kept[depth] = compute_result(kind, depth, data, options)
            for moment in moments:
                if moment not in saved:
                    continue
                curves[moment][f"{depth} a stage"] = {name: np.array(v) for name, v in saved[moment].items()}
                means = [np.mean(values) for values in saved[moment].values()]
                loss = f", loss {saved['loss']:.3f}" if moment == "after" else ""
                print(
                    f"{kind:8} {depth:3} blocks a stage, {moment:5}: ||J - I|| {min(means):.2e} to {max(means):.2e}, "
                    f"mean {np.mean(means):.2e}{loss}",
                    flush=True,
                )
            if "loss" in saved and saved["loss"] is None:
                print(f"{kind:8} {depth:3} blocks a stage diverged", flush=True)
        table.append(make_table_row(kind, kept))
        for moment, title in moments.items():
            place = axes[kind, moment]
            plot_distances(place, curves[moment])
            place.set_title(f"{TITLES[kind]}, {title}", fontsize=9)
            place.set_xscale("log")
            diverged = [
                str(depth) for depth, saved in kept.items() if moment == "after" and saved.get("loss", 0) is None
            ]
            if diverged:
                place.text(
                    0.03, 0.04, f"diverged: {', '.join(diverged)} a stage", transform=place.transAxes, fontsize=7
                )
    for place in figure.axes:
        place.label_outer()
        if place.get_legend() is not None:
            place.get_legend().remove()
    handles, labels = max((place.get_legend_handles_labels() for place in figure.axes), key=lambda pair: len(pair[1]))
    figure.legend(handles, labels, loc="outside lower center", ncols=6, fontsize=8)
    figure.savefig(options.out / "isometry-blocks.png", dpi=150)
    (options.out / "results.md").write_text("\n".join(table) + "\n")
    print(f"figure and table: {options.out / 'isometry-blocks.png'}, {options.out / 'results.md'}")


if __name__ == "__main__":
    main()
