"""Command-line programs: `python -m trainers.NAME --help`, or `idmatters-NAME --help`.

trainers.cifar          training of residual networks on CIFAR-10, CIFAR-100 or the built-in shapes
trainers.imagenet       training of the variant for ImageNet, on ImageNet or any folder of labeled images
trainers.launch         training on a cluster of processes on this machine
trainers.report         comparison of runs: plots and a table
trainers.card           weights and model card of a finished run
trainers.reproduce      repetition of rows of the ledger and comparison of their numbers
trainers.landscape      landscape theory of deep linear networks
trainers.shortcuts      experiments of Demystifying ResNet
trainers.expressivity   networks that memorize a data set
"""

import importlib.util
import os
import pathlib
import signal
import sys

_ROOT = pathlib.Path(__file__).resolve().parent.parent


def _check_library() -> None:
    """Raise ImportError if the library is missing or another package hides it."""
    name = "idmatters_tf"
    spec = importlib.util.find_spec(name)
    found = None if spec is None else spec.origin or next(iter(spec.submodule_search_locations or ()), None)
    if found is None:
        raise ImportError(f"the package {name!r} is missing beside {_ROOT / 'trainers'}. Install idmatters-tf again.")
    if _ROOT not in pathlib.Path(found).resolve().parents:
        raise ImportError(
            f"{found} hides our package {name!r} in {_ROOT}. Run the program from another folder, or as "
            "idmatters-NAME, which ignores packages in the current folder.",
            # With this name, `python -m` prints the message without a traceback.
            name=__name__,
        )


def _end_on_interrupt(_number: int, _frame: object) -> None:
    os.write(2, b"stopped by Ctrl-C before the start\n")
    os._exit(130)


# For the time of the imports; `trainers.cli.startup.run_program` installs its own handler. `python -m` sets the name
# "-m" while it searches for the program.
_started_as = pathlib.Path(sys.argv[0] if sys.argv else "").name
if _started_as.startswith(("-m", "idmatters-")) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end_on_interrupt)

_check_library()
