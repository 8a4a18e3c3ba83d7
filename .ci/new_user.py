"""Plays a new user: installs the wheel, follows README.md, looks at TensorBoard, and hands the exported models on.

    .venv/bin/python .ci/new_user.py --screenshots build/seen        all of it, in fresh environments: needs the network
    python3 .ci/new_user.py --packages-of .venv --quick runs/quick --wheel dist/NAME.whl        its short form, for CI

The user works in a folder that has packages named `models` and `trainers` already, with the console scripts of an
installed wheel; nothing is imported from the repository. The exports are loaded on "machines" that have no more than
what README.md says they need. Where there is a Chromium, TensorBoard and the site in build/site (if it has been built)
are looked at on wide and narrow screens, and --screenshots keeps what was seen. Exit code 1 where anything fails.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
START, CONCEPTS = ((ROOT / f"docs/{name}.md").read_text() for name in ("tutorials/start", "explanation/concepts"))
PACKAGES = ("idmatters_tf", "trainers")
WITHOUT_THE_PACKAGE = f"""
import importlib.util
found = [name for name in {PACKAGES} if importlib.util.find_spec(name)]
assert not found, f"{{found}} can be imported here"
"""
WIDE, NARROW = (1400, 1000), (390, 844)


class Machine:
    """A folder of somebody's with a Python environment.

    Args:
        folder: made here.
        requirements: what pip installs, unless the packages are lent.
        lender: an environment whose packages are lent; what is installed there in editable form is not.
        wheel: installed on top of lent packages.
    """

    def __init__(self, folder, requirements=(), lender=None, wheel=None):
        self.folder, self._environment = folder / "home", folder / "environment"
        self.folder.mkdir(parents=True)
        create = [sys.executable, "-m", "venv", str(self._environment)]
        if lender is None:
            checked([*create, "--upgrade-deps"])
            checked([self.python, "-m", "pip", "install", "--quiet", *map(str, requirements)])
            return
        lent_python = str(lender / "bin" / "python")
        create[0] = lent_python
        checked([*create, "--without-pip"])
        paths = "import sysconfig; print(sysconfig.get_path('purelib'))"
        own = checked([self.python, "-c", paths]).strip()
        # Files *.pth inside of a lent folder are not read: an editable installation stays where it is.
        pathlib.Path(own, "lent.pth").write_text(checked([lent_python, "-c", paths]))
        if wheel is not None:
            install = ["install", "--quiet", "--no-deps", "--ignore-installed", str(wheel)]
            checked([lent_python, "-m", "pip", "--python", self.python, *install])

    @property
    def python(self):
        return str(self._environment / "bin" / "python")

    @property
    def variables(self):
        hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
        kept = {name: value for name, value in os.environ.items() if name not in hidden}
        return {**kept, "PATH": f"{self._environment / 'bin'}{os.pathsep}{os.environ['PATH']}"}

    def run(self, *command):
        """What the command prints on standard output; it has to end with exit code 0."""
        # As a shell would find it: with the PATH of the environment.
        path = shutil.which(str(command[0]), path=self.variables["PATH"]) or command[0]
        return checked([path, *command[1:]], cwd=self.folder, env=self.variables)

    def run_block(self, code):
        """The same of a block of Python, in a script that lies elsewhere."""
        return self.run("python", "-P", "-c", code)


def checked(command, **keywords):
    """Standard output of a command that has to succeed."""
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, **keywords
    )
    if done.returncode:
        shown = shlex.join(map(str, command))[:500]
        raise SystemExit(
            f"{shown}\nended with exit code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
        )
    return done.stdout


@contextlib.contextmanager
def step(name):
    start = time.monotonic()
    yield
    print(f"{time.monotonic() - start:6.1f} s  {name}", flush=True)


def blocks_with(page, *words):
    """Return the Python blocks of a page that contain one of the words, or all of them if no word is given."""
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return [block for block in blocks if not words or any(word in block for word in words)]


def commands():
    """Return the commands of the first tutorial that need no data, with the programs as console scripts."""
    found = re.search(r"<!-- ci: run -->\n+```\n(.*?)```", START, re.DOTALL)
    lines = re.sub(r"python -m trainers\.(\w+)", r"idmatters-\1", found[1] if found else "").splitlines()
    assert len(lines) > 5, "docs/tutorials/start.md shows no commands to run"
    return lines


def build_wheel(folder):
    """A wheel of a copy of the repository, so that nothing is left in it."""
    ignored = shutil.ignore_patterns(".*", "build", "dist", "runs", "*.egg-info", "__pycache__")
    project = shutil.copytree(ROOT, folder / "project", ignore=ignored)
    checked([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder / "dist", project])
    return next((folder / "dist").glob("*.whl"))


def move_in(user):
    """What lies in the user's folder: the scripts of the repository, and packages of the same names as ours."""
    for name in ("examples", "benchmarks"):
        shutil.copytree(ROOT / name, user.folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("models", "trainers"):
        (user.folder / name).mkdir()
        (user.folder / name / "__init__.py").write_text("raise ImportError('the user\\'s own package')\n")


def check_installation(user):
    """The programs are those of the wheel, and its data files are there."""
    version = user.run("idmatters-cifar", "--version")
    assert "environment" in version, version
    assert "theorem-3-2" in user.run("idmatters-reproduce", "--list")


def check_exports(user, server, run):
    """Run the two blocks of the first tutorial, one with the package and one with TensorFlow alone: the same names."""
    (with_keras,), (with_tensorflow,) = blocks_with(START, "model.keras"), blocks_with(START, "saved_model")
    of_keras = user.run_block(with_keras)
    shutil.copytree(run / "saved_model", server.folder / "runs/quick/saved_model")
    shutil.copy(user.folder / "images.npy", server.folder)
    of_tensorflow = server.run_block(WITHOUT_THE_PACKAGE + with_tensorflow)
    names = [re.findall(r"'([\w ]+)'", text) for text in (of_keras, of_tensorflow)]
    assert len(names[0]) == 5, of_keras
    assert names[0] == names[1], f"{of_keras} is not {of_tensorflow}"


@contextlib.contextmanager
def tensorboard(user, folder):
    """The address of a TensorBoard of the user's runs."""
    with open(folder / "tensorboard.log", "w+") as log:
        # The command `tensorboard` belongs to the lender's environment.
        command = [user.python, "-m", "tensorboard.main", "--logdir", "runs", "--host", "localhost", "--port", "0"]
        process = subprocess.Popen(command, cwd=user.folder, env=user.variables, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 120
            while not (found := re.search(r"http://localhost:\d+", (folder / "tensorboard.log").read_text())):
                assert process.poll() is None, (folder / "tensorboard.log").read_text()
                assert time.monotonic() < deadline, "TensorBoard does not say where it listens"
                time.sleep(0.1)
            yield found[0]
        finally:
            process.terminate()
            process.wait()


def check_tensorboard(address):
    """Both errors from step 0 on in one chart, the augmented images, and the settings."""

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


def find_chromium():
    """Return the path of a Chromium, the environment's CHROMIUM or one of the usual names, or None."""
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next(filter(None, map(shutil.which, (os.environ.get("CHROMIUM", ""), *names))), None)


@contextlib.contextmanager
def chromium(path):
    """Open a headless browser that reaches this machine alone."""
    # With `make user`; the short form for CI does without.
    from playwright.sync_api import sync_playwright

    alone = "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE localhost , EXCLUDE 127.0.0.1"
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=path, args=[alone]) as browser:
        yield browser


@contextlib.contextmanager
def opened(browser, url, size, faults):
    """Open a page; errors of its scripts are added to `faults`."""
    width, height = size
    page = browser.new_page(viewport={"width": width, "height": height}, is_mobile=width < 600)
    page.set_default_timeout(60_000)
    page.on("pageerror", lambda error: faults.append(f"{url}: {error}"))
    page.goto(url)
    yield page
    page.close()


def look_at_tensorboard(browser, address, keep):
    """Take screenshots of three pages of TensorBoard once their curves, images and settings are shown."""
    faults = []
    drawn = "document.querySelectorAll('card-view tb-data-table-content-row').length >= 2"
    for name, fragment, texts, ready in (
        ("scalars", "timeseries", ("loss", "top1_error"), drawn),
        ("images", "images", ("training_images",), "true"),
        ("hparams", "hparams", ("best test error", "learning_rate"), "true"),
    ):
        with opened(browser, f"{address}/#{fragment}", WIDE, faults) as page:
            for text in texts:
                page.get_by_text(text).locator("visible=true").first.wait_for()
            page.wait_for_function(f"{ready} && !document.querySelector('mat-spinner')")
            # Curves and images are drawn a moment after they have been received.
            page.wait_for_timeout(2000)
            page.screenshot(path=keep / f"tensorboard-{name}.png")
    assert not faults, "\n".join(faults)


def look_at_site(browser, site, keep):
    """Check every page, wide and narrow: nothing is wider than the screen, no image is missing, no script fails."""
    pages = [path for path in sorted(site.rglob("*.html")) if not {"_modules", "_static"} & set(path.parts)]
    faults = []
    for path in pages:
        for name, size in (("wide", WIDE), ("narrow", NARROW)):
            with opened(browser, path.as_uri(), size, faults) as page:
                width = page.evaluate("document.documentElement.scrollWidth")
                if width > size[0]:
                    faults.append(f"{path.relative_to(site)} is {width} pixels wide on a screen of {size[0]}")
                missing = (
                    "[...document.images].filter(each => !each.naturalWidth).map(each => each.getAttribute('src'))"
                )
                faults += [f"{path.relative_to(site)}: {source} is missing" for source in page.evaluate(missing)]
                if path.parent == site:
                    page.screenshot(path=keep / f"site-{path.stem}-{name}.png")
    assert not faults, "\n".join(faults)
    return len(pages)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packages-of", type=pathlib.Path, metavar="VENV", help="lend an environment's packages")
    parser.add_argument("--wheel", type=pathlib.Path, help="(default: built here)")
    parser.add_argument("--quick", type=pathlib.Path, metavar="RUN", help="README.md's first run (default: trained)")
    parser.add_argument(
        "--screenshots", type=pathlib.Path, metavar="DIR", help="look with a browser, keep what it sees"
    )
    options = parser.parse_args()
    short, path = options.packages_of is not None, find_chromium()
    with tempfile.TemporaryDirectory(prefix="new-user-") as name:
        folder = pathlib.Path(name)
        with step("an environment with the wheel, one with TensorFlow alone"):
            wheel = options.wheel.absolute() if options.wheel else build_wheel(folder)
            lender = options.packages_of.absolute() if short else None
            extras = re.search(r"pip install '\.(\[.*?\])'", README)[1]
            user = Machine(folder / "user", [f"{wheel}{extras}"], lender, wheel)
            server = Machine(folder / "server", ["tensorflow"], lender)
            move_in(user)
            check_installation(user)
        run = user.folder / "runs/quick"
        if options.quick:
            shutil.copytree(options.quick, run)
        else:
            with step("idmatters-cifar --preset quick"):
                user.run("idmatters-cifar", "--preset", "quick")
        best = json.loads((run / "result.json").read_text())["best_error"]
        assert best < 0.10, f"the quick preset should pass 90 %: {best}"
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
        if not short:
            with step("the Python blocks of README.md, each in a process of its own, and of the first tutorial"):
                for block in blocks_with(README):
                    user.run_block(block)
                user.run_block("\n".join(blocks_with(START)))
            with step("without extras: the mathematics"):
                base = Machine(folder / "base", [wheel])
                base.run_block(*blocks_with(CONCEPTS, "linear.factorize"))
        if options.screenshots is None or path is None:
            why = "there is no Chromium here" if path is None else "--screenshots is not given"
            print(f"TensorBoard and the site are not looked at: {why}")
            return
        keep = options.screenshots
        keep.mkdir(parents=True, exist_ok=True)
        with chromium(path) as browser:
            with tensorboard(user, folder) as address, step(f"TensorBoard in Chromium: {keep}"):
                look_at_tensorboard(browser, address, keep)
            site = ROOT / "build/site"
            if (site / "index.html").is_file():
                with step(f"the site in Chromium: {keep}"):
                    print(f"{look_at_site(browser, site, keep)} pages, wide and narrow")


if __name__ == "__main__":
    main()
