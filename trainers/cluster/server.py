"""Coordination server: a thread of the chief to which every task of a cluster is connected.

tf.distribute reports neither missing nor lost tasks, and a task that waits inside it cannot be interrupted. The server
detects both at once: a killed process closes its connection, and a process that hangs sends no heartbeats. Messages are
described in `trainers.cluster.protocol`.
"""

import contextlib
import dataclasses
import selectors
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from trainers.cluster import protocol
from trainers.cluster.protocol import LineBuffer, Message, ProtocolError

SILENT_SECONDS = 10.0
# Maximum number of connections before the end of their handshakes; the oldest is closed to accept another one.
_MOST_STRANGERS = 32
_LONGEST_BACKLOG = 8 << 20
_BREAK_SECONDS = 1.0


@dataclasses.dataclass(eq=False)
class _Peer:
    """Connection to a task; `task` is empty until the handshake is complete."""

    connection: socket.socket
    challenge: str
    since: float
    heard: float
    task: str = ""
    silent: bool = False
    buffer: LineBuffer = dataclasses.field(default_factory=lambda: LineBuffer(protocol.LONGEST_GREETING))
    unsent: bytes = b""


class CoordinationServer(threading.Thread):
    """Thread that collects the values of the tasks and notifies all of them.

    Invalid data or silence of one connection neither ends the thread nor delays other connections.

    Args:
        host: address to listen on.
        port: port to listen on.
        token: secret shared by all tasks.
        expected: for some topics, the tasks that take part in gathering them.
        default: tasks that take part in all other topics.
        on_failure: function called with the error, from this thread, if the thread itself fails.

    Raises:
        OSError: the address cannot be used.
    """

    def __init__(
        self,
        host: str,
        port: int,
        token: bytes,
        expected: Mapping[str, Collection[str]],
        default: Collection[str],
        on_failure: Callable[[Exception], object],
    ):
        super().__init__(name="coordination server", daemon=True)
        self._token, self._on_failure = token, on_failure
        self._expected, self._default = expected, default
        self._everyone = {task for tasks in (*expected.values(), default) for task in tasks}
        self._peers: list[_Peer] = []
        self._gathered: dict[str, dict[str, Any]] = {}
        self._seen: set[str] = set()
        self._selector = selectors.DefaultSelector()
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self._listener = socket.create_server(address[:2], family=family, backlog=128)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._listens_again = 0.0
        self._ticked = time.monotonic()

    def run(self) -> None:
        """Serve all connections; called by `start` in the new thread."""
        try:
            while True:
                for key, events in self._selector.select(timeout=min(1.0, SILENT_SECONDS / 4)):
                    if key.fileobj is self._listener:
                        self._accept()
                    else:
                        self._serve(key.data, events)
                self._tick()
        except Exception as error:
            self._on_failure(error)

    @property
    def _tasks(self) -> list[_Peer]:
        return [peer for peer in self._peers if peer.task]

    def _accept(self):
        now = time.monotonic()
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:
            # Without free descriptors, stop accepting in favor of the connected tasks.
            self._selector.unregister(self._listener)
            self._listens_again = now + _BREAK_SECONDS
            return
        strangers = [peer for peer in self._peers if not peer.task]
        if len(strangers) >= _MOST_STRANGERS:
            self._close(strangers[0])
        peer = _Peer(connection, protocol.challenge(), now, now)
        try:
            connection.setblocking(False)
            protocol.keep_alive(connection)
            self._selector.register(connection, selectors.EVENT_READ, peer)
        except (OSError, ValueError):
            connection.close()
            return
        self._peers.append(peer)
        self._send(peer, {"challenge": peer.challenge})

    def _serve(self, peer, events):
        try:
            if events & selectors.EVENT_WRITE:
                self._flush(peer)
            if events & selectors.EVENT_READ and peer in self._peers:
                self._read(peer)
        except Exception:
            # Errors of one connection must not affect the others.
            self._close(peer)

    def _read(self, peer):
        try:
            data = peer.connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close(peer)
            return
        peer.heard = time.monotonic()
        for line in peer.buffer.lines(data):
            self._handle(peer, protocol.decode(line))
            if peer not in self._peers:
                return

    def _handle(self, peer: _Peer, message: Message):
        if not peer.task:
            self._greet(peer, message)
        elif "gather" in message:
            self._gather(peer, str(message["gather"]), message["value"])
        elif "stop" in message:
            self._broadcast({"stop": peer.task})
        elif "leave" in message:
            details = {"reason": str(message["leave"]), "advice": str(message.get("advice", ""))}
            self._broadcast({"left": peer.task, **details}, besides=peer)
            peer.task = ""
            peer.since = time.monotonic()
        elif "alive" not in message:
            raise ProtocolError("an unknown message")

    def _greet(self, peer, message):
        task, theirs = message["hello"], message["challenge"]
        if not isinstance(task, str) or not isinstance(theirs, str):
            raise ProtocolError("not a greeting")
        ours = protocol.proof(self._token, "server", peer.challenge, theirs, task)
        if not protocol.proves(message.get("proof"), protocol.proof(self._token, "task", peer.challenge, theirs, task)):
            self._refuse(peer, "its token differs")
        elif task not in self._everyone:
            self._refuse(peer, f"{task} is not a task of the chief's cluster", ours)
        elif any(other.task == task for other in self._peers):
            self._refuse(peer, f"another process is already {task}", ours)
        else:
            peer.task, peer.buffer.longest = task, protocol.LONGEST_LINE
            self._send(peer, {"welcome": ours})
            if task in self._seen:
                self._broadcast({"back": task}, besides=peer)
            self._seen.add(task)

    def _refuse(self, peer, reason, proof=None):
        self._send(peer, {"refused": reason, "proof": proof})
        self._close(peer)

    def _gather(self, peer, topic, value):
        values = self._gathered.setdefault(topic, {})
        needed = self._needed(topic)
        complete = needed <= set(values)
        values[peer.task] = value
        if complete:
            # A task that rejoins receives the previous values.
            self._send(peer, {"gathered": topic, "values": values})
        elif needed <= set(values):
            self._broadcast({"gathered": topic, "values": values})
            if topic not in self._expected:
                del self._gathered[topic]
        else:
            # Sent at once: a task may exit before the next tick, and lists the missing tasks in its error message.
            self._send(peer, {"missing": sorted(needed - set(values))})

    def _needed(self, topic):
        return set(self._expected.get(topic, self._default))

    def _tick(self):
        """Close, report and notify connections, about once a second."""
        now = time.monotonic()
        if self._listens_again and now >= self._listens_again:
            self._listens_again = 0.0
            self._selector.register(self._listener, selectors.EVENT_READ)
        since = now - self._ticked
        if since < min(1.0, SILENT_SECONDS / 4):
            return
        self._ticked = now
        for peer in list(self._peers):
            if not peer.task and now - peer.since > protocol.GREETING_SECONDS:
                self._close(peer)
            elif since > SILENT_SECONDS / 2:
                # This process itself was suspended, so that the silence proves nothing.
                peer.heard = now
        self._report_silent(now)
        self._report_missing()
        for peer in self._tasks:
            self._send(peer, {"alive": True})

    def _report_silent(self, now):
        for peer in self._tasks:
            seconds = now - peer.heard
            if seconds > SILENT_SECONDS:
                peer.silent = True
                self._broadcast({"silent": peer.task, "seconds": seconds})
            elif peer.silent:
                peer.silent = False
                self._broadcast({"heard": peer.task})

    def _report_missing(self):
        for topic, values in self._gathered.items():
            missing = sorted(self._needed(topic) - set(values))
            if missing:
                for peer in self._tasks:
                    if peer.task in values:
                        self._send(peer, {"missing": missing})

    def _close(self, peer):
        if peer not in self._peers:
            return
        self._peers.remove(peer)
        with contextlib.suppress(OSError, KeyError, ValueError):
            self._selector.unregister(peer.connection)
        peer.connection.close()
        if peer.task:
            for topic, values in self._gathered.items():
                if not self._needed(topic) <= set(values):
                    values.pop(peer.task, None)
            self._broadcast({"lost": peer.task})

    def _broadcast(self, message, besides=None):
        for peer in self._tasks:
            if peer is not besides:
                self._send(peer, message)

    def _send(self, peer, message):
        peer.unsent += protocol.encode(message)
        self._flush(peer)

    def _flush(self, peer):
        """Send as much as possible; the rest is sent when the other side has read."""
        try:
            while peer.unsent:
                sent = peer.connection.send(peer.unsent)
                peer.unsent = peer.unsent[sent:]
        except BlockingIOError:
            if len(peer.unsent) > _LONGEST_BACKLOG:
                # The main loop reads the end of the stream and closes the connection.
                with contextlib.suppress(OSError):
                    peer.connection.shutdown(socket.SHUT_RDWR)
                peer.unsent = b""
        except OSError:
            # The next read detects and handles the error.
            peer.unsent = b""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.unsent else 0)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.modify(peer.connection, events, peer)
