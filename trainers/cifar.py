"""Trains the all-convolutional residual network of "Identity Matters in Deep Learning" (Hardt & Ma, Table 1)."""

import dataclasses
import math
import sys

from trainers import curvature, options
from trainers.arguments import Parser, RunError, UsageError, number, whole_number
from trainers.runs import Run
from trainers.startup import import_tensorflow, run_program

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
        choices=("paper", "standard", "none"),
        default="paper",
        help="random crop after zero padding by 2 (paper's base code) or 4 (standard) pixels a side, and flip",
    )

    network = parser.add_argument_group("network")
    network.add_argument("--blocks", type=whole_number(1), default=9, metavar="N", help="residual blocks per stage")
    network.add_argument(
        "--widths", type=whole_number(1), nargs="+", default=[64, 128, 256], metavar="C", help="channels of the stages"
    )
    network.add_argument("--stem", type=whole_number(1), default=16, metavar="C", help="channels of the first layer")
    network.add_argument("--bias", action="store_true", help="biases in the 3x3 convolutions")
    network.add_argument(
        "--shortcut",
        choices=("pad", "projection", "none"),
        default="pad",
        help="pooled and zero-padded, 1x1 convolutions, or none (the standard parameterisation)",
    )
    network.add_argument("--head", choices=("random", "trained"), default="random", help="frozen random or trained")
    network.add_argument("--norm", choices=("none", "batch"), default="none", help="normalisation after convolutions")
    network.add_argument(
        "--initializer",
        choices=("identity", "standard"),
        default="identity",
        help="of residual convolutions: N(0, 1/(k^2 c)^2) or N(0, 1/(k sqrt c)^2)",
    )

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
    recipe.add_argument(
        "--momentum", type=number(0, high=1, high_included=False), default=0.9, metavar="X", help="momentum"
    )
    recipe.add_argument(
        "--momentum-convention",
        choices=("tensorflow1", "keras"),
        default="tensorflow1",
        help="the rate after the velocity (w -= lr v, the paper's optimizer) or inside it (Keras' SGD); they differ "
        "only after a drop of the rate",
    )
    recipe.add_argument(
        "--weight-decay",
        type=number(0),
        default=1e-4,
        metavar="X",
        help="X * sum(w^2) / 2 over the kernels, as in the paper's code",
    )
    recipe.add_argument("--clip-norm", type=number(0, False), metavar="X", help="bound on the gradient's global norm")
    recipe.add_argument(
        "--precision",
        choices=("float32", "bfloat16"),
        default="float32",
        help="of the convolutions; weights stay float32",
    )
    recipe.add_argument("--seed", type=whole_number(0, 2**31 - 1), default=0, metavar="N", help="of everything random")

    curvature.add_options(parser)
    options.add_devices(parser)
    options.add_run(parser)
    return parser


def main(argv=None):
    """Runs the program; returns its exit code."""
    explicit, defaults = parser().parse(argv)
    modes = [name for name in ("evaluate", "export_only", "resume") if explicit.get(name)]
    if len(modes) > 1:
        raise UsageError("--evaluate, --export-only and --resume exclude one another: give one of them.")
    if explicit.get("evaluate") or explicit.get("export_only"):
        run = Run(explicit.pop("evaluate", None) or explicit.pop("export_only"))
        settings = _settings_of(run, explicit)
        return _evaluate(run, settings) if modes == ["evaluate"] else _export(run, settings)
    run, settings = _resolve(explicit, defaults)
    return _train(run, settings)


def _resolve(explicit, defaults):
    """The run's folder and its settings: from a saved run, or the defaults, the preset and what was typed, in turn."""
    resume = explicit.pop("resume", False)
    modes = ("resume", "evaluate", "export_only", "debug")
    preset = PRESETS[explicit.get("preset", defaults["preset"])]
    settings = {name: value for name, value in {**defaults, **preset, **explicit}.items() if name not in modes}
    out = settings.pop("out")
    if out is None:
        out = "runs/quick" if settings["preset"] == "quick" else f"runs/{settings['dataset']}"
    run = Run(out)
    if resume:
        settings = _settings_of(run, explicit)
    elif run.exists():
        run.check_same(settings)
    run.check_usable()
    _check_together(settings)
    return run, settings


def _check_together(settings):
    """Raises UsageError for options that are wrong together."""
    if settings["drop_steps"] != sorted(settings["drop_steps"]):
        raise UsageError(f"--drop-steps must be in ascending order. Received: {settings['drop_steps']}")
    channels = [settings["stem"], *settings["widths"]]
    if settings["shortcut"] == "pad" and channels != sorted(channels):
        raise UsageError(
            f"--stem and --widths must not decrease with --shortcut pad, which cannot drop channels. Received: "
            f"--stem {channels[0]} --widths {' '.join(map(str, channels[1:]))}. Use --shortcut projection."
        )


def _settings_of(run, explicit):
    """A saved run's settings, with the explicit ones that may differ; refuses others that do."""
    saved = run.config()["settings"]
    explicit = {name: value for name, value in explicit.items() if name not in ("out", "debug", "resume")}
    run.check_same(explicit)
    return {**saved, **explicit}


def _train(run, settings):
    result = run.result() if run.exists() else None
    if result is not None:
        print(f"{run.path} is finished. {_sentence(result)} Give another --out for a new run.")
        return 0
    # Before TensorFlow is imported: what is missing is said at once.
    data = _load_data(settings)
    _say(f"{data.name}: {len(data.train_images):,} + {len(data.test_images):,} pictures ({data.origin})")

    import_tensorflow()
    from idmatters_tf.data.augment import AUGMENTATIONS
    from idmatters_tf.data.batches import TrainBatches
    from trainers.events import Events
    from trainers.loop import Session

    trainer = _trainer(settings, data.image_shape, data.classes)
    described = {"origin": data.origin, "digest": data.digest()}
    run.start(settings, {**described, "image_shape": data.image_shape, "classes": data.classes})
    parameters = sum(math.prod(variable.shape) for variable in trainer.model.trainable_variables)
    _say(f"{parameters:,} trainable parameters on {_devices(trainer)}, {settings['precision']}; results in {run.path}")
    train = TrainBatches(
        data.train_images,
        data.train_labels,
        settings["batch_size"],
        settings["seed"],
        AUGMENTATIONS[settings["augment"]],
    )
    events = Events(run.path / "events")
    session = Session(run, trainer, train, _test_batches(data, settings), events)
    first = session.resume(_say)
    if first:
        _say(f"going on from step {first}")
    else:
        events.settings(settings)
        events.pictures(train.batch(0, stop=min(8, settings["batch_size"]))[0])
    _say("compiling the training step ...")
    session.watches = curvature.watches(settings, trainer, data, run)
    signal = session.work()
    if signal is not None:
        _say(f"stopped by {signal.name}; saved. To go on: python -m trainers.cifar --resume --out {run.path}")
        return 128 + signal
    return _finish(run, settings, trainer, events, parameters)


def _finish(run, settings, trainer, events, parameters):
    """The plot, the exports, the result."""
    from trainers import plots

    records = run.metrics()
    tests = [record for record in records if record["kind"] == "test"]
    best = min(tests, key=lambda record: record["error"])
    result = {
        "steps": settings["steps"],
        "best_error": best["error"],
        "best_step": best["step"],
        "last_error": tests[-1]["error"],
        "last_loss": tests[-1]["loss"],
        "parameters": parameters,
        "seconds": records[-1]["seconds"],
    }
    title = (
        f"{settings['dataset']}, {len(settings['widths'])} x {settings['blocks']} blocks of widths "
        f"{'/'.join(map(str, settings['widths']))}, {parameters:,} parameters, seed {settings['seed']}"
    )
    plots.convergence(records, run.path / "convergence.png", title, settings["drop_steps"])
    _write_exports(run, settings, trainer.model)
    events.settings(settings, result)
    run.finish(result)
    print(_sentence(result))
    print(f"convergence plot:      {run.path / 'convergence.png'}")
    return 0


def _write_exports(run, settings, model):
    from trainers.export import export, how_to_load

    # Rebuilt in float32: what is served should not depend on the precision of training.
    network = build(settings, model.input_shape[1:], model.output_shape[-1], dtype="float32")
    network.set_weights(model.get_weights())
    try:
        print(how_to_load(*export(network, run.path)))
    except OSError as error:
        raise RunError(
            f"the export to {run.path} failed: {error}. Make room, then use --export-only {run.path}"
        ) from error


def _evaluate(run, settings):
    _require_checkpoint(run)
    data = _load_data(settings)
    import_tensorflow()
    trainer = _trainer(settings, data.image_shape, data.classes)
    step = _restore(run, trainer.model)
    measured = trainer.evaluate(_test_batches(data, settings))
    print(
        f"{run.path}, step {step}: test error {100 * measured['error']:.2f} %, test loss {measured['loss']:.4f} "
        f"on {measured['count']:,} pictures"
    )
    return 0


def _export(run, settings):
    _require_checkpoint(run)
    saved = run.config()["data"]
    import_tensorflow()
    model = build(settings, tuple(saved["image_shape"]), saved["classes"], dtype="float32")
    print(f"{run.path}, step {_restore(run, model)}:")
    _write_exports(run, settings, model)
    return 0


def _require_checkpoint(run):
    if not list(run.checkpoints_path.glob("step-*")):
        raise UsageError(f"{run.path} has no checkpoints yet. Train it first: --resume --out {run.path}")


def _restore(run, model):
    from trainers.checkpoints import restore_weights

    step = restore_weights(run.checkpoints_path, model, _say)
    if step is None:
        raise UsageError(f"{run.path} has no intact checkpoint. Train it again with another --out.")
    return step


def _load_data(settings):
    from idmatters_tf.data import cifar, shapes
    from idmatters_tf.data.images import DataError

    try:
        if settings["dataset"] == "shapes":
            sizes = {split: settings[f"{split}_images"] for split in ("train", "test")}
            return shapes.load(**{split: size for split, size in sizes.items() if size is not None})
        location = cifar.locate(settings["dataset"], settings["data_dir"])
        if location is not None and location.kind == "tfds":
            import_tensorflow()
        data = cifar.load(settings["dataset"], settings["data_dir"], settings["download"])
        return data.first(settings["train_images"], settings["test_images"])
    except DataError as error:
        raise UsageError(str(error)) from error


def build(settings, image_shape, classes, dtype=None):
    """The network that the settings describe, under a dtype policy (None: the one in force)."""
    import keras

    from models.cifar import identity_resnet

    previous = keras.config.dtype_policy()
    keras.config.set_dtype_policy(dtype or previous)
    try:
        return identity_resnet(
            image_shape,
            classes,
            norm=None if settings["norm"] == "none" else settings["norm"],
            widths=tuple(settings["widths"]),
            **{
                name: settings[name]
                for name in ("blocks", "stem", "bias", "shortcut", "head", "initializer", "weight_decay", "seed")
            },
        )
    finally:
        keras.config.set_dtype_policy(previous)


def _trainer(settings, image_shape, classes):
    import keras
    import tensorflow as tf

    from idmatters_tf.optimizers import Momentum
    from trainers import strategy as strategies
    from trainers.loop import Recipe, Trainer

    strategy = strategies.make(settings["strategy"], settings["logical_cpus"])
    replicas = strategy.num_replicas_in_sync
    if settings["batch_size"] % replicas:
        raise UsageError(
            f"--batch-size must be a multiple of the {replicas} replicas. Received: {settings['batch_size']}"
        )
    if settings["deterministic"]:
        tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(settings["seed"])
    optimizer = Momentum if settings["momentum_convention"] == "tensorflow1" else keras.optimizers.SGD
    recipe = Recipe(
        make_optimizer=lambda rate: optimizer(rate, momentum=settings["momentum"]),
        drop_steps=tuple(settings["drop_steps"]),
        **{
            field.name: settings[field.name]
            for field in dataclasses.fields(Recipe)
            if field.name not in ("make_optimizer", "drop_steps")
        },
    )
    dtype = "mixed_bfloat16" if settings["precision"] == "bfloat16" else "float32"
    return Trainer(strategy, lambda: build(settings, image_shape, classes, dtype), recipe, settings["batch_size"])


def _test_batches(data, settings):
    from idmatters_tf.data.batches import EvaluationBatches

    return EvaluationBatches(data.test_images, data.test_labels, settings["batch_size"])


def _devices(trainer):
    replicas = trainer.strategy.num_replicas_in_sync
    return "1 device" if replicas == 1 else f"{replicas} replicas"


def _sentence(result):
    return (
        f"test error: best {100 * result['best_error']:.2f} % (step {result['best_step']}), "
        f"last {100 * result['last_error']:.2f} % (step {result['steps']}), after {result['seconds'] / 60:.1f} minutes."
    )


def _say(text):
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    run_program(main)
