"""Connection of a task to its cluster: start, exchange of values, and exit after the loss of another task."""

import contextlib
import os
import pathlib
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NoReturn

from trainers.cli.arguments import RunError, UsageError
from trainers.cli.startup import say_before_exit
from trainers.cli.text import escape_controls
from trainers.cluster import protocol, token
from trainers.cluster.description import ClusterDescription
from trainers.cluster.protocol import LineBuffer, Message, ProtocolError
from trainers.cluster.server import SILENT_SECONDS

FIRST_NOTICE_SECONDS, NOTICE_SECONDS = 3.0, 30.0
# Time in which a task may exit with its own error message after another task has exited with an error.
GRACE_SECONDS = 10.0
# Time without a heartbeat after which a task counts as lost.
HANGING_SECONDS = 120.0
_FLUSH_SECONDS = 0.5


class ClusterClient:
    """Connection of this task to the others, through the chief's `trainers.cluster.server.CoordinationServer`.

    Args:
        description: tasks of the cluster, and the task of this process.
        folder: folder of the run, which may contain the token.
        timeout: number of seconds to wait for absent tasks.
        say: function called with messages for the user.
        advice: function that returns text to append to messages about lost tasks, such as the last checkpoint. It is
            called from another thread, while the main thread may be importing TensorFlow, and must not import anything.

    Attributes:
        description: the argument.
        task, chief, is_chief, asynchronous: see `ClusterDescription`.
        serves: True if this task only executes requests of the coordinator of an asynchronous cluster.
        workers: number of tasks that compute gradients.
        stop_requested: True if some task has requested that all tasks stop.
    """

    alone = False

    def __init__(
        self,
        description: ClusterDescription,
        folder: pathlib.Path,
        timeout: float,
        say: Callable[[str], object],
        advice: Callable[[], str] = lambda: "",
    ):
        self.description, self.stop_requested = description, False
        self.task, self.chief, self.is_chief = description.task, description.chief, description.is_chief
        self.asynchronous = description.asynchronous
        self.serves = self.asynchronous and not self.is_chief
        self.workers = len(description.jobs["worker"]) if self.asynchronous else len(description.tasks)
        self._folder, self._timeout, self._say, self._advice = folder, timeout, say, advice
        # Messages are sent by one thread only. Signal handlers may add messages at any time.
        self._outgoing: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._answers: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue()
        self._missing: list[str] = []
        # Time of the last message of each silent task; (start, end) of the last silence of each other task.
        self._silent: dict[str, float] = {}
        self._were_silent: dict[str, tuple[float, float]] = {}
        self._away: set[str] = set()
        self._leaving: set[str] = set()
        # Cleared while all workers are lost.
        self._workers_back = threading.Event()
        self._workers_back.set()
        self._ended = False
        self._heard = time.monotonic()
        self._connection: socket.socket | None = None

    def meet(self, settings: Mapping[str, Any]) -> None:
        """Wait for all tasks and check that they have the same settings.

        Raises:
            RunError: tasks are still absent after the timeout.
            UsageError: settings differ.
        """
        connection, lines = self._connect()
        self._connection = connection
        self._heard = time.monotonic()
        threading.Thread(target=self._listen, args=(lines,), name="cluster client, listening", daemon=True).start()
        threading.Thread(target=self._send, args=(connection,), name="cluster client, sending", daemon=True).start()
        for task, theirs in self._gather("meeting", dict(settings), self._timeout).items():
            differing = sorted(name for name in {*settings, *theirs} if settings.get(name) != theirs.get(name))
            if differing:
                listed = "; ".join(f"{n} is {theirs.get(n)!r} at {task}, {settings.get(n)!r} here" for n in differing)
                raise UsageError(
                    f"the tasks of the cluster have different settings: {listed} ({self.task}). Start every task with "
                    f"the same command."
                )

    def gather(self, topic: str, value: Any) -> dict[str, Any]:
        """Wait for all tasks that train, and return the value of each task for a topic, by task.

        Each topic may be used once.
        """
        return self._gather(topic, value, None)

    def agree(self, topic: str, value: Any) -> None:
        """Gather values, and raise RunError if one differs from the chief's."""
        values = self.gather(topic, value)
        expected = values[self.chief]
        differing = [f"{task} has {value}" for task, value in values.items() if value != expected]
        if differing:
            raise RunError(
                f"the tasks of the cluster do not agree on {topic}: {self.chief} has {expected}, "
                f"{', '.join(differing)}.",
                self._advice(),
            )

    def stop(self) -> None:
        """Request that all tasks stop after the same step; may be called from a signal handler."""
        self._outgoing.put({"stop": True})

    def leave(self, reason: str | None = None, advice: str = "") -> None:
        """Leave the cluster: without a reason together with all tasks, with one alone.

        Args:
            reason: error message for the other tasks.
            advice: text that they append to it, in place of their own.
        """
        if self._ended or self._connection is None:
            return
        if reason is None:
            self._gather("end", True, None)
        self._ended = True
        if reason is not None:
            self._outgoing.put({"leave": escape_controls(reason), "advice": escape_controls(advice)})
        # The chief's server ends with the process and needs time to notify the other tasks.
        time.sleep(_FLUSH_SECONDS if self.is_chief or reason is not None else 0)
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def explain_failure(self) -> str:
        """Wait for news about the tasks, after an error that the loss of a task may have caused.

        If a task was lost, the process ends here.

        Returns:
            A sentence about a task that is or was silent, or "".
        """
        deadline = time.monotonic() + max(GRACE_SECONDS, 1.5 * SILENT_SECONDS)
        while time.monotonic() < deadline:
            now = time.monotonic()
            silent = [(now - since, task, "has been") for task, since in dict(self._silent).items()]
            silent += [
                (until - since, task, "was")
                for task, (since, until) in dict(self._were_silent).items()
                if now - until < HANGING_SECONDS
            ]
            if silent:
                seconds, task, verb = max(silent)
                return f"{self._with_addresses([task])} {verb} silent for {seconds:.0f} seconds."
            time.sleep(0.2)
        return ""

    def fail(self, error: Exception) -> NoReturn:
        """End the process after an error of the coordination, whatever the main thread does."""
        self._die(f"the coordination of the cluster has failed: {type(error).__name__}: {error}")

    def _connect(self) -> tuple[socket.socket, Iterator[bytes]]:
        place = self.description.meeting_place
        deadline, said = time.monotonic() + self._timeout, time.monotonic() + FIRST_NOTICE_SECONDS - NOTICE_SECONDS
        while True:
            try:
                return self._greet(socket.create_connection(place, timeout=5))
            except (OSError, ProtocolError) as error:
                reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
                if time.monotonic() > deadline:
                    raise RunError(
                        f"{self.task} waited {self._timeout:g} seconds (--cluster-timeout) for "
                        f"{self._with_addresses([self.chief])}: {reason}. Start it, or check that port {place[1]} of "
                        f"{place[0]} can be reached from here."
                    ) from error
                because = f": {reason}" if isinstance(error, ProtocolError) else ""
                said = self._say_missing([self.chief], said, because)
                time.sleep(0.2)

    def _greet(self, connection):
        """Perform the handshake, and return the connection and an iterator of the following lines."""
        try:
            lines = _lines(connection)
            theirs = str(protocol.decode(next(lines, b"")).get("challenge"))
            secret = token.load(self._folder)
            if secret is None:
                raise ProtocolError(token.sharing_advice(self._folder))
            ours = protocol.challenge()
            proofs = {role: protocol.proof(secret, role, theirs, ours, self.task) for role in ("task", "server")}
            hello = {"hello": self.task, "challenge": ours, "proof": proofs["task"]}
            connection.sendall(protocol.encode(hello))
            answer = protocol.decode(next(lines, b""))
            known = protocol.proves(answer.get("welcome") or answer.get("proof"), proofs["server"])
            if "refused" in answer and known:
                raise UsageError(f"{self.chief} rejects {self.task}: {answer['refused']}.")
            if not known:
                raise ProtocolError(
                    f"it has a different token. Start all tasks with the same --out on a shared file system, or set "
                    f"{token.VARIABLE} to the same secret for every task"
                )
            protocol.keep_alive(connection)
            connection.settimeout(None)
            return connection, lines
        except BaseException:
            connection.close()
            raise

    def _gather(self, topic, value, timeout):
        self._outgoing.put({"gather": topic, "value": value})
        deadline = None if timeout is None else time.monotonic() + timeout
        said = time.monotonic() + FIRST_NOTICE_SECONDS - NOTICE_SECONDS
        while True:
            try:
                answered, values = self._answers.get(timeout=0.2)
            except queue.Empty:
                if topic == "meeting":
                    said = self._say_missing(self._missing, said)
                if deadline is not None and time.monotonic() > deadline:
                    raise RunError(
                        f"{self.task} waited {self._timeout:g} seconds (--cluster-timeout) for "
                        f"{self._with_addresses(self._missing)}. Start every task of the cluster, or increase the "
                        f"timeout."
                    ) from None
                continue
            if answered == topic:
                return values

    def _say_missing(self, tasks, said, because=""):
        if not tasks or time.monotonic() - said < NOTICE_SECONDS:
            return said
        self._say(f"{self.task} waits for {self._with_addresses(tasks)} (at most {self._timeout:g} seconds){because}")
        return time.monotonic()

    def _with_addresses(self, tasks: Collection[str]) -> str:
        addresses = self.description.tasks
        return ", ".join(f"{task} ({addresses.get(task)})" for task in tasks) or "the other tasks"

    def _send(self, connection: socket.socket):
        """Send the messages of the queue, and heartbeats in between."""
        before = time.monotonic()
        while True:
            try:
                message = self._outgoing.get(timeout=min(protocol.HEARTBEAT_SECONDS, SILENT_SECONDS / 4))
            except queue.Empty:
                message = {"alive": True}
            try:
                connection.sendall(protocol.encode(message))
            except OSError:
                # The listening thread detects the lost connection.
                return
            now = time.monotonic()
            if now - before > SILENT_SECONDS / 2:
                # This process itself was suspended.
                self._heard = now
            before = now
            self._check_silence(now)

    def _check_silence(self, now):
        if now - self._heard > SILENT_SECONDS:
            self._note_silence(self.chief, now - self._heard)
        elif self.chief in self._silent and not self.is_chief:
            self._note_return(self.chief)
        for task, since in list(self._silent.items()):
            if now - since > HANGING_SECONDS:
                self._handle_loss(task, f"has been silent for {now - since:.0f} seconds")

    def _note_silence(self, task, seconds):
        new = task not in self._silent
        self._silent[task] = time.monotonic() - seconds
        if new and (self.is_chief or task == self.chief):
            self._say(
                f"{self._with_addresses([task])} has been silent for {seconds:.0f} seconds: its process hangs or its "
                f"network fails. {self._advice()}"
            )

    def _note_return(self, task):
        since = self._silent.pop(task, None)
        if since is None:
            return
        self._were_silent[task] = since, time.monotonic()
        if self.is_chief or task == self.chief:
            self._say(f"{self._with_addresses([task])} responds again")

    def _listen(self, lines):
        try:
            for line in lines:
                self._heard = time.monotonic()
                self._receive(protocol.decode(line))
        except (OSError, ProtocolError):
            pass
        except Exception as error:
            self.fail(error)
        if not self._ended and self.chief not in self._leaving:
            self._handle_loss(self.chief, "was lost")

    def _receive(self, message: Message):
        if "gathered" in message:
            self._missing = []
            # The other tasks may close their connections at any time after the end.
            self._ended = self._ended or message["gathered"] == "end"
            self._answers.put((message["gathered"], message["values"]))
        elif "missing" in message:
            self._missing = message["missing"]
        elif "stop" in message:
            self.stop_requested = True
        elif "silent" in message:
            if message["silent"] != self.task:
                self._note_silence(message["silent"], message["seconds"])
        elif "heard" in message:
            self._note_return(message["heard"])
        elif "back" in message and self.is_chief:
            self._away.discard(message["back"])
            if not self._away:
                self._workers_back.set()
            self._say(f"{self._with_addresses([message['back']])} is back")
        elif "lost" in message:
            self._silent.pop(message["lost"], None)
            self._handle_loss(message["lost"], "was lost")
        elif "left" in message:
            self._handle_departure(message["left"], str(message["reason"]), str(message.get("advice", "")))

    def _handle_departure(self, task, reason, advice):
        # Most errors occur in every task: each gets time to exit with its own error message.
        self._leaving.add(task)

        def later():
            time.sleep(GRACE_SECONDS)
            self._handle_loss(task, f"ended: {reason.rstrip('.')}", advice)

        threading.Thread(target=later, daemon=True).start()

    def _handle_loss(self, task, how, advice=""):
        if self._ended:
            return
        if self.asynchronous and task.startswith("worker "):
            self._silent.pop(task, None)
            if self.is_chief and task not in self._away:
                self._say(f"{self._with_addresses([task])} {how}; the other workers continue, and it may rejoin")
                self._away.add(task)
                if len(self._away) == self.workers and self._workers_back.is_set():
                    self._workers_back = threading.Event()
                    threading.Thread(target=self._wait_for, args=(self._workers_back,), daemon=True).start()
            return
        self._die(f"{self._with_addresses([task])} {how}", advice)

    def _wait_for(self, workers_back):
        # After the loss of all workers, TensorFlow's coordinator reconnects to all or to none: a single worker that
        # rejoins gets no work.
        self._say(f"no worker is left: waiting {self._timeout:g} seconds for all of them to rejoin")
        if not workers_back.wait(self._timeout) and not self._ended:
            self._die(
                f"no worker is left, and {self._with_addresses(sorted(self._away))} did not rejoin within "
                f"{self._timeout:g} seconds (--cluster-timeout)"
            )

    def advice(self) -> str:
        """Return the remedy for the loss of a task."""
        return f"{self._advice()} To resume, start every task again with the same command."

    def _die(self, reason: str, advice: str = "") -> NoReturn:
        # The main thread may be inside a collective operation that cannot be interrupted. Files on disk are complete at
        # any time, so that exiting here loses nothing.
        self._ended = True
        say_before_exit(f"error: {escape_controls(f'{reason}. {advice or self.advice()}')}")
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        # The chief's server ends with the process and needs time to notify the other tasks.
        if self.is_chief:
            self._outgoing.put({"leave": reason, "advice": advice})
            time.sleep(_FLUSH_SECONDS)
            token.remove(self._folder)
        os._exit(1)


def _lines(connection):
    buffer = LineBuffer()
    while data := connection.recv(1 << 16):
        yield from buffer.lines(data)
