"""Memorises a whole training set in closed form: Theorem 3.2 of "Identity Matters in Deep Learning" made executable."""

import dataclasses
import sys
import time

from trainers.cli.arguments import Parser, RunError, UsageError, whole_number
from trainers.cli.startup import import_tensorflow, run_program
from trainers.run.files import replacing
from trainers.run.folder import Run
from trainers.run.progress import Progress

DATASETS = ("cifar10", "cifar100", "mnist", "shapes", "random")
# One nearest-neighbour search in pixel space costs n * tests * d operations; this many show where the accuracy lies.
NEIGHBOUR_TESTS = 1000

EXAMPLES = """
Builds the network, saves it, loads it again, runs every row through it, and draws how parameters, margin, time and
memory grow. In --out: model.keras, result.json, scaling.csv, scaling.png.

examples:
  python -m trainers.expressivity --dataset shapes --labels random --train-images 2000
  python -m trainers.expressivity --dataset cifar10 --labels random --width 32        all 50,000 pictures
  python -m trainers.expressivity --dataset cifar10 --compare runs/cifar10            beside a trained network
  python -m trainers.expressivity --dataset random --rows 10000 --dim 32 --classes 10 --width 8

exit codes: 0 done; 1 failed while running; 2 bad input
"""


def parser():
    """The command line of this program."""
    parser = Parser(prog="python -m trainers.expressivity", description=__doc__, epilog=EXAMPLES)
    data = parser.add_argument_group("data")
    data.add_argument(
        "--dataset", choices=DATASETS, default="shapes", help="shapes is built in, random is normal noise"
    )
    data.add_argument("--labels", choices=("true", "random"), default="random", help="what to memorise")
    data.add_argument("--data-dir", metavar="DIR", help="folder with the data's files, as for the training programs")
    data.add_argument("--no-download", dest="download", action="store_false", help="never download missing data")
    data.add_argument("--train-images", type=whole_number(1), metavar="N", help="only the first N (default: all)")
    data.add_argument("--rows", type=whole_number(2), default=10_000, metavar="N", help="n of --dataset random")
    data.add_argument("--dim", type=whole_number(1), default=64, metavar="N", help="d of --dataset random")
    data.add_argument("--classes", type=whole_number(1), default=10, metavar="N", help="r of --dataset random")
    network = parser.add_argument_group("network")
    network.add_argument("--width", type=whole_number(1), default=32, metavar="K", help="k, of the residual blocks")
    network.add_argument(
        "--order",
        choices=("norm", "ridge", "paper"),
        default="norm",
        help="norm works for every sample; ridge has larger margins on clusters; paper has one threshold for all units "
        "(on rows divided by their norms) and mostly fails, saying by how much",
    )
    network.add_argument("--dtype", choices=("float64", "float32"), default="float64", help="of the network")
    network.add_argument("--seed", type=whole_number(0, 2**31 - 1), default=0, metavar="N", help="of everything random")
    run = parser.add_argument_group("run")
    run.add_argument("--compare", metavar="RUN", help="a finished run of trainers.cifar, for its test error")
    run.add_argument("--out", metavar="DIR", help="folder of the results (default: runs/memorize-DATASET-LABELS)")
    run.add_argument("--debug", action="store_true", help="show tracebacks")
    return parser


def main(argv=None):
    """Runs the program; returns its exit code."""
    explicit, defaults = parser().parse(argv)
    settings = {**defaults, **explicit}
    _check_together(explicit, settings)
    del settings["debug"]
    out, compare = settings.pop("out"), settings.pop("compare")
    run = Run(out or f"runs/memorize-{settings['dataset']}-{settings['labels']}")
    run.check_usable()
    if run.exists():
        run.check_same(settings)
        if run.result() is not None:
            print(f"{run.path} is finished. Give another --out for a new run.")
            return 0
    trained = None if compare is None else _trained(compare, settings["dataset"])
    sample = _sample(settings)
    print(f"{len(sample.x):,} rows of {sample.x.shape[1]:,} numbers ({sample.origin})", file=sys.stderr)
    import_tensorflow()
    run.start(settings, {"origin": sample.origin, "digest": sample.digest})
    result = _memorize(run, settings, sample)
    if sample.test_x is not None:
        result["test"] = _test(run, sample)
        if trained is not None:
            result["trained"] = trained
    _draw(run, settings, sample)
    run.finish(result)
    _print(run, result)
    return 0


def _check_together(explicit, settings):
    """Raises UsageError for options that do not go together."""
    random = settings["dataset"] == "random"
    wrong = {"labels", "train_images", "data_dir", "compare"} if random else {"rows", "dim", "classes"}
    for name in sorted(wrong & set(explicit)):
        if name == "labels" and settings["labels"] == "random":
            continue
        option = "--" + name.replace("_", "-")
        raise UsageError(
            f"{option} does not go with --dataset {settings['dataset']}: "
            + ("random points have random labels, and --rows, --dim and --classes. " if random else "")
            + f"Leave {option} out."
        )


@dataclasses.dataclass
class _Sample:
    """Rows and labels to memorise, and pictures with true labels to test on (None for random points)."""

    x: object
    labels: object
    classes: int
    origin: str
    digest: str
    test_x: object = None
    test_labels: object = None


def _sample(settings):
    import numpy as np

    rng = np.random.default_rng(settings["seed"])
    if settings["dataset"] == "random":
        shape = settings["rows"], settings["dim"]
        x, labels = rng.standard_normal(shape, np.float32), rng.integers(0, settings["classes"], settings["rows"])
        return _Sample(_unit(x, settings), labels, settings["classes"], "standard normal", f"seed {settings['seed']}")
    data = _load(settings)
    data = data.first(settings["train_images"], None)
    labels = data.train_labels
    if settings["labels"] == "random":
        labels = rng.integers(0, data.classes, len(labels))
    x, test_x = (_unit(images.reshape(len(images), -1), settings) for images in (data.train_images, data.test_images))
    return _Sample(x, labels, data.classes, data.origin, data.digest(), test_x, data.test_labels)


def _unit(x, settings):
    """For the paper's order the rows divided by their norms, as the paper assumes them."""
    import numpy as np

    if settings["order"] != "paper":
        return x
    x = x.astype(np.float64)
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), np.finfo(float).tiny)


def _load(settings):
    from idmatters_tf.data import cifar, mnist, shapes

    name = settings["dataset"]
    if name == "shapes":
        return shapes.load()
    if name == "mnist":
        return mnist.load(settings["data_dir"], settings["download"])
    return cifar.load(name, settings["data_dir"], settings["download"])


def _trained(path, dataset):
    """The test accuracy of a finished run of `trainers.cifar`."""
    run = Run(path)
    config, result = run.config(), run.result()
    if result is None or "last_error" not in result:
        raise UsageError(
            f"--compare {path} is not a finished run of trainers.cifar. Finish it, or leave --compare out."
        )
    if config["settings"].get("dataset") != dataset:
        raise UsageError(
            f"--compare {path} was trained on {config['settings'].get('dataset')}, not on {dataset}. Name another run."
        )
    return {"run": str(path), "accuracy": 1 - result["last_error"], "parameters": result["parameters"]}


class _Bars:
    """A progress bar for each stage, for the callback of the library."""

    def __init__(self):
        self._bar = None

    def __call__(self, stage, done, total):
        if self._bar is None or self._bar.title != stage:
            self.close()
            self._bar = Progress(total, stage, unit="rows")
        self._bar.advance(done - self._bar.done)
        self._bar.show("")

    def close(self):
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _memorize(run, settings, sample):
    """Builds, saves, loads again, verifies. Returns the numbers."""
    import keras

    from idmatters_tf.expressivity import memorize, verify

    options = {name: settings[name] for name in ("width", "order", "seed", "dtype")}
    bars, start = _Bars(), time.perf_counter()
    try:
        model = memorize(sample.x, sample.labels, sample.classes, check=("float32",), progress=bars, **options)
        saving = time.perf_counter()
        path = run.path / "model.keras"
        with replacing(path) as beside:
            model.save(beside)
        loaded = keras.saving.load_model(path)
        verifying = time.perf_counter()
        checked = verify(
            loaded, sample.x, sample.labels, progress=lambda *done: bars("checking the loaded model", *done)
        )
    except ValueError as error:
        raise RunError(str(error)) from error
    finally:
        bars.close()
    end = time.perf_counter()
    if checked.correct < checked.rows:
        raise RunError(
            f"the loaded model is wrong on {checked.rows - checked.correct} rows, among them {checked.wrong_rows[0]}. "
            f"Use --dtype float64 or a larger --width."
        )
    report = dataclasses.asdict(model.report)
    float32 = report.pop("verified")["float32"]
    return {
        **report,
        "loaded": {**dataclasses.asdict(checked), "accuracy": checked.accuracy},
        "float32": float32,
        "seconds": {"build": report["build_seconds"], "save and load": verifying - saving, "verify": end - verifying},
        "total_seconds": end - start,
    }


def _test(run, sample):
    """Test accuracy of the memoriser, of the nearest training row's label, and of the most frequent class."""
    import keras
    import numpy as np

    from idmatters_tf.expressivity import verify

    model = keras.saving.load_model(run.path / "model.keras")
    accuracy = verify(model, sample.test_x, sample.test_labels).accuracy
    tests = sample.test_x[:NEIGHBOUR_TESTS].astype(np.float32)
    nearest = np.zeros(len(tests), int)
    smallest = np.full(len(tests), np.inf, np.float32)
    for start in range(0, len(sample.x), 5000):
        rows = sample.x[start : start + 5000].astype(np.float32)
        squared = np.einsum("nd,nd->n", rows, rows) - 2 * tests @ rows.T
        found = squared.argmin(axis=1)
        distance = np.take_along_axis(squared, found[:, None], axis=1)[:, 0]
        nearest = np.where(distance < smallest, start + found, nearest)
        smallest = np.minimum(smallest, distance)
    neighbour = float((sample.labels[nearest] == sample.test_labels[: len(tests)]).mean())
    most_frequent = float(np.bincount(sample.test_labels).max() / len(sample.test_labels))
    return {
        "rows": len(sample.test_x),
        "accuracy": accuracy,
        "nearest_neighbour": neighbour,
        "nearest_neighbour_rows": len(tests),
        "most_frequent_class": most_frequent,
    }


def _draw(run, settings, sample):
    from trainers.expressivity.scaling import draw, measure, plans, write

    chosen, rows = plans(sample.x, settings), []
    with Progress(len(chosen), "scaling", unit="networks") as progress:
        for plan in chosen:
            rows.append(measure(plan, sample.labels, sample.classes, settings))
            progress.advance()
            progress.show()
    write(rows, run.path / "scaling.csv")
    draw(rows, run.path / "scaling.png", settings)


def _print(run, result):
    seconds = ", ".join(f"{stage} {value:.1f}" for stage, value in result["seconds"].items())
    loaded, single = result["loaded"], result["float32"]
    lines = {
        "network": f"{result['blocks']:,} blocks of width {result['width']}, {result['parameters']:,} parameters = "
        f"{result['constant']:.2f} (n ln n + r^2)",
        "loaded model": f"{100 * loaded['accuracy']:.2f} % of {loaded['rows']:,} rows, largest error "
        f"{loaded['largest_error']:.1e} ({result['dtype']})",
        "in float32": f"{100 * single['correct'] / single['rows']:.2f} %, largest error {single['largest_error']:.1e}",
        "margin": f"smallest {result['smallest_margin']:.1e}, median {result['median_margin']:.1e} (relative)",
        "seconds": f"{result['total_seconds']:.1f} ({seconds})",
    }
    if "test" in result:
        test = result["test"]
        lines["test accuracy"] = (
            f"memoriser {100 * test['accuracy']:.2f} %, label of the nearest training row "
            f"{100 * test['nearest_neighbour']:.2f} % (first {test['nearest_neighbour_rows']:,} tests), most frequent "
            f"class {100 * test['most_frequent_class']:.2f} %"
        )
    if "trained" in result:
        trained = result["trained"]
        lines["trained network"] = (
            f"{100 * trained['accuracy']:.2f} % with {trained['parameters']:,} parameters ({trained['run']})"
        )
    lines["files"] = f"{run.path}/: model.keras, result.json, scaling.csv, scaling.png"
    for name, text in lines.items():
        print(f"{name + ':':18}{text}")


if __name__ == "__main__":
    run_program(main)
