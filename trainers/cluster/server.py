"""The meeting place of a cluster's tasks: a thread of the chief that everyone keeps a connection to.

tf.distribute says neither who is missing nor who was lost, and a task that waits inside it cannot be interrupted. The
hub knows both at once: a process that is killed closes its connection. Messages are lines of JSON.

to the hub      {"hello": TASK}, {"gather": TOPIC, "value": V}, {"stop": true}, {"leave": REASON}
from the hub    {"refused": WHY}, {"missing": [TASK...]}, {"gathered": TOPIC, "values": {TASK: V}}, {"lost": TASK},
                {"left": TASK, "reason": REASON}, {"back": TASK}, {"stop": TASK}
"""

import json
import selectors
import socket
import threading
import time

_LONGEST_LINE = 1 << 20


class Hub(threading.Thread):
    """Collects what the tasks send and tells everyone.

    Args:
        port: to listen on.
        host: "" for all interfaces.
        expected: a dict from topic to the tasks that take part in gathering it; other topics need `default`.
        default: the tasks that take part in any other topic.

    Raises:
        OSError: the port cannot be listened on.
    """

    def __init__(self, host, port, expected, default):
        super().__init__(name="hub", daemon=True)
        self._expected, self._default = expected, default
        self._everyone = sorted({task for tasks in (*expected.values(), default) for task in tasks})
        self._tasks, self._buffers, self._gathered, self._seen = {}, {}, {}, set()
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server((host, port), backlog=1024)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._told_missing = 0.0

    def run(self):
        while True:
            for key, _ in self._selector.select(timeout=1.0):
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._read(key.fileobj)
            self._tell_missing()

    def _accept(self):
        connection, _ = self._listener.accept()
        keep_alive(connection)
        # Reading follows the selector; writing small lines may block for a moment.
        connection.settimeout(10)
        self._buffers[connection] = b""
        self._selector.register(connection, selectors.EVENT_READ)

    def _read(self, connection):
        try:
            data = connection.recv(1 << 16)
        except OSError:
            data = b""
        if not data or len(self._buffers[connection]) > _LONGEST_LINE:
            self._close(connection)
            return
        *lines, self._buffers[connection] = (self._buffers[connection] + data).split(b"\n")
        for line in lines:
            try:
                message = json.loads(line)
                self._handle(connection, message)
            except (ValueError, KeyError, TypeError, AttributeError):
                # Not one of us: whoever scans ports.
                self._close(connection)
                return

    def _handle(self, connection, message):
        task = self._tasks.get(connection)
        if "hello" in message:
            name = message["hello"]
            if name not in self._everyone:
                self._send(connection, {"refused": f"{name} is not a task of the chief's cluster"})
            elif name in self._tasks.values():
                self._send(connection, {"refused": f"another process is {name} already"})
            else:
                self._tasks[connection] = name
                if name in self._seen:
                    self._broadcast({"back": name}, besides=connection)
                self._seen.add(name)
        elif task is None:
            self._close(connection)
        elif "gather" in message:
            self._gather(connection, task, message["gather"], message["value"])
        elif "stop" in message:
            self._broadcast({"stop": task})
        elif "leave" in message:
            self._broadcast({"left": task, "reason": message["leave"]}, besides=connection)
            del self._tasks[connection]

    def _gather(self, connection, task, topic, value):
        values = self._gathered.setdefault(topic, {})
        needed = self._needed(topic)
        complete = needed <= set(values)
        values[task] = value
        if complete:
            # A task that comes back hears what was agreed on.
            self._send(connection, {"gathered": topic, "values": values})
        elif needed <= set(values):
            self._broadcast({"gathered": topic, "values": values})
            if topic not in self._expected:
                del self._gathered[topic]

    def _needed(self, topic):
        return set(self._expected.get(topic, self._default))

    def _tell_missing(self):
        if time.monotonic() - self._told_missing < 1.0:
            return
        self._told_missing = time.monotonic()
        for topic, values in self._gathered.items():
            missing = sorted(self._needed(topic) - set(values))
            if missing:
                for connection, task in list(self._tasks.items()):
                    if task in values:
                        self._send(connection, {"missing": missing})

    def _close(self, connection):
        self._selector.unregister(connection)
        del self._buffers[connection]
        task = self._tasks.pop(connection, None)
        connection.close()
        if task is not None:
            for topic, values in self._gathered.items():
                if not self._needed(topic) <= set(values):
                    values.pop(task, None)
            self._broadcast({"lost": task})

    def _broadcast(self, message, besides=None):
        for connection in list(self._tasks):
            if connection is not besides:
                self._send(connection, message)

    def _send(self, connection, message):
        try:
            send_line(connection, message)
        except OSError:
            # Found out again, and dealt with, when it is next read from.
            return


def send_line(connection, message):
    """Sends one message."""
    connection.sendall(json.dumps(message).encode() + b"\n")


def keep_alive(connection):
    """Makes the system notice within about half a minute that the machine at the other end is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4), ("TCP_USER_TIMEOUT", 30_000)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
