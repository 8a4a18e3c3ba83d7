"""The filter for libjpeg's messages."""

import signal
import subprocess
import sys

from tests.conftest import ROOT

PROGRAM = """
import os, sys
from trainers.datasets.libjpeg import hide_libjpeg_messages
from trainers.cli.startup import print_message

os.write(2, b"Corrupt JPEG data: before\\n")
hide_libjpeg_messages()
hide_libjpeg_messages()
os.write(2, b"Corrupt JPEG data: premature end of data segment\\nfrom C\\n")
print_message("from Python")
print("Corrupt JPEG data: from Python", file=sys.stderr)
os.write(2, b"Premature end of JPEG file\\nlast words\\n")
os.abort()
"""


def said(*options):
    command = [sys.executable, "-c", PROGRAM, *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGABRT
    return sorted(done.stderr.splitlines())


def test_messages_of_libjpeg_alone_are_hidden_also_in_a_crash():
    from_python = ["Corrupt JPEG data: from Python", "from Python"]
    assert said() == ["Corrupt JPEG data: before", *from_python[:1], "from C", *from_python[1:], "last words"]
    assert "Premature end of JPEG file" in said("--debug")
