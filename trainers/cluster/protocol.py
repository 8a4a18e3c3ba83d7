"""Messages between the tasks of a cluster and its chief, their encoding, and the handshake.

A message is a line of JSON: an object with one of these keys first.

from the server, before the handshake is complete
    {"challenge": C}
    {"welcome": PROOF}
    {"refused": REASON, "proof": PROOF}     without a proof if the proof of the task is wrong
from a task
    {"hello": TASK, "challenge": C, "proof": PROOF}
    {"gather": TOPIC, "value": VALUE}
    {"stop": true}
    {"leave": REASON, "advice": ADVICE}     the advice may be empty
    {"alive": true}
from the server
    {"gathered": TOPIC, "values": {TASK: VALUE}}
    {"missing": [TASK, ...]}            tasks that have not sent their value for the topic of this task
    {"stop": TASK}
    {"left": TASK, "reason": REASON, "advice": ADVICE}      a task that will exit with its own error message
    {"lost": TASK}                      closed connection
    {"back": TASK}
    {"silent": TASK, "seconds": S}      connected, but no heartbeat for S seconds
    {"heard": TASK, "seconds": S}       heartbeat after such a silence
    {"alive": true}

Handshake: the server sends a random challenge. The task answers with its own challenge and a proof: the HMAC-SHA256,
with the shared token as key, of its role, both challenges and its name. The server answers with the proof for its own
role. The token is never sent. Messages after the handshake are neither encrypted nor authenticated.
"""

import hashlib
import hmac
import json
import secrets
import socket
from typing import Any

# Maximum number of bytes of a line before and after the handshake; settings and checksums are small.
LONGEST_GREETING, LONGEST_LINE = 1 << 10, 1 << 20
GREETING_SECONDS = 10.0
HEARTBEAT_SECONDS = 2.0

Message = dict[str, Any]


class ProtocolError(Exception):
    """Received data that no task of this cluster sends."""


def encode(message: Message) -> bytes:
    """Return a message as bytes."""
    return json.dumps(message).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Return the message in a received line. Raises ProtocolError for invalid data."""
    try:
        message = json.loads(line)
    except ValueError as error:
        raise ProtocolError("the program that listens there is not a task of this cluster") from error
    if not isinstance(message, dict) or not message:
        raise ProtocolError("the program that listens there is not a task of this cluster")
    return message


class LineBuffer:
    """Splits received data into lines."""

    def __init__(self, longest: int = LONGEST_LINE):
        self.longest = longest
        self._rest = b""

    def lines(self, data: bytes) -> list[bytes]:
        """Return the lines that `data` completes. Raises ProtocolError for a line that is too long."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if max(map(len, (*lines, self._rest))) > self.longest:
            raise ProtocolError(f"a line of more than {self.longest} bytes")
        return lines


def challenge() -> str:
    """Return a random number in hexadecimal form that is used once."""
    return secrets.token_hex(16)


def proof(token: bytes, role: str, of_server: str, of_task: str, task: str) -> str:
    """Return the proof that a side of the handshake has the token.

    Args:
        token: secret shared by all tasks.
        role: "server" or "task", the side that sends the proof.
        of_server: challenge of the server.
        of_task: challenge of the task.
        task: name of the task.
    """
    text = json.dumps([role, of_server, of_task, task]).encode()
    return hmac.new(token, text, hashlib.sha256).hexdigest()


def proves(received: object, expected: str) -> bool:
    """Return True for a valid proof. The comparison takes constant time."""
    return isinstance(received, str) and hmac.compare_digest(received.encode(errors="replace"), expected.encode())


def keep_alive(connection: socket.socket) -> None:
    """Let the operating system detect within about 30 seconds that the machine at the other end is lost."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4), ("TCP_USER_TIMEOUT", 30_000)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
