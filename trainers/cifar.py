"""Trains the all-convolutional residual network of "Identity Matters in Deep Learning" (Hardt & Ma, Table 1), or one
of those that the paper compares it with.
"""

import dataclasses

from trainers.cli.arguments import Parser, UsageError, number, whole_number
from trainers.cli.startup import import_tensorflow, run_program
from trainers.cluster import description as cluster
from trainers.training import curvature, options
from trainers.training import networks as cifar_models
from trainers.training.program import Program

DATASETS = ("cifar10", "cifar100", "shapes")

PRESETS = {
    # The recipe of the paper's section 4.1: these are the defaults of the options themselves.
    "paper": {},
    # About two minutes on two CPU cores with the built-in data.
    "quick": {
        "dataset": "shapes",
        "blocks": 1,
        "widths": [16, 32, 64],
        "steps": 1000,
        "learning_rate": 0.1,
        "drop_steps": [700, 900],
        "clip_norm": 1.0,
        "evaluate_every": 200,
        "checkpoint_every": 200,
    },
}

EXAMPLES = """
examples:
  python -m trainers.cifar --preset quick                      the built-in data, two minutes on two CPU cores
  python -m trainers.cifar --dataset cifar10                   the paper's network and recipe
  python -m trainers.cifar --dataset cifar10 --blocks 3 --widths 32 64 128 --steps 4000 --out runs/small
  python -m trainers.cifar --model resnet --depth 20 --out runs/resnet20
  python -m trainers.cifar --resume --out runs/small           go on after a stop (so does the same command again)
  python -m trainers.cifar --evaluate runs/small               test error of the newest checkpoint
  python -m trainers.cifar --export-only runs/small            model.keras and SavedModel of the newest checkpoint
  tensorboard --logdir runs                                    watch

exit codes: 0 done; 1 failed while running; 2 bad input; 130, 143 stopped by Ctrl-C, SIGTERM after saving
"""


def parser():
    """The command line of this program; the defaults shown are the paper's recipe."""
    parser = Parser(prog="python -m trainers.cifar", description=__doc__, epilog=EXAMPLES)

    data = parser.add_argument_group("data")
    data.add_argument("--dataset", choices=DATASETS, default="cifar10", help="what to train on; shapes is built in")
    data.add_argument(
        "--data-dir",
        metavar="DIR",
        help="folder with the official binary files or a prepared TensorFlow data set (default: "
        "$TFDS_DATA_DIR or ~/tensorflow_datasets)",
    )
    for split in ("train", "test"):
        data.add_argument(
            f"--{split}-images", type=whole_number(1), metavar="N", help=f"use only N {split} pictures (default: all)"
        )
    data.add_argument("--no-download", dest="download", action="store_false", help="never download missing data")
    data.add_argument(
        "--augment",
        choices=("paper", "standard", "all-cnn", "none"),
        default="paper",
        help="random crop after zero padding by 2 (paper's base code), 4 (standard) or 5 (all-cnn) pixels a side, and "
        "flip",
    )
    data.add_argument(
        "--preprocess",
        choices=("standardize", "channels", "zca"),
        default="standardize",
        help="each picture by itself (paper), each channel over all pictures, or contrast normalisation and whitening",
    )

    network = parser.add_argument_group("network")
    cifar_models.add_options(network)
    network.add_argument("--blocks", type=whole_number(1), default=9, metavar="N", help="residual blocks per stage")
    network.add_argument(
        "--widths", type=whole_number(1), nargs="+", default=[64, 128, 256], metavar="C", help="channels of the stages"
    )
    network.add_argument("--stem", type=whole_number(1), default=16, metavar="C", help="channels of the first layer")
    options.add_ablations(network)

    recipe = parser.add_argument_group("recipe")
    recipe.add_argument("--preset", choices=tuple(PRESETS), default="paper", help="defaults for everything else")
    recipe.add_argument("--steps", type=whole_number(1), default=60_000, metavar="N", help="updates in all")
    recipe.add_argument("--batch-size", type=whole_number(1), default=128, metavar="N", help="of the global batch")
    recipe.add_argument("--learning-rate", type=number(0, False), default=0.05, metavar="X", help="at the start")
    recipe.add_argument(
        "--drop-steps",
        type=whole_number(0),
        nargs="*",
        default=[30_000, 50_000],
        metavar="N",
        help="steps at which the rate drops",
    )
    recipe.add_argument("--drop-factor", type=number(1), default=10.0, metavar="X", help="by which the rate drops")
    recipe.add_argument("--warm-up-steps", type=whole_number(0), default=0, metavar="N", help="first steps with the")
    recipe.add_argument("--warm-up-rate", type=number(0, False), default=0.01, metavar="X", help="rate of warming up")
    options.add_optimizer(recipe)

    curvature.add_options(parser)
    options.add_devices(parser)
    options.add_run(parser)
    return parser


class Cifar(Program):
    """Training on CIFAR or shapes."""

    name = "cifar"
    presets = PRESETS
    later_defaults = cifar_models.LATER_DEFAULTS

    def __init__(self):
        self._layer = self._prepared = None

    def parser(self):
        return parser()

    def default_out(self, settings):
        return "runs/quick" if settings["preset"] == "quick" else super().default_out(settings)

    def check_together(self, settings):
        if settings["drop_steps"] != sorted(settings["drop_steps"]):
            raise UsageError(f"--drop-steps must be in ascending order. Received: {settings['drop_steps']}")
        if settings["curvature_every"] is not None and cluster.in_environment():
            raise UsageError("--curvature-every works on one machine, not in a cluster. Leave it out.")
        if settings["model"] == "identity":
            options.check_widths(settings)

    def combine(self, defaults, preset, explicit):
        kind = cifar_models.KINDS[explicit.get("model", defaults["model"])]
        foreign = set(cifar_models.OWN_OPTIONS) - set(kind.options)
        preset = {name: value for name, value in preset.items() if name not in foreign}
        return cifar_models.resolve({**defaults, **preset, **explicit}, {**preset, **explicit})

    def load(self, settings):
        from idmatters_tf.data import cifar, shapes

        if settings["dataset"] == "shapes":
            sizes = {split: settings[f"{split}_images"] for split in ("train", "test")}
            return shapes.load(**{split: size for split, size in sizes.items() if size is not None})
        location = cifar.locate(settings["dataset"], settings["data_dir"])
        if location is not None and location.kind == "tfds":
            import_tensorflow()
        data = cifar.load(settings["dataset"], settings["data_dir"], settings["download"])
        return data.first(settings["train_images"], settings["test_images"])

    def counts(self, data):
        return f"{len(data.train_images):,} + {len(data.test_images):,} pictures"

    def network(self, settings, image_shape, classes, norm):
        return cifar_models.KINDS[settings["model"]].build(settings, image_shape, classes, norm)

    def recipe(self, settings, data):
        from trainers.training.loop import Recipe

        fields = [field.name for field in dataclasses.fields(Recipe) if field.name in settings]
        values = {name: settings[name] for name in fields} | {"drop_steps": tuple(settings["drop_steps"])}
        return Recipe(make_optimizer=options.make_optimizer(settings), **values)

    def train_batches(self, settings, data):
        from idmatters_tf.data.augment import AUGMENTATIONS
        from idmatters_tf.data.batches import TrainBatches

        images, _ = self._preprocessed(settings, data)
        augmentation = AUGMENTATIONS[settings["augment"]]
        return TrainBatches(images, data.train_labels, settings["batch_size"], settings["seed"], augmentation)

    def test_batches(self, settings, data):
        from idmatters_tf.data.batches import EvaluationBatches

        _, images = self._preprocessed(settings, data)
        return EvaluationBatches(images, data.test_labels, settings["batch_size"])

    def _preprocessed(self, settings, data):
        """Training and test pictures; bytes are standardised later, batch by batch."""
        if settings["preprocess"] == "standardize":
            return data.train_images, data.test_images
        if self._prepared is None:
            from trainers.training.preprocessing import apply

            layer = self._fitted(settings, data)
            self._prepared = [apply(layer, images) for images in (data.train_images, data.test_images)]
        return self._prepared

    def _fitted(self, settings, data):
        from trainers.training.preprocessing import fit

        self._layer = self._layer or fit(settings["preprocess"], data.train_images)
        return self._layer

    def started(self, run, settings, data):
        if settings["preprocess"] != "standardize":
            from trainers.training.preprocessing import save

            save(self._fitted(settings, data), data.image_shape, run.path)

    def watches(self, settings, trainer, data, run):
        count = settings["curvature_examples"]
        images, _ = self._preprocessed(settings, data)
        return curvature.watches(settings, trainer, images[:count], data.train_labels[:count], run)

    def preprocessing(self, run):
        from trainers.training import preprocessing

        return preprocessing.load(run.path)

    def title(self, settings, parameters):
        network = cifar_models.title(settings)
        return f"{settings['dataset']}, {network}, {parameters:,} parameters, seed {settings['seed']}"


PROGRAM = Cifar()
build = PROGRAM.build
main = PROGRAM.main


if __name__ == "__main__":
    run_program(main)
