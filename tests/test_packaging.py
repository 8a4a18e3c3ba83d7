"""Imports, extras and backends of the installed package."""

import os
import subprocess
import sys

from tests.conftest import ROOT


def test_a_missing_extra_is_one_sentence(tmp_path):
    code = (
        "import sys; from trainers.console import cifar; sys.modules['tensorflow'] = None; "
        f"sys.argv = ['idmatters-cifar', '--preset', 'quick', '--out', {str(tmp_path / 'run')!r}]; cifar()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    install = "pip install 'idmatters-tf[tensorflow,train]'"
    assert done.stderr.splitlines()[-1] == f"error: tensorflow is not installed: {install}"
    assert "Traceback" not in done.stderr


def test_programs_warn_of_other_backends(program):
    done = program("trainers.shortcuts", "--help", env={"KERAS_BACKEND": "jax"})
    assert done.returncode == 0
    assert done.stderr.startswith("warning: this program runs on tensorflow, not on KERAS_BACKEND=jax")


def test_training_programs_run_on_jax_as_console_scripts():
    code = "import sys; from trainers.console import cifar; sys.argv = ['idmatters-cifar', '--help']; cifar()"
    env = {**os.environ, "KERAS_BACKEND": "jax"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert (done.stdout[:22], done.stderr) == ("usage: idmatters-cifar", "")


def test_the_mathematics_needs_neither_keras_nor_tensorflow():
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['keras', 'tensorflow', 'matplotlib', 'tensorflow_datasets'])); "
        "import numpy as np; from idmatters_tf import linear; "
        "print(linear.factorize(np.diag([2.0, 3.0]), depth=4).shape, linear.sweep.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["(4,", "2,", "2)", "sweep"]


def test_import_is_light():
    code = (
        "import sys, idmatters_tf.models, trainers; dir(idmatters_tf); "
        "print([name for name in ('numpy', 'keras', 'tensorflow') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
