"""The console scripts `idmatters-NAME`: the programs without `python -m`.

`python -m trainers.NAME` looks for packages in the current folder first; these do not, so that they also work in a
folder that has its own `trainers`.
"""

import importlib
from typing import NoReturn

from trainers.cli.startup import run_program


def _run(module: str) -> NoReturn:
    run_program(importlib.import_module(module).main)


def card() -> NoReturn:
    """`idmatters-card`"""
    _run("trainers.card.__main__")


def cifar() -> NoReturn:
    """`idmatters-cifar`"""
    _run("trainers.cifar")


def expressivity() -> NoReturn:
    """`idmatters-expressivity`"""
    _run("trainers.expressivity.__main__")


def imagenet() -> NoReturn:
    """`idmatters-imagenet`"""
    _run("trainers.imagenet")


def landscape() -> NoReturn:
    """`idmatters-landscape`"""
    _run("trainers.landscape.__main__")


def launch() -> NoReturn:
    """`idmatters-launch`"""
    _run("trainers.launch")


def plan() -> NoReturn:
    """`idmatters-plan`"""
    _run("trainers.plan")


def report() -> NoReturn:
    """`idmatters-report`"""
    _run("trainers.report")


def reproduce() -> NoReturn:
    """`idmatters-reproduce`"""
    _run("trainers.reproduce.__main__")


def shortcuts() -> NoReturn:
    """`idmatters-shortcuts`"""
    _run("trainers.shortcuts.__main__")


def sweep() -> NoReturn:
    """`idmatters-sweep`"""
    _run("trainers.sweep")
