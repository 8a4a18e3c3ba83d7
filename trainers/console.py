"""Entry points of the console scripts `idmatters-NAME`.

Unlike `python -m trainers.NAME`, console scripts ignore packages in the current folder, so that they also work in a
folder with another package `trainers`.
"""

import importlib
from typing import NoReturn

from trainers.cli.startup import run_program


def _run(module: str) -> NoReturn:
    run_program(importlib.import_module(module).main)


def card() -> NoReturn:
    """Run `idmatters-card`."""
    _run("trainers.card.__main__")


def cifar() -> NoReturn:
    """Run `idmatters-cifar`."""
    _run("trainers.cifar")


def expressivity() -> NoReturn:
    """Run `idmatters-expressivity`."""
    _run("trainers.expressivity.__main__")


def imagenet() -> NoReturn:
    """Run `idmatters-imagenet`."""
    _run("trainers.imagenet")


def landscape() -> NoReturn:
    """Run `idmatters-landscape`."""
    _run("trainers.landscape.__main__")


def launch() -> NoReturn:
    """Run `idmatters-launch`."""
    _run("trainers.launch")


def plan() -> NoReturn:
    """Run `idmatters-plan`."""
    _run("trainers.plan")


def report() -> NoReturn:
    """Run `idmatters-report`."""
    _run("trainers.report")


def reproduce() -> NoReturn:
    """Run `idmatters-reproduce`."""
    _run("trainers.reproduce.__main__")


def shortcuts() -> NoReturn:
    """Run `idmatters-shortcuts`."""
    _run("trainers.shortcuts.__main__")


def sweep() -> NoReturn:
    """Run `idmatters-sweep`."""
    _run("trainers.sweep")
