"""Foreign objects at the paths of outputs: they are kept, and the program raises an error or ignores them.

The paths are taken from the programs' lists of outputs, the objects from `tests.support.occupants`.
"""

import pathlib
import random
import shutil
from collections.abc import Iterator

from tests.faults.bench import Bench
from tests.faults.tally import Tally
from tests.support.occupants import NO_FILES, NO_FOLDERS, NO_GROWING_FOLDERS, tree
from trainers import report
from trainers.card import __main__ as card
from trainers.experiments.results import output_names
from trainers.run import folder as run_folder

IN_THE_WAY = "foreign object at the path of an output file or folder"
BESIDE = "foreign files in a folder that a program replaces"
FORMATS = ("png", "svg", "pdf")


def _experiments() -> Iterator[tuple[list[str], list[str]]]:
    """Yield the command of each program of experiments and the names of its output files."""
    from trainers.expressivity.constructions import EXPERIMENT as CONSTRUCTIONS
    from trainers.landscape.experiments import EXPERIMENTS
    from trainers.shortcuts.experiments import EXPERIMENTS as COMMANDS
    from trainers.shortcuts.training_norms import EXPERIMENT

    yield ["trainers.landscape.__main__", "--dim", "2"], output_names(EXPERIMENTS, "png")
    for command, each in COMMANDS.items():
        yield ["trainers.shortcuts.__main__", command, "--dataset", "digits-like"], output_names([each], "png")
    yield ["trainers.shortcuts.__main__", "norms", "--runs", "RUN"], output_names([EXPERIMENT], "png")
    words = ["trainers.expressivity.__main__", "--dataset", "random", "--rows", "20", "--construction", "lookup"]
    yield words, output_names([CONSTRUCTIONS], "png")


def places() -> Iterator[tuple[list[str], str, list]]:
    """Yield the command of a program, a path in its output folder, and the foreign objects for this path.

    RUN stands for a run, OUT for the output folder.
    """
    files = {
        # The folder is that of an existing run, which requires its config.json.
        ("trainers.cifar", "--resume", "--out", "RUN"): [
            name for name in run_folder.FILES if name not in ("config.json", "result.json")
        ],
        ("trainers.cifar", "--export-only", "RUN", "--out", "OUT"): run_folder.EXPORTED_FILES,
        ("trainers.card.__main__", "RUN", "--no-measure", "--out", "OUT"): card.FILES,
        ("trainers.report", "RUN", "--html", "OUT/page.html"): ["page.html"],
    }
    for suffix in FORMATS:
        words = ("trainers.report", "RUN", "--format", suffix, "--out", "OUT")
        files[words] = [*report.FILES, f"comparison.{suffix}"]
    for words, names in _experiments():
        files[(*words, "--out", "OUT")] = [*run_folder.FILES, *names]
    for words, names in files.items():
        for name in names:
            yield list(words), name, NO_FILES
    for name in run_folder.EXPORTED_FOLDERS:
        for words in (("--resume", "--out", "RUN"), ("--export-only", "RUN", "--out", "OUT")):
            yield ["trainers.cifar", *words], name, NO_FOLDERS
    for name in run_folder.FOLDERS:
        yield ["trainers.cifar", "--resume", "--out", "RUN"], name, NO_GROWING_FOLDERS


def in_the_way(bench: Bench, chance: random.Random, most: int) -> Tally:
    """Occupy one of the paths. The program ends with exit code 2 and an error message and changes nothing."""
    words, name, occupants = chance.choice(list(places()))
    occupy = chance.choice(occupants)
    root, run, out = _prepared(bench, words)
    path = (run if words[-1] == "RUN" else out) / name
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    occupy(path)
    before = tree(root)
    code, said = _ended(bench, words, run, out)
    tally, lines = Tally(), [line for line in said.splitlines() if line.startswith("error: ")]
    good = code == 2 and len(lines) == 1 and "Traceback" not in said and tree(root) == before
    tally.count(IN_THE_WAY, 1, good, f"{words} {name} {occupy.__name__}: {code} {said}")
    return tally


def beside(bench: Bench, chance: random.Random, most: int) -> Tally:
    """Put foreign files into the folders of a run, its exports and its card, and write these again."""
    commands = [
        ["trainers.cifar", "--resume", "--out", "RUN"],
        ["trainers.cifar", "--export-only", "RUN"],
        ["trainers.card.__main__", "RUN", "--no-measure", "--out", "OUT"],
        ["trainers.report", "RUN", "--out", "OUT"],
    ]
    words = chance.choice(commands)
    root, run, out = _prepared(bench, words)
    if words[-1] == "OUT":
        code, said = _ended(bench, words, run, out)
        assert code == 0, said
    folders = [path for path in (out if words[-1] == "OUT" else run).rglob("*") if path.is_dir()]
    folders.append(out if words[-1] == "OUT" else run)
    foreign = {}
    for _ in range(chance.randrange(1, 4)):
        folder = chance.choice(folders)
        path = folder / chance.choice([".git", "notes", "step-00000007", ".replaced-saved_model", "damaged-x", "old"])
        path = path / "HEAD" if chance.random() < 0.5 else path.with_name(path.name + ".txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
        foreign[path.relative_to(root)] = path.read_bytes()
    before = tree(root)
    code, said = _ended(bench, words, run, out)
    kept = [path for path in root.rglob("*") if path.is_file() and path.read_bytes() == b"mine"]
    good = code == 0 or (code == 2 and tree(root) == before)
    # A foreign folder with the name of a checkpoint is renamed.
    good = good and len(kept) == len(foreign) and "Traceback" not in said
    tally = Tally()
    tally.count(BESIDE, 1, good, f"{words} {list(map(str, foreign))}: {code} {said}")
    return tally


def _prepared(bench: Bench, words: list[str]) -> tuple[pathlib.Path, pathlib.Path, pathlib.Path]:
    """Return the folder of a trial, a run in it, and an empty folder.

    The run is finished. For `--resume` it lacks its result and its last checkpoint.
    """
    root = bench.place("occupied")
    run, out = root / "run", root / "out"
    shutil.copytree(bench.whole.run, run)
    if "--resume" in words:
        (run / "result.json").unlink()
        shutil.rmtree(max((run / "checkpoints").glob("step-*")))
    out.mkdir()
    return root, run, out


def _ended(bench: Bench, words: list[str], run: pathlib.Path, out: pathlib.Path) -> tuple[int, str]:
    """Return exit code and output of a program."""
    filled = [word.replace("RUN", str(run)).replace("OUT", str(out)) for word in words]
    process = bench.start(*filled)
    return process.wait(), process.said()
