"""Programs: `python -m trainers.NAME --help`, or `idmatters-NAME --help`.

trainers.cifar          trains the residual networks on CIFAR-10, CIFAR-100 or the built-in shapes
trainers.imagenet       trains the variant for ImageNet, on ImageNet or any folder of labelled images
trainers.launch         starts either of them as a cluster of processes on this machine
trainers.plan           computes how long ImageNet takes on which machines, and what the bottleneck is
trainers.sweep          trains one run for each seed and combination of options, and compares them
trainers.report         compares runs: a plot and a table
trainers.card           makes a folder with weights and model card of a finished run
trainers.reproduce      runs rows of the ledger again and compares their numbers
trainers.landscape      the landscape theory of deep linear networks
trainers.shortcuts      the experiments of Demystifying ResNet
trainers.expressivity   networks that memorise a data set
"""

import importlib.util
import os
import pathlib
import signal
import sys

_ROOT = pathlib.Path(__file__).resolve().parent.parent


def _check_neighbours() -> None:
    """Raises ImportError where another package hides the library."""
    name = "idmatters_tf"
    spec = importlib.util.find_spec(name)
    found = None if spec is None else spec.origin or next(iter(spec.submodule_search_locations or ()), None)
    if found is None:
        raise ImportError(f"the package {name!r} is missing beside {_ROOT / 'trainers'}: install idmatters-tf again")
    if _ROOT not in pathlib.Path(found).resolve().parents:
        raise ImportError(
            f"{found} hides our package {name!r} in {_ROOT}. Run the program from another folder, or as "
            "idmatters-NAME, which does not look at the current folder",
            # With its own name, `python -m` says it in one line.
            name=__name__,
        )


def _end_on_interrupt(_number: int, _frame: object) -> None:
    os.write(2, b"stopped by Ctrl-C; nothing had begun\n")
    os._exit(130)


# While a program is being imported; `trainers.cli.startup.run_program` has a gentler way. `python -m` looks for the
# program under the name "-m".
_started_as = pathlib.Path(sys.argv[0] if sys.argv else "").name
if _started_as.startswith(("-m", "idmatters-")) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end_on_interrupt)

_check_neighbours()
