"""Settings dataclasses: command line, help, JSON form and checks."""

import dataclasses
import json
from typing import Literal

import pytest

from trainers.cli.arguments import Parser, UsageError
from trainers.cli.settings import (
    add_options,
    as_dict,
    choose,
    defaults,
    group,
    list_options,
    make,
    options,
    parse,
    setting,
    with_defaults,
)


@dataclasses.dataclass(frozen=True)
class Network:
    widths: tuple[int, ...] = setting((64, 128), help="channels of each stage", metavar="C", at_least=1)
    head: Literal["random", "trained"] = setting("random", help="the last layer")
    bias: bool = setting(False, help="100 % of the convolutions have biases")


@dataclasses.dataclass(frozen=True)
class Recipe:
    steps: int = setting(60_000, help="number of updates", metavar="N", at_least=1)
    momentum: float = setting(0.9, help="momentum", metavar="X", at_least=0, below=1)
    clip_norm: float | None = setting(None, help="bound on the gradient", metavar="X", above=0)
    drop_steps: tuple[int, ...] = setting((), help="where the rate drops", metavar="N", at_least=0, may_be_empty=True)
    out: str | None = setting(None, help="a folder")
    download: bool = setting(True, help="download missing data", free_on_resume=True)


@dataclasses.dataclass(frozen=True)
class Settings:
    network: Network = group(Network, "network")
    recipe: Recipe = group(Recipe, "recipe", steps=1000)

    def __post_init__(self):
        if list(self.recipe.drop_steps) != sorted(self.recipe.drop_steps):
            raise UsageError("--drop-steps must ascend.")


def typed(*words):
    parser = Parser(prog="program", description="A program.")
    add_options(parser, Settings)
    return parse(parser, list(words))


def settings(*words):
    return with_defaults(Settings, typed(*words))


def test_defaults_and_typed_options():
    assert typed() == {}
    assert settings() == Settings(Network(), Recipe(steps=1000))
    words = ["--widths", "8", "16", "--head", "trained", "--no-download", "--steps", "60_000"]
    assert typed(*words, "--bias", "--momentum", "0") == {
        "widths": (8, 16),
        "head": "trained",
        "download": False,
        "steps": 60_000,
        "bias": True,
        "momentum": 0.0,
    }
    assert settings("--drop-steps").recipe.drop_steps == ()
    assert settings("--clip-norm", "1e-1").recipe.clip_norm == 0.1
    assert with_defaults(Settings, {"steps": 5, "momentum": 0.5}, {"steps": 7}).recipe == Recipe(7, 0.5)


@pytest.mark.parametrize("words", [["8,16,32"], ["8", "16,32"], ["8", "16", "32"]])
def test_values_are_separated_by_commas_or_spaces(words):
    assert settings("--widths", *words).network.widths == (8, 16, 32)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--steps", "0"],
            "argument --steps: expected a whole number of at least 1 and at most 2147483647",
        ),
        (["--steps", "1.5"], "received '1.5'"),
        (["--momentum", "1"], "argument --momentum: expected a number of at least 0 and below 1, received '1'"),
        (["--clip-norm", "0"], "argument --clip-norm: expected a number above 0, received '0'"),
        (["--head", "none"], "argument --head: expected one of random, trained, received 'none'"),
        (["--widths", "8,,16"], "received ''"),
        (["--out", ""], "argument --out: expected text that is not empty, received ''"),
        (["--mom", "0.5"], "unrecognized arguments: --mom"),
    ],
)
def test_an_invalid_argument_is_one_line(words, message, capsys):
    with pytest.raises(SystemExit) as ended:
        typed(*words)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_help_shows_phrases_defaults_and_choices():
    parser = Parser(prog="program", description="A program.")
    add_options(parser, Settings)
    text = " ".join(parser.format_help().split())
    for expected in (
        "network: --widths C [C ...] channels of each stage (default: 64 128)",
        "--head {random,trained} the last layer (default: random)",
        "--bias, --no-bias 100 % of the convolutions have biases recipe:",
        "recipe: --steps N number of updates (default: 1000)",
        "--clip-norm X bound on the gradient --drop-steps",
        "--download, --no-download download missing data (default: yes)",
    ):
        assert expected in text
    assert "None" not in text


@dataclasses.dataclass(frozen=True)
class Long:
    steps: int = setting(10, help="number of updates", metavar="N", common=True)
    clip_norm: float | None = setting(None, help="bound on the gradient", metavar="X", unset="no bound")
    nesterov: bool = setting(False, help="use Nesterov momentum")


@dataclasses.dataclass(frozen=True)
class LongSettings:
    recipe: Long = group(Long, "recipe")
    network: Network = group(Network, "empty group")


def test_help_omits_uncommon_options_and_empty_groups():
    parser = Parser(help_all=True, prog="program", description="A program.")
    add_options(parser, LongSettings)
    short, whole = parser.format_help(), parser.format_help_all()
    assert "--steps N" in short
    assert "--clip-norm X" not in short
    assert "--nesterov" not in short
    assert "recipe:" in short
    assert "empty group" not in short
    assert "--clip-norm X bound on the gradient (default: no bound)" in " ".join(whole.split())
    assert "--nesterov, --no-nesterov" in whole
    assert "empty group" in whole
    # Nothing stays omitted, and all options are parsed.
    assert parser.format_help() == short
    assert parse(parser, ["--clip-norm", "2", "--nesterov"]) == {"clip_norm": 2.0, "nesterov": True}


def test_json_and_back():
    original = settings("--widths", "8", "--clip-norm", "2", "--bias")
    text = json.dumps(as_dict(original))
    assert list(json.loads(text)) == list(options(Settings)) == list(defaults(Settings))
    assert make(Settings, json.loads(text)) == original
    assert make(Settings, {**as_dict(original), "steps": 3}).recipe == Recipe(3, clip_norm=2.0)
    # JSON integers are valid floats.
    assert make(Settings, {**as_dict(original), "clip_norm": 1}).recipe.clip_norm == 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"steps": "many"},
            "x.json: steps: expected a whole number of at least 1 and at most 2147483647",
        ),
        ({"steps": True}, "x.json: steps: expected a whole number"),
        (
            {"widths": 8},
            "x.json: widths: expected a list, each a whole number of at least 1 and at most 2147483647",
        ),
        (
            {"widths": []},
            "x.json: widths: expected one or more values, each a whole number",
        ),
        ({"head": "none"}, "x.json: head: expected one of random, trained, received 'none'"),
        ({"bias": "yes"}, "x.json: bias: expected true or false, received 'yes'"),
        ({"momentum": float("inf")}, "x.json: momentum: expected a number of at least 0 and below 1, received inf"),
        ({"momentun": 0.5}, "x.json: there is no setting 'momentun'. Did you mean 'momentum'?"),
        ({"drop_steps": [3, 2]}, "x.json: --drop-steps must ascend."),
    ],
)
def test_an_invalid_value_in_json_is_one_line(changes, message):
    with pytest.raises(UsageError) as raised:
        make(Settings, {**as_dict(settings()), **changes}, "x.json")
    assert str(raised.value).startswith(message)


def test_a_missing_value_is_named():
    values = as_dict(settings())
    del values["momentum"]
    with pytest.raises(
        UsageError,
        match="^the setting 'momentum' is missing. Add it: a number .* and below 1, by default 0.9.$",
    ):
        make(Settings, values)


def test_required_and_positional_settings(capsys):
    @dataclasses.dataclass(frozen=True)
    class Report:
        runs: tuple[str, ...] = setting(help="folders of runs", metavar="RUN", positional=True)
        title: str = setting(help="above the plot")

    parser = Parser(prog="report")
    add_options(parser, Report)
    # Commas are part of file names.
    assert with_defaults(Report, parse(parser, ["a,b", "c", "--title", "t"])) == Report(("a,b", "c"), "t")
    with pytest.raises(SystemExit):
        parse(parser, ["a"])
    assert "the following arguments are required: --title" in capsys.readouterr().err


def test_the_same_name_in_two_groups_is_a_type_error():
    @dataclasses.dataclass(frozen=True)
    class Twice:
        one: Recipe = group(Recipe, "one")
        two: Recipe = group(Recipe, "two")

    with pytest.raises(TypeError, match="same name in Twice: clip_norm, download"):
        options(Twice)


@dataclasses.dataclass(frozen=True)
class Shape:
    kind: str = setting("square", help="the shape")
    color: Literal["red", "blue"] = setting("red", help="its colour")


@dataclasses.dataclass(frozen=True)
class Square(Shape):
    side: int = setting(2, help="its side", metavar="N", at_least=1)
    turned: bool = setting(False, help="stand on a corner")


@dataclasses.dataclass(frozen=True)
class Disc(Shape):
    radius: int = setting(1, help="its radius", metavar="N", at_least=1)
    color: Literal["blue", "green"] = setting("blue", help="its colour")


@dataclasses.dataclass(frozen=True)
class Ring(Disc):
    radius: int = setting(3, help="its radius", metavar="N", at_least=1)


@dataclasses.dataclass(frozen=True)
class Drawing:
    shape: Shape = choose({"square": Square, "disc": Disc, "ring": Ring, "hoop": Ring}, by="kind", title="shape")
    recipe: Recipe = group(Recipe, "recipe")


def drawing(*words, below=()):
    parser = Parser(prog="program", description="A program.")
    add_options(parser, Drawing)
    return with_defaults(Drawing, *below, parse(parser, list(words)))


def test_each_kind_has_its_own_options_and_defaults():
    assert drawing().shape == Square("square")
    assert drawing("--kind", "disc", "--radius", "5").shape == Disc("disc", "blue", 5)
    assert drawing("--kind", "hoop", "--color", "green").shape == Ring("hoop", "green", 3)
    assert as_dict(drawing("--kind", "ring"))["radius"] == 3
    ring = drawing("--kind", "ring", "--steps", "7")
    assert make(Drawing, as_dict(ring)) == ring
    assert options(Drawing)["radius"].kinds == ("disc", "ring", "hoop")
    assert "side" not in list_options(Drawing, {"kind": "ring"})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--radius", "5"], "^--radius is not an option of --kind square, but of --kind disc, ring, hoop.$"),
        (["--kind", "disc", "--turned"], "^--turned is not an option of --kind disc, but of --kind square.$"),
        (["--kind", "disc", "--color", "red"], "^color: expected one of blue, green, received 'red'$"),
    ],
)
def test_options_of_another_kind_are_rejected(words, message):
    with pytest.raises(UsageError, match=message):
        drawing(*words)


def test_presets_drop_options_that_the_kind_lacks():
    preset = {"side": 9, "radius": 8, "color": "red", "steps": 5}
    assert drawing(below=[preset]) == Drawing(Square("square", "red", 9), Recipe(5))
    assert drawing("--kind", "disc", below=[preset]) == Drawing(Disc("disc", "blue", 8), Recipe(5))
    assert drawing(below=[{"kind": "ring"}, preset]).shape == Ring("ring", "blue", 8)
    with pytest.raises(UsageError, match="no setting 'radios'"):
        drawing(below=[{"radios": 1}])


def test_help_names_the_kinds_that_have_an_option_and_their_defaults():
    parser = Parser(prog="program", description="A program.")
    add_options(parser, Drawing)
    text = " ".join(parser.format_help().split())
    for expected in (
        "shape: --kind {square,disc,ring,hoop} the shape (default: square)",
        "--color {red,blue,green} its colour (default: red)",
        "shape: square: --side N its side (default: 2)",
        "shape: disc, ring, hoop: --radius N its radius (default: 1)",
    ):
        assert expected in text
    parser = Parser(prog="program", description="A program.")
    add_options(parser, Drawing, {"steps": 12, "side": 4})
    text = parser.format_help()
    assert "(default: 12)" in text
    assert "(default: 4)" in text


def test_a_kind_in_json_is_checked():
    for values, message in (
        ({"kind": "line"}, "x.json: kind: expected one of square, disc, ring, hoop, received 'line'"),
        ({"radius": 1}, "x.json: --radius is not an option of --kind square"),
    ):
        with pytest.raises(UsageError) as raised:
            make(Drawing, {**as_dict(drawing()), **values}, "x.json")
        assert str(raised.value).startswith(message)


def test_kinds_must_agree_on_the_type_of_an_option():
    @dataclasses.dataclass(frozen=True)
    class Line(Shape):
        radius: float = setting(1.0, help="none")

    @dataclasses.dataclass(frozen=True)
    class Wrong:
        shape: Shape = choose({"disc": Disc, "line": Line}, by="kind", title="shape")

    with pytest.raises(TypeError, match="radius has another type in line than in disc"):
        options(Wrong)
