"""Entry points of the console scripts `idmatters-NAME`.

Unlike `python -m trainers.NAME`, console scripts ignore packages in the current folder, so that they also work in a
folder with another package `trainers`.
"""

import functools
import importlib
from typing import NoReturn

from trainers.cli.startup import run_program


def _run(module: str) -> NoReturn:
    program = importlib.import_module(module)
    run_program(program.main, getattr(program, "BACKENDS", ("tensorflow",)))


cifar = functools.partial(_run, "trainers.cifar")
depth = functools.partial(_run, "trainers.depth.__main__")
expressivity = functools.partial(_run, "trainers.expressivity.__main__")
imagenet = functools.partial(_run, "trainers.imagenet")
landscape = functools.partial(_run, "trainers.landscape.__main__")
launch = functools.partial(_run, "trainers.launch")
predict = functools.partial(_run, "trainers.predict")
report = functools.partial(_run, "trainers.report")
reproduce = functools.partial(_run, "trainers.reproduce.__main__")
shortcuts = functools.partial(_run, "trainers.shortcuts.__main__")
