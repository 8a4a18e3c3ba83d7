"""What the tasks of a cluster say to one another: the kinds of messages, their form on the wire, and the handshake.

A message is a line of JSON: an object with one of these keys first.

from the server, before the handshake is complete
    {"challenge": C}
    {"welcome": PROOF}
    {"refused": WHY, "proof": PROOF}    without a proof where the task's own proof was wrong
from a task
    {"hello": TASK, "challenge": C, "proof": PROOF}
    {"gather": TOPIC, "value": VALUE}
    {"stop": true}
    {"leave": REASON, "advice": ADVICE}     no advice where the task has none of its own
    {"alive": true}
from the server
    {"gathered": TOPIC, "values": {TASK: VALUE}}
    {"missing": [TASK, ...]}            who has not said yet what this task waits for
    {"stop": TASK}
    {"left": TASK, "reason": REASON, "advice": ADVICE}      a task that will end by itself, with its own sentence
    {"lost": TASK}                      its connection is closed
    {"back": TASK}
    {"silent": TASK, "seconds": S}      connected, but nothing has been heard from it
    {"heard": TASK, "seconds": S}       after such a silence
    {"alive": true}

Handshake: the server sends a random challenge, the task answers with one of its own and with a proof, the HMAC-SHA256
under the shared token of its role, both challenges and its name; the server answers with the proof for its own role.
Neither the token nor anything that allows to guess it is sent. Messages after the handshake are neither encrypted nor
authenticated one by one.
"""

import hashlib
import hmac
import json
import secrets
import socket
from typing import Any

from trainers.cli.reading import decode_json

# A stranger's line, before the handshake, and a task's: settings and checksums are small.
LONGEST_GREETING, LONGEST_LINE = 1 << 10, 1 << 20
GREETING_SECONDS = 10.0
HEARTBEAT_SECONDS = 2.0

Message = dict[str, Any]


class ProtocolError(Exception):
    """What came is not what a task of this cluster would have sent."""


def encode(message: Message) -> bytes:
    """A message as it is sent."""
    return json.dumps(message).encode() + b"\n"


def decode(line: bytes) -> Message:
    """A message from what was received. Raises ProtocolError for anything else."""
    try:
        message = decode_json(line)
    except ValueError as error:
        raise ProtocolError("the program that listens there is not a task of this cluster") from error
    if not isinstance(message, dict) or not message:
        raise ProtocolError("the program that listens there is not a task of this cluster")
    return message


class LineBuffer:
    """Cuts what is received into lines."""

    def __init__(self, longest: int = LONGEST_LINE):
        self.longest = longest
        self._rest = b""

    def lines(self, data: bytes) -> list[bytes]:
        """The lines that are complete now. Raises ProtocolError where one is too long."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if max(map(len, (*lines, self._rest))) > self.longest:
            raise ProtocolError(f"a line of more than {self.longest} bytes")
        return lines


def challenge() -> str:
    """A number that is used once."""
    return secrets.token_hex(16)


def proof(token: bytes, role: str, of_server: str, of_task: str, task: str) -> str:
    """Shows that a side of the handshake knows the token.

    Args:
        token: shared by all tasks.
        role: "server" or "task": whose proof it is.
        of_server, of_task: the challenges of the two sides.
        task: the name of the task.
    """
    text = json.dumps([role, of_server, of_task, task]).encode()
    return hmac.new(token, text, hashlib.sha256).hexdigest()


def proves(received: object, expected: str) -> bool:
    """Compares proofs, in a time that does not depend on where they differ."""
    return isinstance(received, str) and hmac.compare_digest(received.encode(errors="replace"), expected.encode())


def keep_alive(connection: socket.socket) -> None:
    """Makes the system notice within about half a minute that the machine at the other end is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4), ("TCP_USER_TIMEOUT", 30_000)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
