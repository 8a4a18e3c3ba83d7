"""Memorize a whole training set in closed form, by Theorem 3.2 of "Identity Matters in Deep Learning"."""

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainers.cli.arguments import Parser, UsageError
from trainers.cli.settings import add_options, parse, with_defaults
from trainers.cli.startup import import_tensorflow, run_program
from trainers.experiments.opening import open_run, settings_to_save
from trainers.expressivity.settings import Settings
from trainers.run.folder import Run

if TYPE_CHECKING:
    from trainers.expressivity.sample import Sample

EXAMPLES = """
The program builds the network, saves and reloads it, checks every row, and measures the growth of parameters, margin,
time and memory. Outputs in --out: model.keras, result.json, scaling.csv, scaling.png.

examples:
  python -m trainers.expressivity --dataset shapes --labels random --train-images 2000
  python -m trainers.expressivity --dataset cifar10 --labels random --width 32        all 50,000 images
  python -m trainers.expressivity --dataset cifar10 --compare runs/cifar10            with a trained network
  python -m trainers.expressivity --dataset random --rows 10000 --dim 32 --classes 10 --width 8

exit codes: 0 success; 1 failure while running; 2 bad input; 130 stopped by Ctrl-C
"""


def parser() -> Parser:
    """Return the argument parser of this program."""
    parser = Parser(prog="python -m trainers.expressivity", description=__doc__, epilog=EXAMPLES)
    add_options(parser, Settings)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    typed = parse(parser(), argv)
    settings = with_defaults(Settings, typed)
    _check_together(typed, settings)
    saved = settings_to_save(settings, "compare")
    from trainers.experiments.results import output_names
    from trainers.expressivity.scaling import EXPERIMENT

    out = typed.get("out", f"runs/memorize-{settings.data.dataset}-{settings.data.labels}")
    with open_run(out, saved, settings.run.overwrite) as run:
        if run is not None:
            run.check_outputs(output_names([EXPERIMENT], settings.run.format))
            _memorize(run, saved, settings)
    return 0


def _memorize(run: Run, saved: dict[str, Any], settings: Settings) -> None:
    trained = None if settings.run.compare is None else _read_run(settings.run.compare, settings.data.dataset)
    sample = _load(settings)
    print(f"{len(sample.x):,} rows of {sample.x.shape[1]:,} numbers ({sample.origin})", file=sys.stderr)
    import_tensorflow()
    run.start(saved, {"origin": sample.origin, "digest": sample.digest})
    result = _measure(run, settings, sample)
    if trained is not None:
        result["trained"] = trained
    run.finish(result)
    _print(run, result)


def _check_together(typed: Mapping[str, Any], settings: Settings) -> None:
    """Raise UsageError for incompatible options."""
    random = settings.data.dataset == "random"
    wrong = {"labels", "train_images", "data_dir", "compare"} if random else {"rows", "dim", "classes"}
    for name in sorted(wrong & set(typed)):
        if name == "labels" and settings.data.labels == "random":
            continue
        option = "--" + name.replace("_", "-")
        raise UsageError(
            f"{option} cannot be combined with --dataset {settings.data.dataset}. "
            + ("Random points have random labels and the options --rows, --dim and --classes. " if random else "")
            + f"Remove {option}."
        )


def _load(settings: Settings) -> "Sample":
    from idmatters_tf.data.images import DataError
    from trainers.expressivity.sample import load_sample

    try:
        return load_sample(settings)
    except MemoryError as error:
        raise UsageError(f"--rows {settings.data.rows}: {error} Use fewer rows or a smaller --dim.") from error
    except DataError as error:
        raise UsageError(f"{error} (option --data-dir; built-in images: --dataset shapes)") from error


def _read_run(path: str, dataset: str) -> dict[str, Any]:
    """Return the test accuracy and the size of a finished run of `trainers.cifar`."""
    run = Run(path)
    config, result = run.config(), run.result()
    if result is None or not {"last_error", "parameters"} <= set(result):
        raise UsageError(f"--compare {path} is not a finished run of trainers.cifar. Finish it, or remove --compare.")
    result = run.result(("last_error", "parameters")) or {}
    if config["settings"].get("dataset") != dataset:
        raise UsageError(
            f"--compare {path} was trained on {config['settings'].get('dataset')}, not on {dataset}. Use another run."
        )
    return {"run": str(path), "accuracy": 1 - result["last_error"], "parameters": result["parameters"]}


def _measure(run: Run, settings: Settings, sample: "Sample") -> dict[str, Any]:
    """Build, save, check and test the memorizer, and run the experiments. Return the numbers of the memorizer."""
    from trainers.experiments.progress import stage_bars
    from trainers.experiments.results import run_experiment
    from trainers.expressivity.memorizing import memorize_and_verify
    from trainers.expressivity.scaling import EXPERIMENT

    with stage_bars(unit="rows") as progress:
        result = memorize_and_verify(sample, settings.network, run.path / "model.keras", progress)
    run_experiment(EXPERIMENT, sample, settings, run.path)
    return result


def _print(run: Run, result: Mapping[str, Any]) -> None:
    seconds = ", ".join(f"{stage} {value:.1f}" for stage, value in result["seconds"].items())
    loaded = result["loaded"]
    lines = {
        "network": _network(result),
        "loaded model": f"{100 * loaded['accuracy']:.2f} % of {loaded['rows']:,} rows, largest error "
        f"{loaded['largest_error']:.1e} ({result['dtype']})",
    }
    if "float32" in result:
        single = result["float32"]
        lines["in float32"] = (
            f"{100 * single['correct'] / single['rows']:.2f} %, largest error {single['largest_error']:.1e}"
        )
    lines["seconds"] = f"{result['total_seconds']:.1f} ({seconds})"
    if "test" in result:
        test = result["test"]
        lines["test accuracy"] = (
            f"memorizer {100 * test['accuracy']:.2f} %, label of the nearest training row "
            f"{100 * test['nearest_neighbour']:.2f} % (first {test['nearest_neighbour_rows']:,} tests), most frequent "
            f"class {100 * test['most_frequent_class']:.2f} %"
        )
    if "trained" in result:
        trained = result["trained"]
        lines["trained network"] = (
            f"{100 * trained['accuracy']:.2f} % with {trained['parameters']:,} parameters ({trained['run']})"
        )
    lines["files"] = f"{run.path}/: model.keras, result.json, tables and figures"
    for name, text in lines.items():
        print(f"{name + ':':18}{text}")


def _network(result: Mapping[str, Any]) -> str:
    return (
        f"{result['blocks']:,} blocks of width {result['width']}, {result['parameters']:,} parameters = "
        f"{result['constant']:.2f} (n ln n + r^2); relative margin: smallest {result['smallest_margin']:.1e}, "
        f"median {result['median_margin']:.1e}"
    )


if __name__ == "__main__":
    run_program(main)
