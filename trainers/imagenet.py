"""Trains the all-convolutional network of section 4.2 of "Identity Matters in Deep Learning" (Hardt & Ma) on ImageNet,
or on any folder of labelled pictures.
"""

import dataclasses
import functools
import math

from trainers.cli.arguments import Parser, UsageError, number, whole_number
from trainers.cli.startup import import_tensorflow, run_program, say
from trainers.training import options
from trainers.training.program import Program

PRESETS = {
    # Section 4.2: these are the defaults of the options themselves.
    "paper": {},
    # He et al.'s widths, normalisation and head, and the usual crops: to compare with.
    "resnet34": {"widths": [64, 128, 256, 512], "norm": "batch", "head": "trained", "augment": "standard"},
}

EXAMPLES = """
examples:
  python -m trainers.imagenet --data-dir ILSVRC2012            the paper's network and recipe, on this machine's GPUs
  python -m trainers.imagenet --data-dir pictures --val train --size 64 --widths 16 32 64 128 --blocks 1 1 1 1 \\
      --batch-size 16 --steps 100 --out runs/trial             a small network on a folder of your own pictures
  python -m trainers.launch --workers 2 -- imagenet ...        the same on two processes of this machine
  python -m trainers.imagenet --resume --out runs/trial        go on after a stop (so does the same command again)
  python -m trainers.plan --help                               how long it takes on which machines

--data-dir holds train/CLASS/*.JPEG and val/CLASS/*.JPEG (or a flat val/ with a file of classes), or imagenet2012 as
prepared by TensorFlow Datasets, or the two ILSVRC2012 tar files. On several machines: docs/scaling.md.

exit codes: 0 done; 1 failed while running; 2 bad input; 130, 143 stopped by Ctrl-C, SIGTERM after saving
"""


def parser():
    """The command line of this program; the defaults shown are the paper's recipe."""
    parser = Parser(prog="python -m trainers.imagenet", description=__doc__, epilog=EXAMPLES)

    data = parser.add_argument_group("data")
    data.add_argument(
        "--data-dir", metavar="DIR", help="where the pictures are (default: $TFDS_DATA_DIR or ~/tensorflow_datasets)"
    )
    data.add_argument("--val", default="val", metavar="DIR", help="folder in --data-dir with the validation pictures")
    data.add_argument(
        "--val-labels", metavar="FILE", help="lines 'NAME CLASS' or 'CLASS' for validation pictures without folders"
    )
    data.add_argument("--classes", type=whole_number(2), metavar="N", help="of the network (default: the folders)")
    data.add_argument("--size", type=whole_number(16, 4096), default=224, metavar="N", help="rows and columns")
    data.add_argument(
        "--augment",
        choices=("paper", "standard", "none"),
        default="paper",
        help="resize and flip; or a random part, flip, and the central part in tests; or resize alone",
    )
    data.add_argument(
        "--skip-broken",
        action="store_true",
        help="decode every picture once at the start, and leave out those that cannot be; they are counted",
    )

    network = parser.add_argument_group("network")
    network.add_argument(
        "--blocks", type=whole_number(1), nargs="+", default=[3, 4, 6, 3], metavar="N", help="of each stage"
    )
    network.add_argument(
        "--widths",
        type=whole_number(1),
        nargs="+",
        default=[80, 168, 328, 672],
        metavar="C",
        help="channels of the stages",
    )
    network.add_argument("--stem", type=whole_number(1), default=64, metavar="C", help="channels of the first layer")
    options.add_ablations(network)

    recipe = parser.add_argument_group("recipe")
    recipe.add_argument("--preset", choices=tuple(PRESETS), default="paper", help="defaults for everything else")
    recipe.add_argument("--steps", type=whole_number(1), default=700_000, metavar="N", help="updates in all")
    recipe.add_argument(
        "--batch-size",
        type=whole_number(1),
        default=256,
        metavar="N",
        help="of the global batch; with parameter servers, of each worker's update",
    )
    recipe.add_argument("--learning-rate", type=number(0, False), default=0.1, metavar="X", help="at the start")
    recipe.add_argument(
        "--decay-epochs", type=number(0, False), default=2.0, metavar="X", help="epochs between two decays of the rate"
    )
    recipe.add_argument(
        "--decay-factor",
        type=number(0, False, 1),
        default=0.94,
        metavar="X",
        help="by which the rate is multiplied; 1 keeps it",
    )
    options.add_optimizer(recipe)

    options.add_devices(parser)
    options.add_run(parser)
    parser.set_defaults(evaluate_every=5000, checkpoint_every=1000)
    return parser


class ImageNet(Program):
    """Training on folders of pictures."""

    name = "imagenet"
    presets = PRESETS

    def parser(self):
        return parser()

    def default_out(self, settings):
        return "runs/imagenet"

    def check_together(self, settings):
        if len(settings["blocks"]) != len(settings["widths"]):
            raise UsageError(
                f"--blocks and --widths must name as many stages. Received: --blocks "
                f"{' '.join(map(str, settings['blocks']))} --widths {' '.join(map(str, settings['widths']))}"
            )
        options.check_widths(settings)

    def load(self, settings):
        from idmatters_tf.data import imagenet

        location = imagenet.locate(settings["data_dir"])
        if location is not None and location.kind != "tree":
            import_tensorflow()
        data = imagenet.load(settings["data_dir"], settings["val"], settings["val_labels"], settings["size"])
        if settings["skip_broken"]:
            data = _without_broken(data)
        if settings["classes"] is not None and settings["classes"] < data.classes:
            raise UsageError(
                f"--classes must be at least the {data.classes} of the data. Received: {settings['classes']}"
            )
        return data if settings["classes"] is None else dataclasses.replace(data, outputs=settings["classes"])

    def counts(self, data):
        skipped = f", {data.skipped:,} broken ones left out" if data.skipped else ""
        return f"{len(data.train):,} + {len(data.test):,} pictures of {len(data.class_names):,} classes{skipped}"

    def network(self, settings, image_shape, classes, norm):
        from models.imagenet import identity_resnet34

        same = (
            "blocks",
            "widths",
            "stem",
            "bias",
            "shortcut",
            "head",
            "initializer",
            "branch_scale",
            "weight_decay",
            "seed",
        )
        return identity_resnet34(image_shape, classes, norm=norm, **{name: settings[name] for name in same})

    def recipe(self, settings, data):
        from trainers.training.loop import Recipe

        values = {name: settings[name] for name in (f.name for f in dataclasses.fields(Recipe)) if name in settings}
        drops = decay_steps(settings["steps"], len(data.train), settings["batch_size"], settings["decay_epochs"])
        return Recipe(
            make_optimizer=options.make_optimizer(settings),
            drop_steps=drops,
            drop_factor=1 / settings["decay_factor"],
            **values,
        )

    def train_batches(self, settings, data):
        from idmatters_tf.data.streams import StreamTrainBatches

        return StreamTrainBatches(
            data.train, settings["batch_size"], settings["seed"], settings["augment"], settings["size"]
        )

    def test_batches(self, settings, data):
        from idmatters_tf.data.streams import StreamEvaluationBatches

        return StreamEvaluationBatches(data.test, settings["batch_size"], settings["augment"], settings["size"])

    def finish(self, settings):
        from idmatters_tf.data.decoding import preprocess_on_device

        return functools.partial(preprocess_on_device, size=settings["size"])

    def title(self, settings, parameters):
        return (
            f"blocks {'/'.join(map(str, settings['blocks']))} of widths {'/'.join(map(str, settings['widths']))}, "
            f"{settings['size']} x {settings['size']} pixels, {parameters:,} parameters, seed {settings['seed']}"
        )

    def read_failure(self, settings, data, error, step):
        import tensorflow as tf

        errors = (tf.errors.InvalidArgumentError, tf.errors.NotFoundError, tf.errors.PermissionDeniedError)
        if not isinstance(error, (*errors, tf.errors.DataLossError)):
            return ""
        from idmatters_tf.data.streams import broken

        # What the pipeline has read ahead of the step that failed.
        first, ahead = step * settings["batch_size"], 8 * settings["batch_size"]
        positions = tf.range(first, first + ahead, dtype=tf.int64)
        batches = self.train_batches(settings, data)
        for pictures, places in (
            (data.train, batches.indices(positions).numpy().tolist()),
            (data.test, None),
        ):
            bad = broken(pictures, places)
            if bad:
                return (
                    f"{pictures.where(bad[0])} cannot be read as a picture. Replace it, or leave out all broken ones "
                    f"with --skip-broken and another --out."
                )
        return ""


def decay_steps(steps, pictures, batch_size, epochs):
    """The steps at which the rate decays: the first ones that have seen each multiple of `epochs` epochs."""
    every = epochs * pictures / batch_size
    return tuple(math.ceil(number * every - 1e-9) for number in range(1, math.ceil(steps / every)))


def _without_broken(data):
    from trainers.run.progress import Progress

    import_tensorflow()
    from idmatters_tf.data.streams import broken

    def find(pictures):
        with Progress(len(pictures) // 100, "looking for broken images", unit="hundreds", leave=False) as progress:
            bad = broken(pictures, advance=progress.advance)
        for place in bad[:10]:
            say(f"left out: {pictures.where(place)}")
        return bad

    return data.without_broken(find)


PROGRAM = ImageNet()
main = PROGRAM.main


if __name__ == "__main__":
    run_program(main)
