"""Tests of the help texts, and of bad input to the programs: one error message, exit code 2, no lost files."""

import dataclasses
import importlib
import json
import pathlib
import re

import pytest

import trainers
from idmatters_tf.models.layout import CIFAR, IMAGENET
from tests.support.programs import run_here, run_in_process
from trainers import cifar, imagenet
from trainers.cifar import main, parser
from trainers.cli.arguments import UsageError
from trainers.cli.settings import as_dict, options, parse, with_defaults
from trainers.training.settings import Settings

OFFLINE = ("trainers.cifar", "--no-download")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dataset", "mnist"], "argument --dataset: expected one of cifar10, cifar100, shapes, folder, folder-"),
        (["--drop-steps", "50", "30"], "--drop-steps must be in ascending order"),
        (["--widths", "64,32"], "Received: --stem 16 --widths 64 32. Use --shortcut projection"),
        (["--learning_rate", "3"], "unrecognized arguments: --learning_rate 3. Did you mean --learning-rate?"),
        (["--evaluate", "a", "--export-only", "b"], "are mutually exclusive"),
        (["--resume", "--out", "nowhere"], "nowhere is not a run: there is no config.json in it"),
        (["--evaluate", "nowhere"], "nowhere is not a run"),
        (["--data-dir", "/nowhere"], "cifar10 was not found in /nowhere, which does not exist"),
        (["--overwrite", "--evaluate", "a"], "--overwrite starts a new run"),
        (["--init-from", "nowhere"], "--init-from nowhere has no checkpoint. Name the folder of a run that has one"),
        (
            ["--dataset", "shapes", "--train-images", "10", "--batch-size", "100000"],
            "--batch-size must be at most the 10 training images. Received: 100000",
        ),
        (
            ["--dataset", "cifar100", "--data-dir", "."],
            "`data_dir`. (option --data-dir)",
        ),
        (["--model", "all-cnn", "--depth", 20], "--depth is not an option of --model all-cnn, but of"),
        (["--growth", 12], "--growth is not an option of --model identity, but of --model densenet"),
        (["--cutout", 4, "--dataset", "folder"], "--cutout is not an option of --dataset folder, but of"),
        (
            ["--model", "resnet", "--depth", 21, "--dataset", "shapes"],
            "--model resnet: Argument `depth` must be 6 n + 2",
        ),
        (
            ["--model", "densenet", "--bottleneck", "--depth", 13, "--dataset", "shapes"],
            "--model densenet: Argument `depth` must be 6 n + 4",
        ),
        (["--train-sizes", 16, 20, "--size-steps", 100], "--size-steps must have as many values"),
        (["--train-sizes", 16, 20, "--size-steps", 100, 50], "--size-steps must be in ascending order"),
        (["--preset", "fast", "--widths", 32, 16], "must not decrease with --model normalizer-free"),
        (["--preset", "fast", "--warm-up-steps", 9000], "--warm-up-steps must be less than --steps"),
        (["--preset", "fast", "--stem", 56, "--whiten-stem"], "--stem must be even and at most 54 with --whiten-stem"),
        (["--train-sizes", 16, "--size-steps", 9, "--preprocess", "zca"], "requires --preprocess standardize"),
        (["--optimizer", "muon", "--initializer", "fixup"], "the zero kernels of --initializer fixup"),
        (["--mirror"], "--mirror requires --evaluate"),
        (
            ["--dataset", "shapes", "--train-images", 50, "--held-out", 50],
            "less than the 50 training images. Received: 50 (option --held-out)",
        ),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(tmp_path, arguments, message):
    out = tmp_path / "run"
    out_option = [] if "--out" in arguments else ["--out", out]
    result = run_here(*OFFLINE, *out_option, *arguments)
    assert result.returncode == 2, result.stderr
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not out.exists()


def test_more_images_than_fit_into_memory(tmp_path):
    code, said = run_in_process(main, "--dataset", "shapes", "--train-images", 2**31 - 1, "--out", tmp_path / "run")
    assert (code, said.count("\n")) == (1, 1), said
    assert "error: not enough memory: Unable to allocate" in said
    assert not (tmp_path / "run").exists()


def test_debug_shows_the_traceback(tmp_path):
    result = run_here(*OFFLINE, "--data-dir", tmp_path, "--out", tmp_path / "run", "--debug")
    assert result.returncode == 2
    assert "Traceback" in result.stderr


def test_help_all_lists_every_option_and_default():
    result = run_here("trainers.cifar", "--help-all")
    assert result.returncode == 0
    said = " ".join(result.stdout.split())
    for text in ("(default: 60000)", "(default: 64 128 256)", "(default: 0.05)", "exit codes:"):
        assert text in said
    assert "(default: None)" not in result.stdout
    assert "(default: True)" not in result.stdout
    assert options_in(result.stdout) == {option.flag for option in (*all_options(cifar), *PARSER_OPTIONS)}


@pytest.mark.parametrize("module", [cifar, imagenet])
def test_help_lists_the_common_options(module):
    result = run_here(module.PROGRAM.name, "--help")
    assert result.returncode == 0
    common = {option.flag for option in all_options(module) if option.common}
    assert 20 <= len(common) <= 25
    assert options_in(result.stdout) == common | {option.flag for option in PARSER_OPTIONS}
    for flag in ("--preset", "--data-dir", "--model", "--steps", "--learning-rate", "--resume", "--out", "--help-all"):
        assert flag in options_in(result.stdout)


@dataclasses.dataclass(frozen=True)
class ParserOption:
    flag: str


PARSER_OPTIONS = [ParserOption(flag) for flag in ("--help", "--help-all", "--version")]


def all_options(module):
    return [*options(Settings).values(), *options(module.PROGRAM.command).values()]


def options_in(text):
    """Return the options that a help text describes, without the negative forms of flags."""
    return set(re.findall(r"^  (?:-h, )?(--[\w-]+)", text, re.MULTILINE))


def parsers():
    """Yield the parsers of every program and of the commands of trainers.shortcuts."""
    folder = pathlib.Path(trainers.__file__).parents[1]
    for path in program_files():
        module = importlib.import_module(".".join(path.relative_to(folder).with_suffix("").parts))
        yield module.parser()
        for command in getattr(module, "COMMANDS", ()):
            yield module.parser(command)


def test_every_help_lists_the_exit_codes_and_each_default_once():
    for each in parsers():
        text = each.format_help()
        assert "exit codes: 0 " in text
        assert "130" in text[text.index("exit codes") :]
        for action in each._actions:
            assert (action.help or "").count("default:") <= 1, (each.prog, action.help)


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
    names = ["expressivity.__main__", "landscape.__main__", "shortcuts.__main__ sweep", "cifar"]
    missing = f"cifar --no-download --data-dir {tmp_path}"
    result = program("script", *(f"{name} --help" for name in names), missing, env={"PYTHONPATH": str(tmp_path)})
    assert result.stdout.count("SystemExit\n") == len(names)
    assert result.stdout.splitlines()[-2:] == ["DataError", "[]"], result.stderr


def test_an_out_that_cannot_be_used_is_named_and_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    small = ["--train-images", 10, "--test-images", 10, "--batch-size", 5, "--blocks", 1, "--stem", 4, "--widths", 4]
    for out, message in {
        tmp_path: "contains something other than a run",
        tmp_path / "thesis.tex": "is a file",
        tmp_path / "thesis.tex" / "run": "cannot be written",
        # In this folder even root cannot write.
        "/proc/run": "--out /proc/run cannot be written",
    }.items():
        result = run_here(*OFFLINE, "--dataset", "shapes", *small, "--out", out)
        assert result.returncode == 2, result.stderr
        assert message in result.stderr
        assert "Traceback" not in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def settings_from(*words):
    """Return (folder, settings) of a training command."""
    return cifar.PROGRAM.settings_to_train(*cifar.PROGRAM.split(parse(parser(), [str(word) for word in words])))


def saved_run(folder, program="trainers.cifar", without=(), **changes):
    """Create the folder of a run on the built-in data, with some settings changed or missing."""
    settings = as_dict(with_defaults(Settings, {"dataset": "shapes"})) | changes
    kept = {name: value for name, value in settings.items() if name not in without}
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"program": program, "settings": kept, "data": {}}))
    return folder


@pytest.mark.parametrize("how", ["--resume", "the same command"])
def test_other_settings_on_a_run_are_refused_by_name(tmp_path, how):
    run = saved_run(tmp_path / "run", learning_rate=0.1, widths=[16, 32])
    words = ["--resume"] if how == "--resume" else ["--dataset", "shapes", "--widths", "16,32", "--learning-rate", 0.1]
    with pytest.raises(UsageError, match="other settings: seed was 0, now 3. Use the same settings"):
        settings_from(*words, "--out", run, "--seed", 3)
    with pytest.raises(UsageError, match=r"widths was \[16, 32\], now \[16, 64\]"):
        settings_from(*words, "--out", run, "--widths", 16, 64)
    # Settings that do not affect results may differ.
    folder, settings = settings_from(*words, "--out", run, "--log-every", 7)
    assert folder == run
    assert (settings.run.log_every, settings.recipe.learning_rate, settings.network.widths) == (7, 0.1, (16, 32))


@pytest.mark.parametrize("option", ["--resume", "--evaluate", "--export-only", None])
@pytest.mark.parametrize(
    ("saved", "message"),
    [
        (
            {"without": ["label_smoothing"]},
            "the setting 'label_smoothing' is missing. Add it: a number of at least 0",
        ),
        ({"label_smoothing": "much"}, "label_smoothing: expected a number of at least 0 and below 1, received 'much'"),
        ({"widths": [64, 32]}, "--stem and --widths must not decrease with --shortcut pad"),
        ({"flavour": 3}, "there is no setting 'flavour'."),
        ({"program": "trainers.imagenet"}, "is a run of trainers.imagenet, not of trainers.cifar."),
        ({"program": None}, "is a run of another program, not of trainers.cifar."),
    ],
)
def test_a_config_edited_by_hand_is_checked_whichever_way_it_comes_in(tmp_path, option, saved, message):
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
        ("--evaluate", {}, "has no checkpoints yet"),
        ("--export-only", {}, "has no checkpoints yet"),
        ("--evaluate", {"config.json": '{"settings"'}, "config.json is damaged"),
        (
            "--export-only",
            {"checkpoints/step-00000001/x": ""},
            "config.json, data: the setting 'origin' is missing. Add",
        ),
        ("--resume", {"result.json": "{"}, "result.json is damaged .* Remove it"),
    ],
)
def test_damaged_and_incomplete_runs_are_named(tmp_path, option, files, message):
    run = saved_run(tmp_path / "run")
    for name, text in files.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(text)
    with pytest.raises(UsageError, match=message):
        main([option, *(["--out"] if option == "--resume" else []), str(run)])


def test_curvature_is_not_measured_in_a_cluster(tmp_path, monkeypatch):
    cluster = {"worker": ["127.0.0.1:5000", "127.0.0.1:5001"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}}))
    with pytest.raises(UsageError, match="--curvature-every works on one machine, not in a cluster"):
        main(["--dataset", "shapes", "--curvature-every", "5", "--out", str(tmp_path / "run")])


def test_more_steps_extend_a_run_that_is_resumed(tmp_path):
    run = saved_run(tmp_path / "run")
    assert settings_from("--resume", "--out", run, "--steps", 60_001)[1].recipe.steps == 60_001
    for words in (["--resume", "--steps", 59_999], ["--dataset", "shapes", "--steps", 60_001]):
        with pytest.raises(UsageError, match="other settings: steps was 60000"):
            settings_from(*words, "--out", run)
    for option, changes in (("schedule linear", {"schedule": "linear"}), ("lookahead", {"lookahead": 0.9})):
        saved_run(run, **changes)
        with pytest.raises(UsageError, match=f"cannot be extended: with --{option} .* with --init-from"):
            settings_from("--resume", "--out", run, "--steps", 60_001)


def test_overwriting_takes_other_settings_but_no_run_of_another_program(tmp_path):
    run = saved_run(tmp_path / "run")
    assert settings_from("--overwrite", "--dataset", "shapes", "--seed", 3, "--out", run)[1].recipe.seed == 3
    saved_run(run, program="trainers.imagenet")
    with pytest.raises(UsageError, match=r"is a run of trainers.imagenet"):
        settings_from("--overwrite", "--dataset", "shapes", "--out", run)


def test_presets_fill_in_between_defaults_and_options(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a folder without an existing run in runs/quick
    folder, settings = settings_from("--preset", "quick", "--blocks", 2)
    assert (settings.data.dataset, settings.network.blocks, settings.recipe.weight_decay) == ("shapes", (2,), 1e-4)
    assert str(folder) == "runs/quick"
    paper = with_defaults(Settings).recipe
    assert (paper.steps, paper.drop_steps, paper.learning_rate) == (60_000, (30_000, 50_000), 0.05)
    assert (paper.batch_size, paper.weight_decay) == (128, 1e-4)


def test_the_networks_of_the_command_lines_are_the_papers():
    for module, layout in ((cifar, CIFAR), (imagenet, IMAGENET)):
        network = module.PROGRAM.resolve().network
        assert (network.model, network.layout()) == ("identity", layout)
        assert network.layout("synchronized") == layout


def program_files():
    """Return the files of the programs."""
    folder = pathlib.Path(trainers.__file__).parent
    files = [*folder.glob("*.py"), *folder.glob("*/__main__.py")]
    return [path for path in files if "    run_program(main)" in path.read_text()]


def test_the_package_names_every_program():
    files = program_files()
    programs = {path.parent.name if path.stem == "__main__" else path.stem for path in files}
    assert {"cifar", "imagenet", "launch", "report", "landscape", "shortcuts", "expressivity"} <= programs
    assert {name for name in programs if f"trainers.{name} " in trainers.__doc__} == programs
