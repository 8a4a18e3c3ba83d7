"""Filter for the messages that libjpeg writes to standard error.

TensorFlow decodes JPEG files with libjpeg, which reports damaged ones ("Corrupt JPEG data: ...") without their names.
TensorFlow has no option to turn that off. The programs report broken files themselves.
"""

import os
import subprocess
import sys

from trainers.cli.startup import DEBUG

# Beginnings of the messages about input in libjpeg's jerror.h.
_MESSAGES = (
    "Arithmetic table 0x",
    "Bogus ",
    "Corrupt JPEG data: ",
    "Empty JPEG image ",
    "Huffman table 0x",
    "Image too wide for this implementation",
    "Improper call to JPEG library ",
    "Inconsistent progression sequence ",
    "Invalid JPEG file structure: ",
    "Invalid SOS parameters for sequential JPEG",
    "Invalid component ID ",
    "Invalid crop request",
    "JPEG datastream contains no image",
    "Maximum supported image dimension ",
    "Missing Huffman code table entry",
    "Not a JPEG file: ",
    "Premature end of JPEG file",
    "Quantization table 0x",
    "Sampling factors too large for interleaved scan",
    "Too many color components: ",
    "Unexpected marker 0x",
    "Unknown Adobe color transform code ",
    "Unsupported JPEG ",
    "Unsupported color conversion request",
    "Unsupported marker type 0x",
    "Warning: unknown JFIF revision number ",
)
# A process of its own: the last messages of a process that crashes are not lost. It ends with the last writer.
_FILTER = """
import signal, sys
for name in ("SIGINT", "SIGTERM", "SIGHUP"):
    signal.signal(getattr(signal, name), signal.SIG_IGN)
messages = tuple(message.encode() for message in sys.argv[1:])
for line in sys.stdin.buffer:
    if not line.startswith(messages):
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
"""
_filter: subprocess.Popen | None = None


def hide_libjpeg_messages() -> None:
    """Remove libjpeg's messages from standard error for the rest of the process.

    Python's own output is written directly, so that progress bars still see a terminal. With `--debug`, and if
    `sys.stderr` is not standard error, nothing changes.
    """
    global _filter
    if _filter is not None or DEBUG in sys.argv or not _writes_to_standard_error():
        return
    sys.stderr.flush()
    direct = os.dup(2)
    command = [sys.executable, "-I", "-S", "-c", _FILTER, *_MESSAGES]
    _filter = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=direct)
    if _filter.stdin is not None:
        os.dup2(_filter.stdin.fileno(), 2)
        _filter.stdin.close()
    sys.stderr = os.fdopen(direct, "w", buffering=1, encoding=sys.stderr.encoding, errors="backslashreplace")


def _writes_to_standard_error() -> bool:
    try:
        return sys.stderr.fileno() == 2
    except (AttributeError, OSError, ValueError):
        return False
