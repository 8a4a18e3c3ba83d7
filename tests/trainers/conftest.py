"""A short training run that tests of several files copy."""

import pytest

from tests.support.processes import WITHOUT_EXPORTS
from tests.support.programs import run_here
from trainers.training import export, train

TINY = "--dataset shapes --train-images 64 --test-images 48 --batch-size 8 --steps 6 --drop-steps 4 --evaluate-every 3 "
TINY += "--checkpoint-every 2 --blocks 1 --stem 4 --widths 4 --learning-rate 0.1 --clip-norm 1"


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """Return a finished run, not to be changed."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    run_here("trainers.cifar", *TINY.split(), "--out", folder, code=0)
    return folder


@pytest.fixture
def without_exports():
    """Train without exports, which take half of the time of a short run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "export_newest", lambda task: None)
        patch.setenv(WITHOUT_EXPORTS, "1")
        yield


@pytest.fixture
def without_saved_model():
    """Export `model.keras` alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "runs_on_tensorflow", lambda: False)
        yield
