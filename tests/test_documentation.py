"""Commands, links and Python blocks of README.md, docs/ and --help: parsed, or run on little data."""

import importlib
import importlib.util
import re
import shlex
import subprocess
import sys

import pytest

import idmatters_tf
from tests.conftest import ROOT
from tests.support.images import make_tree
from tests.support.processes import run_steps
from trainers.cli.settings import with_defaults
from trainers.reproduce.rows import format_commands, load

PAGES = [
    ROOT / "README.md",
    *(page for page in sorted(ROOT.glob("docs/**/*.md")) if not {"generated", "experiments"} & {*page.parts}),
    ROOT / "CONTRIBUTING.md",
    *(ROOT / folder / "README.md" for folder in ("benchmarks", "examples")),
]
# Pages whose blocks run in slow tests only. README.md has short forms of the last two, other pages of "scaled_depth".
SLOW = ("fine_tuning", "own_images", "resume", "resume_examples", "block_distances", "scaled_depth")
SLOW += ("hessian_spectrum", "deepen")
# Pages whose blocks do not use names of the blocks before them.
INDEPENDENT = ("README", "resume_examples")
# airbench's test errors.
RESULTS_OF_OTHERS = {"5.99", "4.00"}
# Settings that make the commands and blocks short.
SMALL = "--steps 4 --drop-steps 2 --batch-size 8 --train-images 50 --test-images 50"
SMALLER = {"shapes.load(4000, 1000)": "shapes.load(400, 100)", "shapes.load(1000, 500)": "shapes.load(40, 20)"}
SMALLER |= {"(2, 4, 8)": "(1, 2)", "seeds=3": "seeds=1", "shapes.load(32, 10)": "shapes.load(10, 10)"}
SMALLER |= {"size=(4096, 8)": "size=(64, 8)", "steps=200)": "steps=10)", "build(64)": "build(8)"}
SMALLER |= {"range(64)": "range(8)", "num_layers=3": "num_layers=2", "(32, 13)": "(8, 13)", "13, (32, 1)": "13, (8, 1)"}
PROGRAMS = ("cifar", "imagenet", "launch", "predict", "report", "landscape.__main__", "shortcuts.__main__")
PROGRAMS += ("expressivity", "reproduce.__main__")
# NAME, COMMAND, N and ... stand for something else, $ for a variable of the shell.
PLACEHOLDER = re.compile(r"\bNAME|\bCOMMAND|\bN\b|\.\.\.|\$")


def blocks(page):
    """Return (language, text) of each fenced block of a page. The language is empty if none is given."""
    return re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def words_of(command):
    """Return the words of a command line behind `python -m`, without the comment."""
    command = command.split(" && ")[0]
    # The end of sh -c '...'.
    if command.count("'") % 2:
        command = command.rstrip().removesuffix("'")
    return tuple(shlex.split(command, comments=True)[2:])


def commands_of(page):
    """Return the commands `python -m trainers.NAME ...` of a page in fenced blocks and between backticks."""
    fenced = "".join(text for language, text in blocks(page) if language != "python").replace("\\\n", " ")
    commands = re.findall(r"\bpython -m trainers\..*", fenced)
    return [*commands, *re.findall(r"`(python -m trainers\.\w+\s[^`]*)`", page.read_text())]


def examples(program):
    """Return the commands in the help of a program, without their descriptions."""
    module = importlib.import_module(f"trainers.{program}")
    lines = re.findall(r"^  (python -m trainers\..*)", re.sub(r"\\\n\s*", " ", module.EXAMPLES), re.MULTILINE)
    return [re.split(r"\s{3,}", line)[0] for line in lines]


def all_commands():
    """Return the place of each command by its words."""
    places = [(str(page.relative_to(ROOT)), commands_of(page)) for page in PAGES]
    places += [(f"rows/{row.name}.toml", format_commands(row)) for row in load().values()]
    places += [(f"trainers.{program} --help", examples(program)) for program in PROGRAMS]
    commands = {words_of(command): place for place, lines in places for command in lines}
    return {
        words: place
        for words, place in commands.items()
        if words and words[0].startswith("trainers.") and not PLACEHOLDER.search(" ".join(words))
    }


def check(words):
    """Parse a command and check its settings. Raise UsageError or SystemExit if they are wrong."""
    name, *argv = words
    program = name.removeprefix("trainers.")
    module = importlib.import_module(name)
    if program in ("cifar", "imagenet"):
        command, typed = module.PROGRAM.split(module.parser().parse(argv))
        module.PROGRAM.resolve(command.preset, typed)
    elif program == "launch":
        inner, *rest = [word for word in module.parser().parse_args(argv).command if word != "--"]
        if not inner.endswith(".py"):
            check((f"trainers.{inner}", *rest))
    elif program == "report":
        module.parser().parse_args(argv)
    else:
        module = module if program in ("predict", "expressivity") else importlib.import_module(f"{name}.__main__")
        settings = module.PROGRAM.settings if hasattr(module, "PROGRAM") else module.parser.args[-1]
        with_defaults(settings, module.parser().parse(argv))


@pytest.mark.parametrize(("words", "where"), list(all_commands().items()), ids=lambda value: str(value)[:60])
def test_commands_are_accepted(words, where):
    check([word for word in words if word not in ("--help", "--help-all")])


def is_option(flag, source):
    """Return True if a script's source names an option, or a setting that it makes an option of."""
    return f'"{flag}"' in source or f'"{flag[2:].replace("-", "_")}"' in source


def test_scripts_and_their_options_exist():
    shared = "".join(path.read_text() for path in ROOT.glob("benchmarks/harness/*.py"))
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    scripts = set()
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        for script, options in re.findall(r"\bpython ((?:examples|benchmarks|docs)/[\w/]+\.py)([^`\n|#)]*)", text):
            scripts.add(script)
            assert (ROOT / script).is_file(), f"{page}: {script}"
            source = (ROOT / script).read_text() + shared
            unknown = [flag for flag in re.findall(r"(?<!\S)\[?(--[\w-]+)", options) if not is_option(flag, source)]
            assert not unknown, f"{page}: {script} {unknown}"
        assert set(re.findall(r"(?:^|`)make ([a-z]+)", text, re.MULTILINE)) <= targets, page
    assert len(scripts) > 8


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_numbers_and_citations_of_a_page(page):
    whole = page.read_text()
    for target in re.findall(r"\]\(([^)\s]+)\)", whole):
        name, _, heading = target.partition("#")
        if target.startswith(("http:", "https:")):
            continue
        file = page.parent / name if name else page
        assert file.exists(), target
        if heading:
            titles = re.findall(r"^#+ (.*)", file.read_text(), re.MULTILINE)
            assert heading in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}, target
    # A line that starts with a percent sign is a comment of MyST, missing on the site.
    assert not re.findall(r"^\s*%.*", whole, re.MULTILINE)
    # A percentage with a decimal point is a result, and some row contains it, except for results of other projects.
    rows = "".join(path.read_text() for path in ROOT.glob("trainers/reproduce/rows/*.toml"))
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", whole, flags=re.MULTILINE | re.DOTALL)
    missing = set(re.findall(r"\b(\d+\.\d+) %", text)) - set(re.findall(r"\d+\.\d+", rows))
    assert missing <= RESULTS_OF_OTHERS
    lines = (ROOT / "docs/reference/bibliography.md").read_text().splitlines()
    for name, year in re.findall(r"\b([A-Z]\w+)(?: et al\.|(?:, \w+)* & \w+),? \(?(\d{4})\b", whole):
        assert any(re.match(rf"\| {name}\b[^|(]*\({year}\)", line) for line in lines), (name, year)


def test_broken_links_of_the_site_are_found(tmp_path):
    (tmp_path / "a.html").write_text('<a id="x" href="b.html#y">b</a> <a href="#x">x</a> <a href="https://c">c</a>')
    (tmp_path / "b.html").write_text('<p id="y">y</p>')
    check = [sys.executable, str(ROOT / ".ci" / "check_links.py"), str(tmp_path)]
    assert subprocess.run(check, check=False).returncode == 0
    (tmp_path / "b.html").write_text('<p>y</p> <img src="missing.png">')
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["a.html: b.html#y", "b.html: missing.png", "2 pages, 2 broken links"]
    assert done.returncode == 1


@pytest.fixture(scope="module")
def index():
    """Return the generator of the index of public names."""
    spec = importlib.util.spec_from_file_location("generator_api", ROOT / "docs/generator/api.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_index_of_public_names_is_current(index):
    assert index.INDEX.read_text() == index.text(), f"To update the index, run: {index.COMMAND}"


def test_public_names_are_documented(index):
    documented = {getattr(importlib.import_module(path), name) for _, path, name in index.documented_names()}
    for package in ("idmatters_tf", *(f"idmatters_tf.{name}" for name in idmatters_tf.__all__)):
        if importlib.util.find_spec(package):
            values = {name: getattr(importlib.import_module(package), name) for name in index.public_names(package)}
            assert not [name for name, value in values.items() if value not in documented], package


def python_steps(page):
    """Return the steps of a page: its Python blocks on little data, and the trainings whose results they use."""
    steps = []
    for language, text in blocks(page):
        if language == "python":
            for large, small in SMALLER.items():
                text = text.replace(large, small)
            steps.append(["script" if page.stem in INDEPENDENT else "python", text])
    if page.stem == "start":
        # `make train`, and the network of the last block learns.
        learned = "assert history.history['loss'][-1] < 0.98 * history.history['loss'][0], history.history"
        steps = [["program", "trainers.cifar", ["--preset", "quick", *SMALL.split()]], *steps, ["python", learned]]
    if page.stem == "own_images":
        name, *argv = words_of(commands_of(page)[0])
        steps.insert(1, ["program", name, [*argv, *SMALL.partition(" --train")[0].split()]])
    return steps


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] * (page.stem in SLOW), id=page.stem)
        for page in PAGES
        if python_steps(page)
    ],
)
def test_python_blocks_run(page, tmp_path):
    (tmp_path / "model_cards").symlink_to(ROOT / "model_cards")
    if page.stem == "resume_examples":
        make_tree(tmp_path / "photos", classes=2, each=6)
    steps = {"tensorflow": [], "jax": []}
    for step in python_steps(page):
        steps["jax" if page.stem == "jax" or "import grain" in step[1] else "tensorflow"].append(step)
    for backend, of_backend in steps.items():
        if backend == "jax" and of_backend:
            pytest.importorskip("jax")
            pytest.importorskip("grain")
        if of_backend:
            run_steps(of_backend, tmp_path, backend)
