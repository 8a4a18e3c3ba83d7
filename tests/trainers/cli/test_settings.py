"""Settings dataclasses: command line, help, JSON form and checks."""

import dataclasses
import functools
import json
from typing import Literal

import pytest

from trainers import cifar, imagenet
from trainers.cli.arguments import UsageError
from trainers.cli.settings import as_dict, group, make, make_parser, options, setting, with_defaults
from trainers.training.settings import TrainingSettings


@dataclasses.dataclass(frozen=True)
class Shape:
    kind: str = setting("square", help="the shape")
    color: Literal["red", "blue"] = setting("red", help="its colour")


@dataclasses.dataclass(frozen=True)
class Square(Shape):
    side: int = setting(2, help="its side", at_least=1)
    turned: bool = setting(False, help="stand on 100 % of a corner")


@dataclasses.dataclass(frozen=True)
class Disc(Shape):
    radius: int = setting(1, help="its radius", at_least=1)
    color: Literal["red", "blue"] = setting("blue", help="its colour")


@dataclasses.dataclass(frozen=True)
class Ring(Disc):
    radius: int = setting(3, help="its radius", at_least=1)


@dataclasses.dataclass(frozen=True)
class Recipe:
    steps: int = setting(60_000, help="number of updates", at_least=1, common=True)
    momentum: float = setting(0.9, help="momentum", at_least=0, below=1)
    clip_norm: float | None = setting(None, help="bound on the gradient", above=0, unset="no bound")
    drop_steps: tuple[int, ...] = setting((), help="where the rate drops", at_least=0, may_be_empty=True)
    widths: tuple[int, ...] = setting((64, 128), help="channels", metavar="C", at_least=1)
    out: str | None = setting(None, help="a folder")
    download: bool = setting(True, help="download missing data")


@dataclasses.dataclass(frozen=True)
class Settings:
    shape: Shape = group({"square": Square, "disc": Disc, "ring": Ring, "hoop": Ring}, "shape", by="kind")
    recipe: Recipe = group(Recipe, "recipe", steps=1000)

    def __post_init__(self):
        if list(self.recipe.drop_steps) != sorted(self.recipe.drop_steps):
            raise UsageError("--drop-steps must ascend.")


parser = functools.partial(make_parser, "program", "A program.", "", Settings)


def settings(*words, below=()):
    return with_defaults(Settings, *below, parser().parse(list(words)))


def test_defaults_and_typed_options():
    assert parser().parse([]) == {}
    assert settings() == Settings(Square("square"), Recipe(steps=1000))
    words = ["--kind", "disc", "--color", "blue", "--steps", "60_000", "--momentum", "0", "--clip-norm", "1e-1"]
    found = settings(*words, "--no-download", "--drop-steps")
    assert found == Settings(Disc("disc", "blue", 1), Recipe(60_000, 0.0, 0.1, download=False))
    for widths in (["8,16,32"], ["8", "16,32"], ["8", "16", "32"]):
        assert settings("--widths", *widths).recipe.widths == (8, 16, 32)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--steps", "0"], "argument --steps: expected a whole number of at least 1 and at most 2147483647"),
        (["--momentum", "1"], "argument --momentum: expected a number of at least 0 and below 1, received '1'"),
        (["--color", "pink"], "argument --color: expected one of red, blue, received 'pink'"),
        (["--widths", "8,,16"], "received ''"),
    ],
)
def test_an_invalid_argument_is_one_line(words, message, capsys):
    with pytest.raises(SystemExit) as ended:
        settings(*words)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_help_shows_phrases_defaults_and_choices():
    made = parser(defaults={"widths": (4, 8)})
    text = " ".join(made.format_help().split())
    for expected in (
        "shape: --kind {square,disc,ring,hoop} the shape (default: square)",
        "--color {red,blue} its colour (default: red)",
        "shape: square: --side N its side (default: 2) --turned, --no-turned stand on 100 % of a corner",
        "shape: disc, ring, hoop: --radius N its radius (default: 1)",
        "recipe: --steps N number of updates (default: 1000)",
        "--clip-norm X bound on the gradient (default: no bound) --drop-steps",
        "--widths C [C ...] channels (default: 4 8)",
        "--download, --no-download download missing data (default: yes)",
    ):
        assert expected in text
    assert "None" not in text


def test_help_omits_uncommon_options_and_empty_groups():
    short = parser(only_common=True)
    assert "--steps N" in short.format_help()
    for omitted in ("--clip-norm", "--turned", "shape:"):
        assert omitted not in short.format_help()
    assert short.parse(["--clip-norm", "2", "--turned"]) == {"clip_norm": 2.0, "turned": True}


@dataclasses.dataclass(frozen=True)
class Deep:
    depth: int = setting(3, help="number of layers")

    def __post_init__(self):
        if self.depth < 2:
            raise ValueError(f"Argument `depth` must be at least 2. Received: depth={self.depth}")


def test_errors_of_the_library_name_options():
    with pytest.raises(UsageError, match="Argument --depth must be at least 2. Received: depth=1"):
        with_defaults(Deep, {"depth": 1})


@pytest.mark.parametrize("program", [cifar.PROGRAM, imagenet.PROGRAM], ids=lambda program: program.name)
def test_presets_and_recipes_are_values_of_settings(program):
    known = options(TrainingSettings)
    for name, table in (*program.presets.items(), *program.recipes.items()):
        for key, value in table.items():
            checked = known[key].check(value)
            assert (checked, type(checked)) == (value, type(value)), (name, key)


def test_settings_round_trip_through_json():
    original = settings("--kind", "ring", "--widths", "8", "--clip-norm", "2")
    values = json.loads(json.dumps(as_dict(original)))
    assert list(values)[:4] == ["kind", "color", "radius", "steps"]
    assert (values["radius"], values["widths"]) == (3, [8])
    assert make(Settings, values) == original
    # JSON integers are valid floats, and text is converted as on the command line.
    assert make(Settings, {**values, "clip_norm": 1}).recipe.clip_norm == 1.0
    assert options(Settings)["radius"].kinds == ("disc", "ring", "hoop")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": True}, "steps: expected a whole number"),
        ({"clip_norm": 10**400}, "clip_norm: expected a number above 0"),
        ({"widths": 8}, "widths: expected one or more values, each a whole number of at least 1 and at most 214748364"),
        ({"momentum": float("inf")}, "momentum: expected a number of at least 0 and below 1, received inf"),
        ({"momentun": 0.5}, "there is no setting 'momentun'. Did you mean momentum?"),
        ({"drop_steps": [3, 2]}, "--drop-steps must ascend."),
        ({"radius": 1}, "--radius is not an option of --kind square, but of --kind disc, ring, hoop."),
        ({"momentum": None}, "the setting 'momentum' is missing. Add it: a number of at least 0 and below 1."),
    ],
)
def test_an_invalid_value_in_json_is_one_line(changes, message):
    values = {**as_dict(settings()), **changes}
    if "missing" in message:
        del values["momentum"]
    with pytest.raises(UsageError) as raised:
        make(Settings, values, "x.json")
    assert str(raised.value).startswith(f"x.json: {message}")


def test_presets_drop_options_that_the_kind_lacks():
    preset = {"side": 9, "radius": 8, "steps": 5}
    assert settings(below=[preset]) == Settings(Square("square", "red", 9), Recipe(5))
    assert settings("--kind", "disc", below=[preset]) == Settings(Disc("disc", "blue", 8), Recipe(5))
    assert settings("--steps", "6", below=[{"kind": "ring"}, preset]) == Settings(Ring("ring", "blue", 8), Recipe(6))
    with pytest.raises(UsageError, match="no setting 'radios'"):
        settings(below=[{"radios": 1}])
    with pytest.raises(UsageError, match="^--turned is not an option of --kind disc, but of --kind square.$"):
        settings("--kind", "disc", "--turned")
