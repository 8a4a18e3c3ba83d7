"""Tests of the benchmarks' results and their page, without timing."""

import os
import shutil
import subprocess
import sys

from tests.conftest import ROOT

BENCHMARKS = ROOT / "benchmarks"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def table(folder, *arguments):
    command = [sys.executable, str(folder / "table.py"), *arguments]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=900, check=False)


def test_the_page_shows_the_results(tmp_path):
    assert table(BENCHMARKS, "--check").returncode == 0, "run python benchmarks/table.py"

    copy = shutil.copytree(BENCHMARKS, tmp_path / "benchmarks", ignore=shutil.ignore_patterns("__pycache__"))
    saved = copy / "results" / "memorize.json"
    saved.write_text(saved.read_text().replace("988", "2345", 1))
    assert "run python benchmarks/table.py" in table(copy, "--check").stderr
    assert table(copy).returncode == 0
    assert "| built | 2,345&nbsp;s |" in (copy / "README.md").read_text()
