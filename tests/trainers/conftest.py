"""A short training run that tests of several files copy."""

import pytest

from tests.support.programs import run_here

TINY = "--dataset shapes --train-images 64 --test-images 48 --batch-size 8 --steps 6 --drop-steps 4 --evaluate-every 3 "
TINY += "--checkpoint-every 2 --blocks 1 --stem 4 --widths 4 --learning-rate 0.1 --clip-norm 1"


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """Return a finished run, not to be changed."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    run_here("trainers.cifar", *TINY.split(), "--out", folder, code=0)
    return folder
