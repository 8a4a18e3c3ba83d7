"""Commands and Python blocks of README.md, docs/ and --help: parsed, or run on little data."""

import importlib
import re
import shlex

import pytest

from tests.conftest import ROOT
from tests.support.images import make_tree
from tests.support.processes import run_steps
from trainers.cli.settings import parse, with_defaults
from trainers.reproduce.rows import format_commands, load

PAGES = [
    ROOT / "README.md",
    *(page for page in sorted(ROOT.glob("docs/**/*.md")) if not {"generated", "experiments"} & {*page.parts}),
    ROOT / "CONTRIBUTING.md",
]
PAGES += [ROOT / folder / "README.md" for folder in ("benchmarks", "examples")]
START, OWN_IMAGES = ROOT / "docs/tutorials/start.md", ROOT / "docs/tutorials/own_images.md"
# Pages whose training commands are run on little data. Their Python blocks use the results.
TRAINING_PAGES = [START, OWN_IMAGES, ROOT / "docs/howto/imagenet.md", ROOT / "docs/reference/networks.md"]
# Pages whose blocks run in slow tests only. README.md has short forms of the last two.
SLOW = ("fine_tuning", "own_images", "imagenet", "networks", "block_distances", "hessian_spectrum", "deepen")
# Pages whose blocks run one by one.
ALONE = ("README.md", "resume.md")
PROGRAMS = ("cifar", "imagenet", "launch", "report", "landscape.__main__", "shortcuts.__main__")
PROGRAMS += ("expressivity.__main__", "reproduce.__main__", "card.__main__")
# NAME, COMMAND, N and ... stand for something else, $ for a variable of the shell.
PLACEHOLDER = re.compile(r"\bNAME|\bCOMMAND|\bN\b|\.\.\.|\$")
# The networks of the papers' size are only parsed.
LARGE = {
    ("trainers.cifar", "--dataset", "cifar10"),
    ("trainers.cifar", "--preset", "fast", "--dataset", "cifar10"),
    ("trainers.imagenet", "--data-dir", "ILSVRC2012"),
    ("trainers.imagenet", "--preset", "fast", "--data-dir", "imagenette"),
}
SMALL = {
    "trainers.cifar": "--dataset shapes --train-images 64 --test-images 32 --batch-size 8 --steps 4 --drop-steps 2 "
    "--evaluate-every 4 --checkpoint-every 4",
    "trainers.imagenet": "--data-dir photos --batch-size 4 --steps 4 --evaluate-every 4 --checkpoint-every 4 "
    "--size 24 --blocks 1 1 --stem 4 --widths 4 8",
}
# Small networks for commands that have an option of the network.
SMALL_NETWORKS = {"--widths": "--blocks 1 --stem 4 --widths 4 8", "--depth": "--depth 8"}


def blocks(page):
    """Return (language, text) of each fenced block of a page. The language is empty if none is given."""
    return re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def parameters(pages):
    """Return the pages as parameters of a test, those of slow tests with their mark."""
    return [pytest.param(page, marks=[pytest.mark.slow] * (page.stem in SLOW), id=page.stem) for page in pages]


def python_blocks(page):
    """Return the Python blocks of a page."""
    return [text for language, text in blocks(page) if language == "python"]


def words_of(command):
    """Return the words of a command line behind `python -m`, without the comment."""
    command = command.replace("\\\n", " ").split(" && ")[0]
    # The end of sh -c '...'.
    if command.count("'") % 2:
        command = command.rstrip().removesuffix("'")
    return tuple(shlex.split(command, comments=True)[2:])


def fenced_commands(page):
    """Return the commands `python -m trainers.NAME ...` in the fenced blocks of a page."""
    text = "".join(text for language, text in blocks(page) if language != "python").replace("\\\n", " ")
    return [words_of(command) for command in re.findall(r"\bpython -m trainers\..*", text)]


def inline_commands(page):
    """Return the commands between backticks that have options."""
    return [words_of(command) for command in re.findall(r"`(python -m trainers\.\w+\s[^`]*)`", page.read_text())]


def examples(program):
    """Return the commands in the help of a program."""
    module = importlib.import_module(f"trainers.{program}")
    lines = re.findall(r"^  (python -m trainers\..*)", re.sub(r"\\\n\s*", " ", module.EXAMPLES), re.MULTILINE)
    return [words_of(re.split(r"\s{3,}", line)[0]) for line in lines]


def all_commands():
    found = {}
    for page in PAGES:
        for words in (*fenced_commands(page), *inline_commands(page)):
            found.setdefault(words, str(page.relative_to(ROOT)))
    for row in load().values():
        for words in map(words_of, format_commands(row)):
            if words[0].startswith("trainers."):
                found.setdefault(words, f"rows/{row.name}.toml")
    for program in PROGRAMS:
        for words in examples(program):
            found.setdefault(words, f"trainers.{program} --help")
    return {words: where for words, where in found.items() if not PLACEHOLDER.search(" ".join(words))}


def check(words):
    """Parse a command and check its settings. Raise UsageError or SystemExit if they are wrong."""
    name, *argv = words
    program = name.removeprefix("trainers.")
    module = importlib.import_module(name)
    if program in ("cifar", "imagenet"):
        command, typed = module.PROGRAM.split(parse(module.parser(), argv))
        module.PROGRAM.resolve(command.preset, typed)
    elif program == "launch":
        own, (_, inner, *rest) = argv[: argv.index("--")], argv[argv.index("--") :]
        module.parser().parse_args([*own, "--", inner, *rest])
        check((f"trainers.{inner}", *rest))
    elif program in ("report",):
        module.parser().parse_args(argv)
    else:
        module = importlib.import_module(f"{name}.__main__")
        if program == "shortcuts":
            from trainers.shortcuts.settings import COMMANDS

            if argv:
                with_defaults(COMMANDS[argv[0]], parse(module.parser(argv[0]), argv[1:]))
        else:
            with_defaults(module.Settings, parse(module.parser(), argv))


@pytest.mark.parametrize(("words", "where"), list(all_commands().items()), ids=lambda value: str(value)[:60])
def test_commands_are_accepted(words, where):
    check([word for word in words if word not in ("--help", "--help-all")])


def test_commands_are_found():
    found = all_commands()
    assert len(found) > 30
    assert ("trainers.cifar", "--dataset", "cifar10") in found
    with pytest.raises(Exception, match="stem"):
        check(("trainers.imagenet", "--blocks", "1", "1", "--stem", "64", "--widths", "32", "64"))


def is_option(flag, source):
    """Return True if a script's source names an option, or a setting that it makes an option of."""
    return f'"{flag}"' in source or f'"{flag[2:].replace("-", "_")}"' in source


def test_scripts_and_their_options_exist():
    """Commands `python examples/...` and `python benchmarks/...`, which other tests run with other options."""
    shared = "".join(path.read_text() for path in ROOT.glob("benchmarks/harness/*.py"))
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    found = set()
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        for script, options in re.findall(r"\bpython ((?:examples|benchmarks|docs)/[\w/]+\.py)([^`\n|#)]*)", text):
            found.add(script)
            assert (ROOT / script).is_file(), f"{page}: {script}"
            source = (ROOT / script).read_text() + shared
            unknown = [each for each in re.findall(r"(?<!\S)\[?(--[\w-]+)", options) if not is_option(each, source)]
            assert not unknown, f"{page}: {script} {unknown}"
        assert set(re.findall(r"(?:^|`)make ([a-z]+)", text, re.MULTILINE)) <= targets, page
    assert len(found) > 12


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        name, _, heading = target.partition("#")
        if target.startswith(("http:", "https:")):
            continue
        file = page.parent / name if name else page
        assert file.exists(), target
        if heading:
            titles = re.findall(r"^#+ (.*)", file.read_text(), re.MULTILINE)
            assert heading in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}, target


def in_small(words):
    """Return a training command on little data."""
    name, *argv = words
    if name not in SMALL or {"--evaluate", "--export-only", "--resume"} & set(argv):
        return [name, argv]
    small = SMALL[name].removeprefix("--dataset shapes ") if "folder-in-memory" in argv else SMALL[name]
    network = [words for option, words in SMALL_NETWORKS.items() if option in argv and name == "trainers.cifar"]
    return [name, [*argv, *shlex.split(" ".join([small, *network]))]]


# Runs a script in a folder. Every `fit` in it ends after `killed_after` batches; `trained` counts its batches.
RESUME = """
import os
import keras

killed_after = trained = 0
original = keras.Model.fit

class Killed(Exception):
    pass

class Watch(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        global trained
        trained += 1
        if trained == killed_after:
            raise Killed

def watched(self, *data, callbacks=(), **options):
    return original(self, *data, callbacks=[*callbacks, Watch()], **{**options, "verbose": 0})

def result(script, folder, kill=0):
    global killed_after, trained
    killed_after, trained = kill, 0
    os.chdir(folder)
    names = {"__name__": "__main__"}
    try:
        exec(compile(script, "script", "exec"), names)
    except Killed:
        return None
    model = names["model"]
    values = [*model.variables, *model.optimizer.variables]
    return names["history"].history, [keras.ops.convert_to_numpy(each).tobytes() for each in values]

keras.Model.fit = watched
"""


def test_readme_runs(tmp_path):
    """Each Python block of README.md runs by itself: its names are not those of another block."""
    scripts = python_blocks(ROOT / "README.md")
    assert len(scripts) == 4
    run_steps([["script", script] for script in scripts], tmp_path)


def steps_of(page, slow):
    """Return the Python blocks and the training commands of a page in their order, on little data.

    Without `slow` no command of the pages runs: `test_commands_are_accepted` parses every command, and trainings of
    each kind have tests of their own.
    """
    steps = []
    runnable = ("trainers.cifar", "trainers.imagenet", "trainers.report") if slow else ()
    text = page.read_text()
    in_the_ci_block = text.split("<!-- ci: run -->")[1].split("```")[1] if page == START else ""
    for language, block in blocks(page):
        if language == "python":
            block = block if slow else block.replace("shapes.load(4000, 1000)", "shapes.load(400, 100)")
            steps.append(["python", block])
            continue
        for command in re.findall(r"^python -m trainers\..*", block, re.MULTILINE):
            words = words_of(command)
            if words[0] in runnable and words not in LARGE and command not in in_the_ci_block:
                steps.append(["program", *in_small(words)])
    return steps


@pytest.mark.parametrize("page", parameters(TRAINING_PAGES))
def test_pages_with_training_run(page, tmp_path, slow):
    steps = steps_of(page, slow)
    if page == START:
        # `make train`, and the network of the last block learns visibly.
        quick = shlex.split("--preset quick --steps 2 --batch-size 16 --train-images 50 --test-images 50")
        learned = "history.history['loss'][-1] < 0.98 * history.history['loss'][0]"
        learned = "history.history['val_accuracy'][-1] > 0.5" if slow else learned
        steps = [["program", "trainers.cifar", quick], *steps, ["python", f"assert {learned}, history.history"]]
    elif page != OWN_IMAGES:
        make_tree(tmp_path / "photos")
    run_steps(steps, tmp_path)


def test_both_programs_have_the_same_options():
    cifar, imagenet = (
        {
            flag
            for action in importlib.import_module(f"trainers.{name}").parser()._actions
            for flag in action.option_strings
        }
        for name in ("cifar", "imagenet")
    )
    assert cifar == imagenet
    assert len(cifar) > 70


@pytest.mark.parametrize(
    "page",
    parameters(page for page in PAGES if python_blocks(page) and page not in TRAINING_PAGES and page.name not in ALONE),
)
def test_python_blocks_run(page, tmp_path):
    if page.stem == "jax":
        pytest.importorskip("jax")
    (tmp_path / "model_cards").symlink_to(ROOT / "model_cards")
    # The tutorial on fine-tuning, on less data.
    steps = [
        ["python", block.replace("shapes.load(1000, 500)", "shapes.load(40, 20)")] for block in python_blocks(page)
    ]
    run_steps(steps, tmp_path, "jax" if page.stem == "jax" else "tensorflow")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_scripts_of_the_page_on_resume(backend, tmp_path):
    """Each script, ended in its second epoch and started again, gives the numbers of an uninterrupted run."""
    if backend == "jax":
        pytest.importorskip("jax")
        pytest.importorskip("grain")
    scripts = [
        each for each in python_blocks(ROOT / "docs/howto/resume.md") if ("import grain" in each) == (backend == "jax")
    ]
    assert scripts
    steps = [["python", RESUME]]
    for number, script in enumerate(scripts):
        killed, whole = (tmp_path / f"{number}-{name}" for name in ("killed", "whole"))
        for folder in (killed, whole):
            make_tree(folder / "photos", classes=2, each=6)
        resumed = f"resumed, rest = result({script!r}, {str(killed)!r}), trained"
        steps += [
            ["python", f"expected, batches = result({script!r}, {str(whole)!r}), trained"],
            ["python", f"assert result({script!r}, {str(killed)!r}, kill=batches * 5 // 8) is None"],
            ["python", f"{resumed}\nassert 0 < rest < batches // 2 + 1, (rest, batches)\nassert resumed == expected"],
        ]
    run_steps(steps, tmp_path, backend)
