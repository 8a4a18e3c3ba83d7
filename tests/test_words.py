"""The words of the field, the same everywhere."""

import re

import pytest

from tests.conftest import ROOT

FOLDERS = (".ci", "benchmarks", "docs", "examples", "idmatters_tf", "models", "tests", "trainers")
SUFFIXES = (".cfg", ".json", ".md", ".py", ".toml", ".yml")
FILES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.suffix in SUFFIXES]
FILES += [path for path in sorted(ROOT.glob("*")) if path.suffix in SUFFIXES]
# The word that is used in place of each.
REPLACED = {"pictu" + "re": "image", "pictu" + "res": "images"}


@pytest.mark.parametrize(("word", "instead"), REPLACED.items())
def test_the_fields_words_are_used(word, instead):
    pattern = re.compile(rf"\b{word}\b", re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in FILES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert len(FILES) > 150
    assert not found, f"{instead}, not {word}:\n" + "\n".join(found)
