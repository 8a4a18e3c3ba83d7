"""Tests of unusual names of class folders and runs, from training to the model card."""

import ast
import json
import os
import re
import shlex
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import yaml

from idmatters_tf.data import _folders
from tests.support.images import make_tree
from tests.support.programs import run_here
from trainers.card.text import metadata, readme
from trainers.reporting.markdown import inline

ODD = [b"caf\xe9", b"\xff|`x`", "caf\u00e9".encode(), b"new\nline", b"<script>alert(1)</script>", b"[a](http:b) *c*"]
ODD += [b"\x1b]0;title\x07\x1b[2J", "\u202egnp.exe".encode(), b"it's", b'"quoted": yes', b"| --- |"]
# Stored names: bytes that are not UTF-8 are escaped.
KEPT = sorted(name.decode(errors="surrogateescape") for name in ODD)
KEPT = [name.encode(errors="surrogateescape").decode(errors="backslashreplace") for name in KEPT]
SHORT = ["--size", 24, "--blocks", 1, "--widths", 4, "--stem", 4, "--batch-size", 4, "--initializer", "standard"]
SHORT += ["--steps", 2, "--evaluate-every", 2, "--checkpoint-every", 2, "--clip-norm", 1, "--val", "train"]


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    root = make_tree(tmp_path_factory.mktemp("images"), classes=len(ODD), each=1, splits=("train",))
    for label, name in enumerate(ODD):
        try:
            os.rename(
                root / "train" / f"n{label:02d}", os.path.join(os.fsencode(root / "train"), name.replace(b"/", b":"))
            )
        except OSError:
            pytest.skip("the file system takes names in UTF-8 alone")
    return root


@pytest.fixture(scope="module")
def run(tree, tmp_path_factory):
    """Return a finished run with an unusual path."""
    run = tmp_path_factory.mktemp("runs") / "it's a \u202e run"
    done = run_here("trainers.imagenet", "--data-dir", tree, *SHORT, "--out", run)
    assert done.returncode == 0, done.stderr
    assert_printable(done.stdout + done.stderr)
    return run


def assert_printable(text):
    assert [letter for letter in text if not letter.isprintable() and letter != "\n"] == []


def load_names(path):
    model: Any = keras.saving.load_model(path)
    return model.get_layer("classes").class_names


def kept():
    return [name.replace("/", ":") for name in KEPT]


def test_names_that_are_not_utf8_have_a_digest(tree):
    files = _folders.list_classes(tree / "train")
    assert [os.fsencode(name) for name in files.class_names] == sorted(
        (name.replace(b"/", b":") for name in ODD), key=lambda name: name.decode(errors="surrogateescape")
    )
    assert isinstance(files.digest(), int)


def test_the_model_answers_with_the_names_and_the_printed_lines_are_python(run):
    assert json.loads((run / "config.json").read_text())["data"]["class_names"] == kept()
    assert load_names(run / "model.keras") == tuple(kept())
    served = tf.saved_model.load(str(run / "saved_model")).signatures["serving_default"]
    (name,) = served(images=tf.constant(np.zeros((1, 24, 24, 3), np.uint8)))["name"].numpy()
    assert name.decode() in kept()
    exported = run_here("trainers.imagenet", "--export-only", run)
    assert exported.returncode == 0, exported.stderr
    assert_printable(exported.stdout)
    first = next(line for line in exported.stdout.splitlines() if line.startswith("load it in Keras:"))
    (call,) = (node for node in ast.walk(ast.parse(first.partition(":")[2].strip())) if isinstance(node, ast.Call))
    assert ast.literal_eval(call.args[0]) == str(run / "model.keras")


def test_the_card_has_the_names_and_nothing_more(run, tmp_path):
    out = tmp_path / "it's <b> card"
    made = run_here("trainers.card", run, "--out", out)
    assert made.returncode == 0, made.stderr
    assert_printable(made.stdout)
    upload = next(line for line in made.stdout.splitlines() if line.startswith("publish it:"))
    words = shlex.split(upload.partition(":")[2].partition("     (")[0])
    assert words == ["hf", "upload", "USER/it-s-b-card", str(out), "."]
    text = (out / "README.md").read_text()
    assert_printable(text)
    # Outside of code, no part of the names has a meaning in Markdown or HTML.
    plain = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "CODE", text.partition("## Use")[0], flags=re.DOTALL)
    for part in ("<script>", "http:b", "\\x1b", "gnp.exe"):
        assert part not in plain.partition("---\n# ")[2]
    assert load_names(out) == tuple(kept())


@pytest.mark.parametrize("text", [*KEPT, "``", "`", "a``b`c", " x ", "www.example.org", "http://a", "a@b.org", "\x85"])
def test_inline_text_is_one_piece_of_code_or_harmless(text):
    shown = inline(text)
    assert shown.isprintable()
    found = re.fullmatch(r"(`+)(?!`)(.*)(?<!`)\1", shown.replace("\\|", "|"))
    if found is None:
        assert re.fullmatch(r"[\w ,.+-]+", shown)
        assert "www" not in shown
        return
    # CommonMark: no sequence of backticks inside is as long as the delimiters, and one space on each side is removed.
    assert found[1] not in re.findall("`+", found[2])
    assert "|" not in re.sub(r"\\\|", "", shown)


@pytest.mark.parametrize("name", [*KEPT, "a: b # c", "\x7f\x80\u2028\ufeff\U000e0001", "---", "\\"])
def test_the_header_is_yaml_for_every_name(name):
    front = yaml.safe_load(metadata(name, name, name, {name: 0.5}).to_yaml())
    (model,) = front["model-index"]
    assert model["name"] == front["license"] == name
    assert model["results"][0]["metrics"][0]["name"] == name


def test_settings_and_versions_stay_in_their_cells_and_the_command_in_its_fence():
    odd = "a | b\n| c | <img src=x onerror=y> ` \x1b[2J"
    facts = {"dataset": "shapes", "image_shape": (8, 8, 3), "classes": 2, "class_names": (odd, "plain"), "steps": 1}
    facts |= {"parameters": 1, "minutes": 1.0, "seed": 0, "versions": {"numpy": odd}, "held_out": None}
    facts |= {"rounding": "none", "digest": "00", "measured": True}
    text = readme("name", "mit", "me/name", facts, {"own": 0.5}, "python x ```\n```", {"head": odd, "steps": 5})
    assert_printable(text)
    assert "| `steps` | 5 |" in text
    (row,) = (line for line in text.splitlines() if line.startswith("| `head` |"))
    assert len(re.findall(r"(?<!\\)\|", row)) == 3
    assert "````\npython x ```\n```\n````\n" in text
