"""Tests of the help texts, and of bad input to the programs: one error message, exit code 2, no lost files."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

from idmatters_tf.models.layout import CIFAR, IMAGENET
from tests.conftest import ROOT
from tests.support.programs import run_here, run_in_process
from tests.trainers.conftest import TINY
from trainers import cifar, imagenet
from trainers.cifar import main
from trainers.cli.arguments import UsageError
from trainers.cli.settings import as_dict, options, with_defaults
from trainers.training.settings import TrainingSettings


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--drop-steps", "50", "30"], "--drop-steps must be in ascending order"),
        (["--widths", "64,32"], "--stem and --widths must not decrease with shortcut 'pad'"),
        (["--learning_rate", "3"], "unrecognized arguments: --learning_rate 3. Did you mean --learning-rate?"),
        (["nesterov"], "unrecognized arguments: nesterov. Did you mean --optimizer nesterov?"),
        (["--epochs=3"], "unrecognized arguments: --epochs=3. Did you mean --steps?"),
        (["--evaluate", "a", "--export-only", "b"], "are mutually exclusive"),
        (["--resume", "--out", "nowhere"], "nowhere is not a run: there is no config.json in it"),
        (["--data-dir", "/nowhere"], "`data_dir`. (option --data-dir or --download)"),
        (
            ["--dataset", "shapes", "--train-images", "10", "--batch-size", "100000"],
            "--batch-size must be at most the 10 training images. Received: --batch-size 100000. Pass a smaller",
        ),
        (["--model", "all-cnn", "--depth", 20], "--depth is not an option of --model all-cnn, but of"),
        (["--train-sizes", "16:9", "20"], "--train-sizes must be pairs SIZE:STEP, such as 20:975, with sizes"),
        (["--train-sizes", "16:9", "20:9"], "--train-sizes must be in ascending order of the steps. Received: 16:9 20"),
        (["--blocks", 100000000], "argument --blocks: expected a whole number of at least 1 and at most 10000"),
        (["--dataset", "folder"], "--dataset folder requires --data-dir, the folder of the images."),
        (
            ["--dataset", "folder", "--augment", "alternating"],
            "--augment must be one of paper, standard, large-crops, none with --dataset folder. Received: alternating",
        ),
        (["--dataset", "shapes", "--data-dir", "/x"], "--data-dir is not an option of --dataset shapes, but of --"),
        (["--size-steps", 9], "unrecognized arguments: --size-steps 9. It was removed. Use pairs --train-sizes"),
        (["--nothing-like-it"], "unrecognized arguments: --nothing-like-it (see --help)"),
        (["--preset", "fast", "--warm-up-steps", 9000], "--warm-up-steps must be less than --steps"),
        (["--train-sizes", "16:9", "--preprocess", "pixels"], "requires --preprocess standardize"),
        (["--optimizer", "muon", "--initializer", "fixup"], "the zero kernels of --initializer fixup"),
        (["--strides", 1, 2, 2], "--strides must be one number, or one for the first convolution and one for each of"),
        (["--model", "densenet", "--depth", 20], "error: Argument --depth must be 3 n + 4"),
        (
            ["--augment", "large-crops"],
            "--augment must be one of paper, standard, all-cnn, alternating, none with --da",
        ),
        (
            ["--preset", "quick", "--log-every", 15],
            "--checkpoint-every, whose largest common divisor is 200. Received: --log-every 15",
        ),
        (["--dataset", "shapes", "--out", "x" * 300], "cannot be written: File name too long"),
        (
            ["--dataset", "shapes", "--out", os.fsdecode(b"caf\xe9")],
            r"--out must be UTF-8, as TensorFlow requires. Received: caf\udce9",
        ),
        (
            ["--dataset", "shapes", "--train-images", 50, "--held-out", 50],
            "less than the 50 training images. Received: 50 (option --held-out)",
        ),
    ],
)
def test_invalid_input_exits_with_code_2_and_one_line(tmp_path, arguments, message):
    out = tmp_path / "run"
    out_option = [] if "--out" in arguments else ["--out", out]
    result = run_here("trainers.cifar", *out_option, *arguments, code=2)
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not out.exists()


def test_an_interrupted_program_prints_one_line():
    code = run_in_process(lambda: signal.raise_signal(signal.SIGINT) or 0)
    assert code == (130, "stopped by Ctrl-C; saved files are intact\n")


def test_the_development_mode_of_python_shows_the_traceback(tmp_path):
    words = [sys.executable, "-X", "dev", "-m", "trainers.cifar", "--data-dir", tmp_path, "--out", tmp_path / "run"]
    result = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "Traceback" in result.stderr
    assert "error: cifar10 was not found in" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize("module", [cifar, imagenet])
def test_help_lists_the_common_options_and_help_all_every_one(module):
    every = [*options(TrainingSettings).values(), *options(module.PROGRAM.command).values()]
    common = [option for option in every if option.common]
    assert 20 <= len(common) <= 25
    assert len(every) <= 45
    for flag, expected in (("--help", common), ("--help-all", every)):
        result = run_here(module.PROGRAM.name, flag, code=0)
        listed = set(re.findall(r"^  (?:-h, )?(--[\w-]+)", result.stdout, re.MULTILINE))
        assert listed == {option.flag for option in expected} | {"--help", "--help-all", "--version"}
        assert "(default: None)" not in result.stdout


def test_help_and_missing_data_import_nothing_heavy(program, tmp_path):
    code = (
        "import importlib, sys\n"
        "for words in sys.argv[1:]:\n"
        "    name, *arguments = words.split()\n"
        "    try: importlib.import_module(f'trainers.{name}').main(arguments)\n"
        "    except BaseException as error: print(type(error).__name__)\n"
        "print([name for name in ('tensorflow', 'keras', 'matplotlib', 'scipy') if name in sys.modules])"
    )
    (tmp_path / "script.py").write_text(code)
    names = ["expressivity", "landscape.__main__", "shortcuts.__main__", "cifar"]
    missing = f"cifar --data-dir {tmp_path}"
    result = program("script", *(f"{name} --help" for name in names), missing, env={"PYTHONPATH": str(tmp_path)})
    assert result.stdout.count("SystemExit\n") == len(names)
    assert result.stdout.splitlines()[-2:] == ["DataError", "[]"], result.stderr


def test_an_unusable_output_folder_is_rejected_unchanged(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    small = ["--train-images", 10, "--test-images", 10, "--batch-size", 5, "--blocks", 1, "--stem", 4, "--widths", 4]
    for out, message in {
        tmp_path: "contains something other than files of this program",
        tmp_path / "thesis.tex": "is a file",
        tmp_path / "thesis.tex" / "run": "cannot be written",
        # In this folder even root cannot write.
        "/proc/run": "--out /proc/run cannot be written",
    }.items():
        result = run_here("trainers.cifar", "--dataset", "shapes", *small, "--out", out, code=2)
        assert message in result.stderr
        assert "Traceback" not in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def saved_run(folder, program="trainers.cifar", **changes):
    """Create the folder of a run on the built-in data, with some settings changed."""
    settings = as_dict(with_defaults(TrainingSettings, {"dataset": "shapes"})) | changes
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"program": program, "settings": settings, "data": {}}))
    return folder


@pytest.mark.parametrize("how", ["--resume", "the same command"])
def test_resuming_with_other_settings_is_rejected(finished, how):
    before = sorted((path, path.stat().st_mtime_ns) for path in finished.rglob("*") if path.is_file())
    words = ["--resume"] if how == "--resume" else TINY.split()
    for changes, message in (
        (["--seed", 3, "--learning-rate", 0.2], "learning_rate was 0.1, now 0.2; seed was 0, now 3"),
        (["--steps", 8], "steps was 6, now 8"),
        (["--log-every", 3, "--checkpoint-every", 3], "log_every was 1, now 3. Use the same settings"),
        (["--test-images", 40], "test_images was 48, now 40; the checksum of the data was"),
    ):
        done = run_here("trainers.cifar", *words, *changes, "--out", finished, code=2)
        assert message in done.stderr
    # Intervals that do not affect the steps of `fit` may differ.
    done = run_here("trainers.cifar", *words, "--evaluate-every", 2, "--log-every", 1, "--out", finished)
    assert (done.returncode, "is finished. test error: best" in done.stdout) == (0, True)
    after = sorted((path, path.stat().st_mtime_ns) for path in finished.rglob("*") if path.is_file())
    assert after == before


@pytest.mark.parametrize("option", ["--resume", "--evaluate", "--export-only", None])
@pytest.mark.parametrize(
    ("saved", "message"),
    [
        ({"label_smoothing": "much"}, "label_smoothing: expected a number of at least 0 and below 1, received 'much'"),
        ({"widths": [64, 64, 32]}, "--stem and --widths must not decrease with shortcut 'pad'"),
        ({"program": "trainers.imagenet"}, "is a run of trainers.imagenet, not of trainers.cifar."),
        ({"nesterov": True}, "there is no setting 'nesterov'. It was removed. Use --optimizer nesterov."),
    ],
)
def test_each_command_validates_an_edited_config(tmp_path, option, saved, message):
    run = saved_run(tmp_path / "run", **saved)
    words = {"--resume": ["--resume", "--out", run], None: ["--dataset", "shapes", "--out", run]}
    with pytest.raises(UsageError) as raised:
        main([str(word) for word in words.get(option, [option, run])])
    assert message in str(raised.value)
    assert str(run) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("option", "files", "message"),
    [
        ("--evaluate", {"config.json": '{"settings"'}, "config.json is damaged"),
        ("--resume", {"config.json": "5"}, "config.json is damaged"),
        ("--export-only", {"config.json": '{"settings": {}, "data": 5}'}, "config.json is damaged .*no valid 'data'"),
        ("--export-only", {}, "config.json, data: .* missing 5 required .* 'origin'"),
        ("--resume", {"result.json": "{"}, "result.json is damaged .* Remove it"),
        ("--resume", {"result.json": "{}"}, "result.json is damaged .*no valid 'steps'.* Remove it"),
    ],
)
def test_damaged_runs_raise_usage_errors(tmp_path, option, files, message):
    run = saved_run(tmp_path / "run")
    for name, text in files.items():
        (run / name).write_text(text)
    with pytest.raises(UsageError, match=message):
        main([option, *(["--out"] if option == "--resume" else []), str(run)])


def test_a_run_without_checkpoints_is_neither_evaluated_nor_exported(finished, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished, run, ignore=shutil.ignore_patterns("step-*"))
    for option in ("--evaluate", "--export-only"):
        with pytest.raises(UsageError, match="has no intact checkpoint. Train it first: python -m trainers.cifar --re"):
            main([option, str(run)])
    # Its exports are not replaced by those of another run.
    with pytest.raises(UsageError, match="is finished, but its checkpoints are missing. Use the same settings"):
        main([*TINY.split(), "--seed", "1", "--out", str(run)])
    assert (run / "model.keras").exists()


def test_the_networks_and_the_recipe_of_the_command_lines_are_the_papers():
    for module, layout in ((cifar, CIFAR), (imagenet, IMAGENET)):
        settings = module.PROGRAM.resolve()
        assert (settings.model, settings.network.layout()) == ("identity", layout)
    assert cifar.PROGRAM.resolve("short").network.layout() == CIFAR
    recipe = cifar.PROGRAM.resolve().recipe
    assert (recipe.steps, recipe.drop_steps, recipe.learning_rate) == (60_000, (30_000, 50_000), 0.05)
    assert (recipe.batch_size, recipe.weight_decay) == (128, 1e-4)
