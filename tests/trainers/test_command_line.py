"""Bad input to the programs: one sentence, exit code 2, nothing lost; and the help."""

import json
import os

import pytest

from trainers import cifar
from trainers.cli.arguments import UsageError, number, whole_number

OFFLINE = ("trainers.cifar", "--no-download")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dataset", "mnist"], "argument --dataset: invalid choice: 'mnist' (choose from"),
        (["--steps", "0"], "argument --steps: expected a whole number of at least 1, received '0'"),
        (["--steps", "many"], "received 'many'"),
        (["--batch-size", "-3"], "argument --batch-size: expected a whole number of at least 1"),
        (["--learning-rate", "0"], "argument --learning-rate: expected a number above 0, received '0'"),
        (["--learning-rate", "nan"], "received 'nan'"),
        (["--momentum", "1"], "expected a number at least 0 and below 1, received '1'"),
        (["--weight-decay", "-1"], "argument --weight-decay: expected a number at least 0"),
        (["--clip-norm", "0"], "argument --clip-norm"),
        (["--seed", "-1"], "argument --seed: expected a whole number from 0 to"),
        (["--drop-steps", "50", "30"], "--drop-steps must be in ascending order"),
        (["--widths", "64", "32"], "--stem and --widths must not decrease with --shortcut pad"),
        (["--learning", "3"], "unrecognized arguments: --learning"),
        (["--evaluate", "a", "--export-only", "b"], "exclude one another"),
        (["--resume", "--out", "nowhere"], "nowhere is not a run: there is no config.json in it"),
        (["--evaluate", "nowhere"], "nowhere is not a run"),
        (["--data-dir", "/nowhere"], "cifar10 was not found in /nowhere"),
        (
            ["--dataset", "cifar100", "--data-dir", "."],
            "Pass the folder that holds one of these as `data_dir`. (option --data-dir)",
        ),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(program, tmp_path, arguments, message):
    out = tmp_path / "run"
    out_option = [] if "--out" in arguments else ["--out", out]
    result = program(*OFFLINE, *out_option, *arguments)
    assert result.returncode == 2, result.stderr
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not out.exists()


def test_debug_shows_the_traceback(program, tmp_path):
    result = program(*OFFLINE, "--data-dir", tmp_path, "--out", tmp_path / "run", "--debug")
    assert result.returncode == 2
    assert "Traceback" in result.stderr


def test_help_names_every_option_and_default(program):
    result = program("trainers.cifar", "--help")
    assert result.returncode == 0
    for text in ("(default: 60000)", "(default: 64 128 256)", "(default: 0.05)", "examples:", "exit codes:"):
        assert text in result.stdout
    assert "(default: None)" not in result.stdout
    assert "(default: True)" not in result.stdout


def test_help_and_missing_data_import_nothing_heavy(program, tmp_path):
    code = (
        "import sys; from trainers import cifar\n"
        "try: cifar.main(sys.argv[1:])\n"
        "except BaseException as error: print(type(error).__name__)\n"
        "print([name for name in ('tensorflow', 'keras', 'matplotlib', 'scipy') if name in sys.modules])"
    )
    cases = (["--help"], "SystemExit"), (["--no-download", "--data-dir", tmp_path], "DataNotFound")
    for arguments, outcome in cases:
        (tmp_path / "script.py").write_text(code)
        result = program("script", *arguments, env={"PYTHONPATH": str(tmp_path)})
        assert result.stdout.splitlines()[-2:] == [outcome, "[]"], result.stderr


def test_an_out_that_holds_something_else_is_left_alone(program, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    result = program(*OFFLINE, "--dataset", "shapes", "--out", tmp_path)
    assert result.returncode == 2
    assert "holds something other than a run" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    result = program(*OFFLINE, "--dataset", "shapes", "--out", tmp_path / "thesis.tex")
    assert result.returncode == 2
    assert "is a file" in result.stderr


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="needs a folder in which even root cannot write")
def test_an_unwritable_out(program):
    result = program(*OFFLINE, "--dataset", "shapes", "--train-images", 10, "--test-images", 10, "--out", "/proc/run")
    assert result.returncode == 2
    assert "--out /proc/run cannot be written" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_out_below_a_file_or_an_odd_place(program, tmp_path):
    (tmp_path / "file").touch()
    result = program(*OFFLINE, "--dataset", "shapes", "--out", tmp_path / "file" / "run")
    assert result.returncode == 2
    assert "cannot be written" in result.stderr


def saved_run(folder, **changes):
    _, defaults = cifar.parser().parse([])
    _, settings = cifar.PROGRAM.resolve({"dataset": "shapes", "out": str(folder / "new")}, defaults)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"settings": {**settings, **changes}, "data": {}}))
    return defaults


def test_other_settings_on_a_run_are_refused_by_name(tmp_path):
    defaults = saved_run(tmp_path / "run", learning_rate=0.1, widths=[16, 32])
    out = str(tmp_path / "run")
    with pytest.raises(
        UsageError, match=r"widths was \[16, 32\], now \[64, 128, 256\]; learning_rate was 0.1, now 0.05"
    ):
        cifar.PROGRAM.resolve({"dataset": "shapes", "out": out}, defaults)
    with pytest.raises(UsageError, match="seed was 0, now 3"):
        cifar.PROGRAM.resolve({"resume": True, "out": out, "seed": 3}, defaults)
    # Settings that change no result may differ, and --resume takes the others from the run.
    _, settings = cifar.PROGRAM.resolve({"resume": True, "out": out, "log_every": 7}, defaults)
    assert settings["log_every"] == 7
    assert settings["learning_rate"] == 0.1


def test_a_run_without_checkpoints_and_a_damaged_config(tmp_path, program):
    saved_run(tmp_path / "run")
    for option in ("--evaluate", "--export-only"):
        result = program(*OFFLINE, option, tmp_path / "run")
        assert result.returncode == 2
        assert "has no checkpoints yet" in result.stderr
    (tmp_path / "run" / "config.json").write_text('{"settings"')
    result = program(*OFFLINE, "--evaluate", tmp_path / "run")
    assert result.returncode == 2
    assert "config.json is damaged" in result.stderr


def test_presets_fill_in_between_defaults_and_options(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where no run of the user's own lies in runs/quick
    _, defaults = cifar.parser().parse([])
    explicit, _ = cifar.parser().parse(["--preset", "quick", "--blocks", "2"])
    run, settings = cifar.PROGRAM.resolve(explicit, defaults)
    assert (settings["dataset"], settings["blocks"], settings["weight_decay"]) == ("shapes", 2, 1e-4)
    assert str(run.path) == "runs/quick"
    assert set(cifar.PRESETS["quick"]) <= set(defaults)
    assert (defaults["steps"], defaults["drop_steps"], defaults["learning_rate"]) == (60_000, [30_000, 50_000], 0.05)
    assert (defaults["batch_size"], defaults["momentum"], defaults["weight_decay"]) == (128, 0.9, 1e-4)


def test_number_types():
    assert whole_number(1)("60_000") == whole_number(1)("60,000") == 60_000
    assert number(0)("1e-4") == 1e-4
