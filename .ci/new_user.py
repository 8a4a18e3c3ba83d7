"""Install a wheel as a new user would, and run the commands and Python blocks of the documentation's first pages.

    python .ci/new_user.py dist/NAME.whl                                       in a fresh environment (network needed)
    python3 .ci/new_user.py dist/NAME.whl --packages-of .venv --quick runs/quick    with the packages of .venv

The commands are those behind `<!-- ci: run -->` in the first tutorial, and the blocks are those of README.md.
They run in a folder that is not the checkout. Exit code 1 if anything fails.
"""

import argparse
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
README, START = ROOT / "README.md", ROOT / "docs/tutorials/start.md"


def run(*command):
    """Run a command and return its standard output."""
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout


def install(wheel, environment, lender):
    """Create an environment with the wheel and its dependencies, or with the packages of another environment."""
    python = environment / "bin/python"
    if lender is None:
        extras = re.search(r"pip install '\.(\[.*?\])'", README.read_text())[1]
        run(sys.executable, "-m", "venv", environment)
        run(python, "-m", "pip", "install", "--quiet", f"{wheel}{extras}")
        return
    lent = lender / "bin/python"
    run(lent, "-m", "venv", "--without-pip", environment)
    paths = ("-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    # Python does not read *.pth files inside of a folder that is listed in one: editable installations stay hidden.
    pathlib.Path(run(python, *paths).strip(), "lent.pth").write_text(run(lent, *paths))
    options = ("install", "--quiet", "--no-deps", "--ignore-installed")
    run(lent, "-m", "pip", "--python", python, *options, wheel)


def steps(quick):
    """Return the commands in their order, as lists of words."""
    commands = re.search(r"<!-- ci: run -->\n+```\n(.*?)```", START.read_text(), re.DOTALL)[1]
    training = [] if quick else ["python -m trainers.cifar --preset quick"]
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    return [*map(shlex.split, training + commands.splitlines()), *(["python", "-P", "-c", block] for block in blocks)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=pathlib.Path)
    parser.add_argument("--packages-of", type=pathlib.Path, metavar="VENV", help="use an environment's packages")
    parser.add_argument("--quick", type=pathlib.Path, metavar="RUN", help="run of the quick preset (default: trained)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="new-user-") as name:
        folder, environment = pathlib.Path(name, "home"), pathlib.Path(name, "environment")
        install(options.wheel.absolute(), environment, options.packages_of and options.packages_of.absolute())
        for copied in ("examples", "benchmarks"):
            shutil.copytree(ROOT / copied, folder / copied)
        if options.quick:
            shutil.copytree(options.quick, folder / "runs/quick")
        hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
        env = {name: value for name, value in os.environ.items() if name not in hidden}
        env |= {"PATH": f"{environment / 'bin'}{os.pathsep}{env['PATH']}", "MPLBACKEND": "agg"}
        for words in steps(options.quick):
            print("$", *words[:6], flush=True)
            path = shutil.which(words[0], path=env["PATH"])
            done = subprocess.run([path, *words[1:]], cwd=folder, env=env, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"exit code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-5000:]}")


if __name__ == "__main__":
    main()
