"""Command-line programs: `python -m trainers.NAME --help`.

trainers.cifar          training of residual networks on CIFAR-10, CIFAR-100 or the built-in shapes
trainers.imagenet       training of the variant for ImageNet, on ImageNet or any folder of labeled images
trainers.launch         training on a cluster of processes on this machine
trainers.report         comparison of runs: plots and a table
trainers.predict        classification of image files, and errors by class
trainers.reproduce      repetition of rows of the ledger and comparison of their numbers
trainers.landscape      landscape theory of deep linear networks
trainers.shortcuts      experiments of Demystifying ResNet
trainers.expressivity   networks that memorize a data set
"""

import signal
import sys

# Until `run_program` handles it, Ctrl-C ends a program at once instead of with the traceback of an import.
_is_program = sys.argv[:1] == ["-m"] and any(word.startswith("trainers.") for word in sys.orig_argv)
if _is_program and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
