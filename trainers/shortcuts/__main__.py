"""Reproduce the experiments and Theorem 1 of "Demystifying ResNet" (Li et al.) on whitened MNIST."""

import importlib

from trainers.backends import import_tensorflow
from trainers.cli.startup import print_message, run_program
from trainers.experiments.program import EXIT_CODES, ExperimentProgram, Results
from trainers.shortcuts.settings import EXPERIMENTS, ShortcutSettings

EXAMPLES = f"""
experiments, each with a verdict on the paper's claim and, except for theorem1, tables (CSV) and figures in --out:
{chr(10).join(f"  {name:12} {str(options.__doc__).rstrip('.')}" for name, options in EXPERIMENTS.items())}

examples:
  python -m trainers.shortcuts --data-dir DATA                    MNIST as idx files or from TFDS
  python -m trainers.shortcuts --experiment trajectory --dataset digits-like     built-in data
  python -m trainers.shortcuts --experiment theorem1 --dataset digits-like --units 4 --mid tanh

{EXIT_CODES}
"""


def _measure(settings: ShortcutSettings, results: Results) -> None:
    import threadpoolctl

    import_tensorflow()
    import keras

    from trainers.shortcuts.training import load

    keras.config.set_dtype_policy("float64")
    # Eigenvalues are computed in parallel, each on one core, see `conditions.summarize_hessians`. Only a BLAS that has
    # been loaded can be limited.
    with threadpoolctl.threadpool_limits(1, user_api="blas"):
        print_message(f"{settings.data.dataset}: loading and whitening ...")
        problem = load(settings.data)
        results.start(problem.origin, problem.X, problem.Y)
        module = importlib.import_module(f"trainers.shortcuts.{settings.experiment}")
        module.run(problem, settings.options, results)


PROGRAM = ExperimentProgram(
    "trainers.shortcuts", __doc__, EXAMPLES, ShortcutSettings, _measure, ("matplotlib", "tensorflow")
)
parser, main = PROGRAM.parser, PROGRAM.main

if __name__ == "__main__":
    run_program(main)
