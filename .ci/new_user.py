"""Follow the documentation as a new user: install the wheel, run README, all pages and examples, look at the site.

    .venv/bin/python .ci/new_user.py --screenshots build/seen        everything, in fresh environments (network needed)
    .venv/bin/python .ci/new_user.py --only pages --packages-of .venv      one part, with the packages of .venv
    python3 .ci/new_user.py --packages-of .venv --quick runs/quick --wheel dist/NAME.whl        the short form, for CI

The parts:

start     install the wheel, train the quick preset, run README's commands, load the exports, query TensorBoard
pages     run the Python blocks of README.md and of all pages in docs/
examples  run all examples, with small options where they have them
screens   TensorBoard and all pages of the site (build/site) in Chromium, 1,400 and 390 pixels wide

The commands run in a folder that is not the checkout and contains other packages called `models` and `trainers`. They
use the console scripts of the wheel. Exit code 1 if anything fails.
"""

import argparse
import concurrent.futures
import contextlib
import functools
import json
import pathlib
import re
import shlex
import shutil
import subprocess
import tempfile
import time
import urllib.request

import browser
from machine import ROOT, Machine, build_wheel, step

PARTS = ("start", "pages", "examples", "screens")
PACKAGES = ("idmatters_tf", "trainers")
WITHOUT_THE_PACKAGE = f"""
import importlib.util
found = [name for name in {PACKAGES} if importlib.util.find_spec(name)]
assert not found, f"{{found}} can be imported here"
"""
# Pages whose Python blocks are scripts of their own. On other pages blocks may continue the ones above.
SCRIPTS = ("README.md", "resume.md")
# Writes photos/SPLIT/CLASS/NUMBER.png.
PHOTOS = """
import keras, pathlib
from idmatters_tf.data import shapes
data = shapes.load(60, 30)
for split in ("train", "val"):
    images, labels = (getattr(data, f"{split.replace('val', 'test')}_{kind}") for kind in ("images", "labels"))
    for number, (image, label) in enumerate(zip(images, labels)):
        folder = pathlib.Path("photos", split, f"class{label % 3}")
        folder.mkdir(parents=True, exist_ok=True)
        keras.utils.save_img(folder / f"{number}.png", image, scale=False)
"""
# Small options of the examples. Others run without options.
SMALL = {
    "cifar_with_fit": "--preset quick --blocks 1 --stem 4 --widths 4 8 --batch-size 16 --steps 4 --evaluate-every 4",
    "curvature_of_your_model": "--epochs 1 --images 60",
    "deepen_a_trained_model": "--epochs 1 --images 100",
    "edge_of_stability": "--images 20 --steps 4 --every 2 --networks identity",
    "factorize_a_matrix": "--depths 4 50",
    "isometry_against_depth": "--depths 1 --kinds fixup --widths 2 2 2 --images 64 --steps 2",
    "layers_in_your_model": "--epochs 1 --images 300",
    "resume_your_fit": "--epochs 1 --images 640",
    "watch_training": "--epochs 1 --images 128",
}


@functools.cache
def pages():
    """Return the text of README.md and of each page in docs/, README.md and tutorials first."""
    found = [path for path in sorted(ROOT.glob("docs/**/*.md")) if "generated" not in path.parts]
    found.sort(key=lambda path: path.parent.name != "tutorials")
    return {path: path.read_text() for path in (ROOT / "README.md", *found)}


def fenced(text):
    """Return (language, code) of the fenced blocks of a page."""
    return re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def first_block_with(word):
    """Return the first Python block in README.md or docs/ that contains a word."""
    found = (code for text in pages().values() for language, code in fenced(text) if language == "python")
    return next(code for code in found if word in code)


def commands():
    """Return the commands of the block marked with `ci: run`, with the programs as console scripts."""
    blocks = (re.search(r"<!-- ci: run -->\n+```\n(.*?)```", text, re.DOTALL) for text in pages().values())
    found = next(filter(None, blocks), None)
    lines = as_scripts(found[1] if found else "").splitlines()
    assert len(lines) > 5, "neither README.md nor docs/ has a block of commands behind <!-- ci: run -->"
    return lines


def as_scripts(text):
    """Return commands with `python -m trainers.NAME` replaced by `idmatters-NAME`."""
    return re.sub(r"python -m trainers\.(\w+)", r"idmatters-\1", text)


def fill_home(user):
    """Copy the scripts and weights of the repository into the user's folder, and create packages named like ours."""
    for name in ("examples", "benchmarks", "model_cards"):
        shutil.copytree(ROOT / name, user.folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("models", "trainers"):
        (user.folder / name).mkdir()
        (user.folder / name / "__init__.py").write_text("raise ImportError('the user\\'s own package')\n")


def check_installation(user):
    """Check that the programs and data files are those of the wheel."""
    version = user.run("idmatters-cifar", "--version")
    assert "environment" in version, version
    assert "theorem-3-2" in user.run("idmatters-reproduce", "--list")


def check_exports(user, server, run):
    """Check that the Keras file, and the SavedModel without the package, return the same class names."""
    with_keras, with_tensorflow = first_block_with("runs/quick/model.keras"), first_block_with("runs/quick/saved_model")
    of_keras = user.run_block(f"{with_keras}\nimport numpy\nnumpy.save('images.npy', images)")
    shutil.copytree(run / "saved_model", server.folder / "runs/quick/saved_model")
    shutil.copy(user.folder / "images.npy", server.folder)
    read = "import numpy\nimages = numpy.load('images.npy')\n"
    of_tensorflow = server.run_block(WITHOUT_THE_PACKAGE + read + with_tensorflow)
    names = [re.findall(r"'([\w ]+)'", text) for text in (of_keras, of_tensorflow)]
    assert len(names[0]) == 5, of_keras
    assert names[0] == names[1], f"{of_keras} is not {of_tensorflow}"


@contextlib.contextmanager
def tensorboard(user, folder):
    """Start TensorBoard for the user's runs and yield its address."""
    with open(folder / "tensorboard.log", "w+") as log:
        # Not the command `tensorboard`, which may be the lender's.
        command = [user.python, "-m", "tensorboard.main", "--logdir", "runs", "--host", "localhost", "--port", "0"]
        process = subprocess.Popen(command, cwd=user.folder, env=user.variables, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 120
            while not (found := re.search(r"http://localhost:\d+", (folder / "tensorboard.log").read_text())):
                assert process.poll() is None, (folder / "tensorboard.log").read_text()
                assert time.monotonic() < deadline, "TensorBoard prints no address"
                time.sleep(0.1)
            yield found[0]
        finally:
            process.terminate()
            process.wait()


def check_tensorboard(address):
    """Check that TensorBoard has both errors from step 0 on in one chart, the augmented images, and the settings."""

    def ask(path, body=None):
        request = urllib.request.Request(f"{address}/data/{path}", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    deadline = time.monotonic() + 60
    while "quick/events/test" not in (tags := ask("plugin/scalars/tags")) and time.monotonic() < deadline:
        time.sleep(0.5)
    for run in ("quick/events/train", "quick/events/test"):
        assert {"loss", "top1_error"} <= set(tags.get(run, {})), tags
    points = ask("plugin/scalars/scalars?tag=top1_error&run=quick/events/test")
    assert points[0][1] == 0, points
    assert "training_images" in ask("plugin/images/tags")["quick/events"]
    experiment = ask("plugin/hparams/experiment", b"{}")
    columns = {info["name"] for info in experiment["hparamInfos"]}
    assert {"dataset", "learning_rate", "seed"} <= columns, columns


def follow_readme(user, server, run, folder):
    """Run README's commands, and beside them check the exports and TensorBoard."""
    given = shutil.copytree(run, folder / "given")

    def beside():
        with step("exports in processes of their own, without the package"):
            check_exports(user, server, given)
        with tensorboard(user, folder) as address, step("TensorBoard answers"):
            check_tensorboard(address)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        other = pool.submit(beside)
        for command in commands():
            with step(command):
                user.run(*shlex.split(command))
        other.result()


def page_steps(path, text):
    """Return ("python", code) and ("command", line) in the order of a page.

    Only commands that write a run which a later block reads are included, other than the quick run.
    """
    steps = []
    blocks = fenced(text)
    for place, (language, block) in enumerate(blocks):
        if language == "python":
            continued = steps and steps[-1][0] == "python" and path.name not in SCRIPTS
            steps.append(("python", f"{steps.pop()[1] if continued else ''}{block}"))
            continue
        later = "".join(code for kind, code in blocks[place + 1 :] if kind == "python")
        for line in re.findall(r"^python -m trainers\..*--out (?:.*)", block, re.MULTILINE):
            out = re.search(r"--out (\S+)", line)
            if out and out[1] != "runs/quick" and f'"{out[1]}' in later:
                steps.append(("command", as_scripts(line)))
    return steps


def run_page(path, text, user, jax, run):
    """Run the Python blocks of a page in a folder of its own."""
    folder = user.folder / "pages" / path.stem
    folder.mkdir(parents=True)
    (folder / "model_cards").symlink_to(user.folder / "model_cards")
    if run is not None:
        shutil.copytree(run, folder / "runs/quick")
    if '"photos' in text and "save_img" not in text:
        user.run_block(PHOTOS, folder=folder)
    for kind, code in page_steps(path, text):
        if kind == "command":
            user.run(*shlex.split(code, comments=True), folder=folder)
        elif path.stem == "jax" or "import grain" in code:
            if jax is not None:
                jax.run_block(code, folder=folder, KERAS_BACKEND="jax", JAX_PLATFORMS="cpu")
        else:
            user.run_block(code, folder=folder)


def run_pages(user, jax, run, match):
    """Run the Python blocks of all pages whose path contains `match`. SystemExit lists the pages that failed."""
    failed = []
    for path, text in pages().items():
        if match in str(path.relative_to(ROOT)) and page_steps(path, text):
            with step(f"{path.relative_to(ROOT)}"):
                try:
                    run_page(path, text, user, jax, run)
                except SystemExit as error:
                    failed.append(f"{path.relative_to(ROOT)}: {error}")
    if failed:
        raise SystemExit("\n".join(failed))


def run_examples(user, run, match):
    """Run all examples whose path contains `match` in the user's folder. SystemExit lists those that failed."""
    if run is not None and not (user.folder / "runs/quick").exists():
        shutil.copytree(run, user.folder / "runs/quick")
    failed = []
    for path in sorted((user.folder / "examples").iterdir()):
        is_example = path.suffix in (".py", ".ipynb") and path.stem != "quiet"
        if not is_example or match not in f"examples/{path.name}":
            continue
        options = SMALL.get(path.stem, "")
        with step(f"examples/{path.name} {options}"):
            try:
                if path.suffix == ".py":
                    said = user.run("python", f"examples/{path.name}", *options.split())
                    assert said.strip(), f"examples/{path.name} prints nothing"
                else:
                    cells = json.loads(path.read_text())["cells"]
                    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
                    user.run_block(code)
            except (AssertionError, SystemExit) as error:
                failed.append(f"examples/{path.name}: {error}")
    if failed:
        raise SystemExit("\n".join(failed))


def look(user, folder, keep):
    """Check TensorBoard and the site in Chromium, if there is one. Screenshots are saved in `keep`."""
    path, site = browser.find_chromium(), ROOT / "build/site"
    if path is None or keep is None:
        missing = "no Chromium found" if path is None else "no --screenshots given"
        print(f"TensorBoard and the site are not checked in a browser: {missing}")
        return
    keep.mkdir(parents=True, exist_ok=True)
    with browser.chromium(path) as headless:
        if user is not None and (user.folder / "runs").is_dir():
            with tensorboard(user, folder) as address, step(f"TensorBoard in Chromium: {keep}"):
                browser.check_tensorboard_pages(headless, address, keep)
        if (site / "index.html").is_file():
            with step(f"the site in Chromium: {keep}"):
                print(f"{browser.check_site(headless, site, keep)} pages, wide and narrow")


def run_parts(parts, options, folder):
    """Run the given parts with environments in a new folder."""
    short, user = options.packages_of is not None, None
    if parts != ["screens"]:
        lender = options.packages_of.absolute() if short else None
        with step("an environment with the wheel"):
            wheel = options.wheel.absolute() if options.wheel else build_wheel(folder)
            extras = re.search(r"pip install '\.(\[.*?\])'", pages()[ROOT / "README.md"])[1]
            user = Machine(folder / "user", [f"{wheel}{extras}"], lender, wheel)
            fill_home(user)
            check_installation(user)
        run = options.quick
        if run is None:
            with step("idmatters-cifar --preset quick"):
                user.run("idmatters-cifar", "--preset", "quick")
            run = shutil.copytree(user.folder / "runs/quick", folder / "quick")
        elif "start" in parts:
            shutil.copytree(run, user.folder / "runs/quick")
    if "start" in parts:
        best = json.loads((run / "result.json").read_text())["best_error"]
        assert best < 0.10, f"the quick preset should reach 90 % accuracy: {best}"
        with step("an environment with TensorFlow only"):
            server = Machine(folder / "server", ["tensorflow"], lender)
        follow_readme(user, server, user.folder / "runs/quick", folder)
        if not short:
            with step("without extras: the mathematics"):
                Machine(folder / "base", [wheel]).run_block(first_block_with("linear.factorize"))
    if "pages" in parts:
        with step("an environment with JAX"):
            jax = user if short else Machine(folder / "jax", [f"{wheel}[jax,grain]"])
            if not jax.has("jax"):
                print("the blocks that need JAX are not run: it is not installed")
                jax = None
        run_pages(user, jax, run, options.match)
    if "examples" in parts:
        run_examples(user, run, options.match)
    if "screens" in parts:
        look(user, folder, options.screenshots)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help="start, pages, examples or screens")
    parser.add_argument("--match", default="", metavar="TEXT", help="only pages and examples with TEXT in their path")
    parser.add_argument("--packages-of", type=pathlib.Path, metavar="VENV", help="use an environment's packages")
    parser.add_argument("--wheel", type=pathlib.Path, help="wheel of the package (default: built here)")
    parser.add_argument("--quick", type=pathlib.Path, metavar="RUN", help="run of the quick preset (default: trained)")
    parser.add_argument("--screenshots", type=pathlib.Path, metavar="DIR", help="check in Chromium, save screenshots")
    options = parser.parse_args()
    # Without --only, lent packages mean the short form.
    parts = options.only or (["start"] if options.packages_of else list(PARTS))
    with tempfile.TemporaryDirectory(prefix="new-user-") as name:
        run_parts(parts, options, pathlib.Path(name))


if __name__ == "__main__":
    main()
