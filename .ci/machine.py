"""Fresh environments for `new_user.py`: a folder, a Python environment, and commands that run in both."""

import contextlib
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]


class Machine:
    """A user's folder and Python environment.

    Args:
        folder: new folder that will contain both.
        requirements: arguments of `pip install`, unused with `lender`.
        lender: environment whose packages are used. Its editable installations are not.
        wheel: wheel that is installed in addition to the packages of `lender`.
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
        # Python does not read *.pth files inside of a folder that is listed in one: editable installations stay hidden.
        pathlib.Path(own, "lent.pth").write_text(checked([lent_python, "-c", paths]))
        if wheel is not None:
            install = ["install", "--quiet", "--no-deps", "--ignore-installed", str(wheel)]
            checked([lent_python, "-m", "pip", "--python", self.python, *install])

    @property
    def python(self):
        """Path of the interpreter."""
        return str(self._environment / "bin" / "python")

    @property
    def variables(self):
        """Environment variables, with the console scripts of the environment first in PATH."""
        hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
        kept = {name: value for name, value in os.environ.items() if name not in hidden}
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "MPLBACKEND": "agg"}
        return {**quiet, **kept, "PATH": f"{self._environment / 'bin'}{os.pathsep}{os.environ['PATH']}"}

    def run(self, *command, folder=None, **variables):
        """Run a command and return its standard output. SystemExit is raised for exit codes other than 0.

        Args:
            command: words of the command.
            folder: working directory (default: the user's folder).
            variables: further environment variables.
        """
        # The PATH of the environment decides, as in a shell.
        path = shutil.which(str(command[0]), path=self.variables["PATH"]) or command[0]
        return checked([path, *command[1:]], cwd=folder or self.folder, env={**self.variables, **variables})

    def run_block(self, code, folder=None, **variables):
        """Run Python code in a process of its own and return its standard output."""
        return self.run("python", "-P", "-c", code, folder=folder, **variables)

    def has(self, package):
        """Return True if a package is installed."""
        find = f"import importlib.util; print(importlib.util.find_spec({package!r}) is not None)"
        return self.run_block(find).strip() == "True"


def checked(command, **keywords):
    """Return the standard output of a command. SystemExit is raised for exit codes other than 0."""
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, **keywords
    )
    if done.returncode:
        shown = shlex.join(map(str, command))[:500]
        raise SystemExit(
            f"{shown}\nended with exit code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
        )
    return done.stdout


def build_wheel(folder):
    """Build a wheel from a copy of the repository, which stays unchanged, and return its path."""
    ignored = shutil.ignore_patterns(".*", "build", "dist", "runs", "*.egg-info", "__pycache__")
    project = shutil.copytree(ROOT, folder / "project", ignore=ignored)
    checked([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder / "dist", project])
    return next((folder / "dist").glob("*.whl"))


@contextlib.contextmanager
def step(name):
    """Print the name and the duration of a step."""
    start = time.monotonic()
    yield
    print(f"{time.monotonic() - start:6.1f} s  {name}", flush=True)
