"""Intervals between the checkpoints of a `fit`, their folder, and messages about both."""

import signal

import keras
import pytest

from idmatters_tf.callbacks import ExactResume, _run_state, exact_resume
from idmatters_tf.checkpointing import FolderInUse, FolderLock, list_steps
from tests.callbacks.test_refusals import fit, interrupt


def test_another_environment(tmp_path, monkeypatch):
    fit(tmp_path)
    monkeypatch.setattr(_run_state, "describe_numerics", lambda backend: {"oneDNN": "another"})
    with pytest.warns(UserWarning, match="oneDNN was .*, now 'another': results will differ by rounding"):
        fit(tmp_path, epochs=2)


@pytest.mark.parametrize("name", ["arrays.npy", "manifest.json"])
def test_a_damaged_checkpoint_is_renamed_and_the_previous_one_is_used(tmp_path, name):
    whole = fit(tmp_path, epochs=2)
    path = tmp_path / "step-00000008" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.warns(UserWarning, match="step-00000008 is damaged"):
        again = fit(tmp_path, epochs=2)
    assert again.history == whole.history
    names = sorted(path.name.rpartition("-")[0] for path in tmp_path.iterdir())
    assert names == ["damaged-step-00000008", "step", "step"]


def test_no_other_process_while_it_trains(tmp_path):
    """The lock, the handlers of signals and the changes of the model end with `fit`, also with an exception."""

    def seen(batch, logs):
        with pytest.raises(FolderInUse):
            FolderLock(tmp_path)
        assert signal.getsignal(signal.SIGUSR2) != before
        raise KeyboardInterrupt

    models, before = [], signal.getsignal(signal.SIGUSR2)
    callbacks = [
        keras.callbacks.LambdaCallback(on_train_batch_end=seen),
        keras.callbacks.LambdaCallback(on_epoch_begin=lambda *_: None),
    ]
    callbacks[1].set_model = models.append
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, *callbacks, pause_on=signal.SIGUSR2)
    FolderLock(tmp_path).release()
    assert signal.getsignal(signal.SIGUSR2) == before
    assert "_should_eval" not in vars(models[0])


@pytest.mark.parametrize(
    ("every", "steps"),
    [("3 steps", [3, 6, 8]), ("epoch", [4, 8]), ("2 epochs", [8]), ("5 minutes", [5, 8]), ("1 hour", [8])],
)
def test_interval(tmp_path, monkeypatch, every, steps):
    clock = {"now": 0}
    monkeypatch.setattr(exact_resume.time, "monotonic", lambda: clock["now"])
    minute = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: clock.update(now=clock["now"] + 60))
    fit(tmp_path, minute, every=every, keep=9, epochs=2)
    assert list_steps(tmp_path) == steps


@pytest.mark.parametrize("every", [0, True, 1.5, "5", "0 steps", "3 batches", "1.5 hours"])
def test_invalid_interval(every):
    with pytest.raises(ValueError, match='ExactResume must be a positive integer, or a text such as "10 minutes"'):
        ExactResume("unused", every=every)


def test_folders(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    for name, reason in (("file", "File exists"), ("file/folder", "Not a directory"), ("x" * 300, "name too long")):
        with pytest.raises(ValueError, match=rf"a writable folder. Received: .*{name} \(.*{reason}\)"):
            fit(tmp_path / name)
    # The lock of an interrupted `fit` is found by a link as well.
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    again = {"epochs": 2, "ignore": "LambdaCallback"}
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "folder", keras.callbacks.LambdaCallback(on_epoch_end=interrupt), **again)
    fit(tmp_path / "link", **again)


def test_one_line_says_where_training_resumes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for epochs, verbose, line in ((1, 2, ""), (2, 2, "Resuming from step 4 of runs/fit\n"), (3, 0, "")):
        fit("runs/fit", epochs=epochs, verbose=verbose)
        assert capsys.readouterr().err == line
