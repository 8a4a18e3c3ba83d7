"""Tests of the settings and checkpoints of version 0.1.0."""

import json
import pathlib
import shutil

import pytest

from idmatters_tf.checkpointing import saving
from tests.support.processes import assert_same_run, records
from trainers import cifar
from trainers.cifar import Cifar
from trainers.cli.arguments import UsageError
from trainers.cli.settings import as_dict, make
from trainers.imagenet import ImageNet
from trainers.training.settings import Settings
from trainers.training.version_0_1 import upgrade

# As version 0.1.0 recorded them, without the recipe.
NULLS = dict.fromkeys(("branch_gain", "last_kernel_size", "standardize_kernels", "whiten_stem", "bias", "shortcut"))
NULLS |= dict.fromkeys(("head", "norm", "norm_momentum", "initializer", "branch_scale", "negative_slope"))
ABLATIONS = {"bias": False, "shortcut": "pad", "head": "random", "norm": "none", "initializer": "identity"}
CIFAR = {"dataset": "shapes", "data_dir": None, "train_images": 300, "test_images": 100, "download": True}
CIFAR |= {"augment": "standard", "padding_mode": "zero", "flips": "random", "cutout": 0, "held_out": None}
CIFAR |= {"preprocess": "standardize", "depth": None, "growth": None, "bottleneck": None, "dropout": None}
CIFAR |= {"blocks": None, "widths": None, "stem": None, **NULLS}
IMAGENET = {"data_dir": "photos", "val": "val", "val_labels": None, "val_fraction": None, "classes": None, "size": 64}
IMAGENET |= {"augment": "standard", "smallest_crop": 0.35, "skip_broken": False, "stem_size": 7, "stem_strides": 2}
IMAGENET |= {"blocks": [1, 2], "widths": [8, 16], "stem": 8, **NULLS}
SIZES = {"blocks": 2, "widths": [4, 8], "stem": 4}


def loaded(values):
    """Return the settings of a run of version 0.1.0 with a recipe in current names."""
    settings = as_dict(Settings())
    recipe = {name: settings[name] for name in list(settings)[list(settings).index("steps") :]}
    return make(Settings, upgrade({**values, **recipe}))


def test_runs_of_trainers_cifar():
    identity = loaded({**CIFAR, **ABLATIONS, **SIZES, "model": "identity", "branch_scale": 0.5})
    assert identity.network.blocks_of_stages == (2, 2)
    layout = identity.network.layout()
    assert (layout.strides, layout.stem_size, layout.stem_strides) == ((1, 2), 3, 1)
    assert (layout.norm_momentum, layout.negative_slope, layout.branch_scale) == (0.99, 0.0, 0.5)
    free = loaded({**CIFAR, **SIZES, "model": "normalizer-free", "branch_gain": 0.3, "last_kernel_size": 3})
    assert (free.network.branch_gain, free.network.last_kernel_size, free.network.stem_size) == (0.3, 3, 3)
    assert (free.network.standardize_kernels, free.network.whiten_stem) == (False, False)
    resnet = loaded({**CIFAR, "model": "resnet", "depth": 8, "shortcut": "none"})
    assert (resnet.network.depth, resnet.network.shortcut, resnet.data.train_images) == (8, "none", 300)
    assert loaded({**CIFAR, "model": "all-cnn"}).network.stem_strides == 1


def test_runs_of_trainers_imagenet():
    identity = loaded({**IMAGENET, **ABLATIONS, "model": "identity"})
    assert (identity.data.dataset, identity.data.size, identity.data.held_out) == ("folder", 64, None)
    assert identity.network.layout().strides == (2, 2)
    free = loaded({**IMAGENET, "model": "normalizer-free", "branch_gain": 0.2, "last_kernel_size": 1, "stem_size": 5})
    assert (free.network.blocks, free.network.stem_size, free.network.stem_strides) == ((1, 2), 5, 2)


@pytest.mark.parametrize("task", [Cifar, ImageNet])
@pytest.mark.parametrize("model", ["identity", "normalizer-free", "resnet", "densenet", "all-cnn"])
def test_settings_in_the_present_form_stay_as_they_are(task, model):
    values = as_dict(task.resolve({}, {"model": model}))
    assert upgrade(values) == values
    # Missing settings are not invented.
    del values["augment"]
    with pytest.raises(UsageError, match="the setting 'augment' is missing"):
        make(Settings, upgrade(values))


@pytest.mark.parametrize("model", [None, 5, [], "unknown"])
def test_foreign_values_are_left_to_the_checks(model):
    with pytest.raises(UsageError, match="model"):
        loaded({**CIFAR, "model": model})


def as_recorded_by_0_1_0(values):
    """Convert current settings to the form of version 0.1.0, for `--model identity`."""
    kept = {name: value for name, value in values.items() if name not in ("stem_size", "stem_strides", "first_stride")}
    kept |= {"norm_momentum": None, "negative_slope": None, "blocks": values["blocks"][0]}
    return {**dict.fromkeys(("depth", "growth", "branch_gain", "whiten_stem")), **kept}


def test_a_run_of_0_1_0_is_evaluated_and_extended(finished, tmp_path, capsys):
    new, old = (pathlib.Path(shutil.copytree(finished, tmp_path / name)) for name in ("new", "old"))
    config = json.loads((old / "config.json").read_text())
    config["settings"] = as_recorded_by_0_1_0(config["settings"])
    (old / "config.json").write_text(json.dumps(config))
    # Checkpoints record the identity of their run, and its checksum.
    for path in old.glob("checkpoints/**/run.json"):
        identity = json.dumps(as_recorded_by_0_1_0(json.loads(path.read_text())))
        files = {each.name: each.read_bytes() for each in path.parent.iterdir() if each.name != "manifest.json"}
        with saving(path.parents[1], int(path.parent.name.removeprefix("step-"))) as beside:
            for name, content in {**files, "run.json": identity.encode()}.items():
                (beside / name).write_bytes(content)
    assert cifar.main(["--evaluate", str(old)]) == 0
    loss = json.loads((finished / "result.json").read_text())["last_loss"]
    assert f"test loss {loss:.4f} on 48 images" in capsys.readouterr().out
    for run in (new, old):
        assert cifar.main(["--resume", "--steps", "8", "--out", str(run)]) == 0
        assert "resuming from step 6" in capsys.readouterr().err
        assert json.loads((run / "result.json").read_text())["steps"] == 8
        config = json.loads((run / "config.json").read_text())
        assert (config["settings"]["steps"], config["extended"][0]["steps"]) == (8, 6)
        assert [record["step"] for record in records(run) if record["kind"] == "test"] == [0, 3, 6, 8]
    assert_same_run(old, new)
    with pytest.raises(UsageError, match="stem was 4, now 3"):
        cifar.main(["--resume", "--stem", "3", "--out", str(old)])
