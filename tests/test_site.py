"""Generated pages of the site: the ledger, the gallery, the command lines, the cases of curvature, and the links."""

import dataclasses
import decimal
import importlib
import json
import posixpath
import re

import pytest

from tests.conftest import ROOT
from trainers.cli.arguments import UsageError
from trainers.reproduce.rows import Number, Row


@pytest.fixture(scope="module")
def generator():
    """Import the generator package from docs/, as conf.py does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs")
        import generator.commands
        import generator.gallery
        import generator.ledger
        import generator.links

        yield generator


@pytest.fixture(scope="module")
def pages(generator):
    return generator.pages()


def test_links_lead_to_files_or_generated_pages(pages):
    for name, text in pages.items():
        folder = posixpath.dirname(f"docs/generated/{name}")
        for target in re.findall(r"\]\(([^)\s#]+)", text):
            path = posixpath.normpath(posixpath.join(folder, target))
            found = path.removeprefix("docs/generated/") in pages or (ROOT / path).is_file()
            assert found or target.startswith("https:"), (name, target)


def test_links_to_sources_become_links_to_pages(generator, pages):
    rows = "../trainers/reproduce/rows"
    for target, page in (
        (f"{rows}/quick.toml", "ledger/quick"),
        (rows, "ledger/index"),
        ("../examples/README.md", "gallery/index"),
        ("../examples/first_steps.ipynb", "gallery/first_steps"),
        ("../trainers/sweep.py", "commands/sweep"),
        ("../trainers/card/__main__.py", "commands/card"),
        ("../trainers", "commands/index"),
        ("../benchmarks/results/curvature_sweep.csv", "curvature-cases"),
    ):
        assert (ROOT / "docs" / target).exists()
        assert f"{page}.md" in pages
        assert generator.links.to_pages(f"[a]({target}), [b](fast.md)") == f"[a](generated/{page}.md), [b](fast.md)"
        assert generator.links.to_pages(f"[a](../{target})") == f"[a](../generated/{page}.md)"
    # Every row and example that a page of docs/ names has a page.
    for path in (ROOT / "docs").glob("*/*.md"):
        for name in re.findall(r"\]\(\.\./generated/([^)]+)\)", generator.links.to_pages(path.read_text())):
            assert name in pages, (path.name, name)


def test_the_index_links_every_page():
    docs = ROOT / "docs"
    text = (docs / "index.md").read_text()
    links = set(re.findall(r"\]\(([^)\s]+)\.md\)", text))
    toctrees = set("\n".join(re.findall(r"^```{toctree}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)).split())
    for folder in ("tutorials", "howto", "explanation", "reference"):
        pages = {path.relative_to(docs).with_suffix("").as_posix() for path in (docs / folder).rglob("*.md")}
        assert pages
        assert pages <= links, pages - links
        if folder in ("tutorials", "howto", "explanation"):
            assert pages <= toctrees, pages - toctrees


def test_no_line_of_a_page_is_a_comment():
    """MyST drops a line that starts with a percent sign, also within a paragraph."""
    for path in [ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md", *(ROOT / "docs").rglob("*.md")]:
        assert not re.search(r"^\s*%", path.read_text(), re.MULTILINE), path


def test_command_lines_have_a_page_with_every_option(generator, pages):
    scripts = generator.commands.programs()
    assert scripts["idmatters-cifar"] == "trainers.cifar"
    assert scripts["idmatters-shortcuts"] == "trainers.shortcuts.__main__"
    assert {name for name in pages if name.startswith("commands/")} == {
        "commands/index.md",
        *(f"commands/{script.removeprefix('idmatters-')}.md" for script in scripts),
    }
    for script, name in scripts.items():
        text = pages[f"commands/{script.removeprefix('idmatters-')}.md"]
        assert f"[{script}](" in pages["commands/index.md"]
        module = importlib.import_module(name)
        commands = [module.parser(command) for command in getattr(module, "COMMANDS", ())]
        listed = re.findall(r"^\| `([^`]*)` \|", text, re.MULTILINE)
        for parser in commands or [module.parser()]:
            for action in parser._actions:
                flags = ", ".join(action.option_strings)
                expected = rf"{re.escape(flags)}( .*)?" if flags else rf"\[?{re.escape(action.metavar)}.*"
                assert any(re.fullmatch(expected, cell) for cell in listed), (script, expected)
        # No table is broken by a bar in a cell, and no cell repeats its default.
        for line in re.findall(r"^\| .*$", text, re.MULTILINE):
            assert len(re.findall(r"(?<!\\)\|", line)) == 4, line
            assert "(default:" not in line, line
        assert "## Examples\n\n```text\npython -m trainers." in text
        assert "## Exit codes\n\n- 0 " in text


def test_a_page_of_a_command_line_has_defaults_choices_and_groups(pages):
    text = pages["commands/cifar.md"]
    for part in (
        "# idmatters-cifar\n",
        "```text\npython -m trainers.cifar [OPTIONS]\n```",
        "\n## Recipe\n\n| option | description | default |\n|---|---|---|\n| `--steps N` |",
        " | 60000 |\n",
        "| `--blocks N [N ...]` |",
        "One of `identity`, `standard`, `fixup`. | identity |\n",
        "| `--nesterov, --no-nesterov` | use Nesterov momentum |  |\n",
        "| no clipping |\n",
    ):
        assert part in text, part
    assert "| `-- PROGRAM ...` |" in pages["commands/sweep.md"]


def test_only_changed_pages_are_written(generator, tmp_path, monkeypatch):
    found = {"ledger/a.md": "one", "b.md": "two"}
    monkeypatch.setattr(generator, "pages", lambda: dict(found))
    generator.write_pages(tmp_path)
    before = (tmp_path / "b.md").stat().st_mtime_ns
    found["ledger/a.md"] = "other"
    (tmp_path / "ledger" / "removed.md").touch()
    generator.write_pages(tmp_path)
    assert {path.relative_to(tmp_path).as_posix(): path.read_text() for path in tmp_path.rglob("*.md")} == found
    assert (tmp_path / "b.md").stat().st_mtime_ns == before


def test_a_page_of_the_ledger_has_what_its_row_records(generator):
    error = Number("error", decimal.Decimal("6.4"), "%", decimal.Decimal("0.5"), file="result.json", key="error")
    other = Row("other", 2, "Other")
    row = Row(
        "row",
        1,
        "A | B",
        paper="Li et al.",
        commands=("trainers.cifar --preset quick --steps 70 --data-dir DATA --out OUT",),
        rests_on=("other",),
        seeds=(3,),
        measured="error {error}, see [it](row:other) and [fast](fast.md)",
        date="2026-01-02",
        numbers=(error,),
    )
    text = generator.ledger.page(row, {"row": row, "other": other})
    for part in (
        "# A | B (Li et al.)\n",
        "Measured: error 6.4 %, see [it](other.md) and [fast](../../fast.md).\n",
        "python -m trainers.reproduce row --data-dir DATA\n",
        "python -m trainers.cifar --preset quick --steps 70 --data-dir DATA --out runs/reproduce/row\n",
        "This result depends on [Other](other.md).",
        "| seed | 3 |\n",
        "| date | 2026-01-02 |\n",
        "| error | 6.4 % | 0.5 % | `result.json`, `error` |\n",
        "| `steps` | 70 | 60000 |\n",
    ):
        assert part in text
    with pytest.raises(UsageError, match="unknown number 'loss'"):
        generator.ledger.page(dataclasses.replace(row, measured="{loss}"), {"row": row, "other": other})


def test_the_tables_of_the_ledger_have_every_row_once(pages):
    names = [path.stem for path in (ROOT / "trainers" / "reproduce" / "rows").glob("*.toml")]
    tables = re.findall(r"^\| \[.*?\]\(([\w-]+)\.md\)", pages["ledger/index.md"], re.MULTILINE)
    assert sorted(tables) == sorted(names)
    for name in names:
        assert f"ledger/{name}.md" in pages


def test_the_gallery_has_every_example_with_its_output(generator, pages):
    examples = {path.stem: path for path in (ROOT / "examples").iterdir() if path.suffix in (".py", ".ipynb")}
    assert {name for name in pages if name.startswith("gallery/")} == {
        "gallery/index.md",
        *(f"gallery/{name}.md" for name in set(examples) - {"quiet"}),
    }
    for name in generator.gallery.GALLERY:
        page = pages[f"gallery/{name}.md"]
        assert f":link: {name}\n" in pages["gallery/index.md"]
        # The recorded commands are valid.
        for words in re.findall(rf"^\$ python examples/{name}\.py(.*)$", page, re.MULTILINE):
            options = {word for word in words.split() if word.startswith("--")}
            assert all(f'"{option}"' in examples[name].read_text() for option in options), words


def test_an_example_without_a_record_shows_its_commands(generator, tmp_path, monkeypatch):
    monkeypatch.setattr(generator.gallery, "RECORDED", tmp_path)
    text = generator.gallery.page("draw_shapes")
    assert "```text\n$ python examples/draw_shapes.py\n```" in text
    assert "No output has been recorded yet." in text
    recorded = {"date": "2026-01-02", "hardware": "h", "versions": "v", "output": ["one", "two"]}
    (tmp_path / "draw_shapes.json").write_text(json.dumps(recorded))
    text = generator.gallery.page("draw_shapes")
    assert "```text\none\ntwo\n```\n\n*Recorded on 2026-01-02 on h; v.*" in text
    assert "../../gallery/draw_shapes-shapes.png" in text
