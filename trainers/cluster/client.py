"""A task's place in its cluster: meeting the others, agreeing with them, and ending when one of them is lost."""

import json
import os
import queue
import socket
import sys
import threading
import time

from trainers.cli.arguments import RunError, UsageError
from trainers.cluster.server import Hub, keep_alive, send_line

# Each worker may have its own of these; everything else has to be the same everywhere.
OWN_SETTINGS = frozenset({"data_dir", "download", "preset", "keep_checkpoints", "cluster_timeout"})
FIRST_WORD_SECONDS, WORD_SECONDS = 3.0, 30.0
# How long a task that is told that another one ended by itself may take to end by itself, with its own reason.
GRACE_SECONDS = 10.0
_TELLING_SECONDS = 0.5


class Membership:
    """The connection of this task to the others, through the chief's `trainers.cluster.server.Hub`.

    Args:
        cluster: a `trainers.cluster.description.Cluster`.
        timeout: in seconds, how long to wait for absent tasks.
        say: called with a sentence for people.
    """

    def __init__(self, cluster, timeout, say):
        self.cluster, self.timeout, self._say = cluster, timeout, say
        self.stop_requested = threading.Event()
        # What to add to the sentence about a lost task, such as where the run can go on from.
        self.advice = lambda: ""
        self._answers, self._missing, self._away, self._ended = queue.Queue(), [], set(), False
        if cluster.is_chief:
            host, port = cluster.meeting_place
            everyone = list(cluster.tasks)
            # The tasks that train take part in everything; parameter servers and their workers only in the meeting.
            trainers = [cluster.chief] if cluster.asynchronous else everyone
            try:
                local = host in ("localhost", "127.0.0.1")
                Hub(host if local else "", port, {"meeting": everyone}, trainers).start()
            except OSError as error:
                raise UsageError(
                    f"port {port} of this machine, where the tasks meet, cannot be used: {error.strerror}. Give every "
                    f"task another --control-port."
                ) from error

    def meet(self, settings):
        """Waits for all tasks, and makes sure that they were given the same settings.

        Raises:
            RunError: tasks are still absent after `timeout` seconds.
            UsageError: settings differ.
        """
        self._connect()
        threading.Thread(target=self._listen, name="membership", daemon=True).start()
        values = self._gather("meeting", settings, self.timeout)
        for task, theirs in values.items():
            differing = sorted(
                name for name in {*settings, *theirs} - OWN_SETTINGS if settings.get(name) != theirs.get(name)
            )
            if differing:
                listed = "; ".join(f"{n} is {theirs.get(n)!r} at {task}, {settings.get(n)!r} here" for n in differing)
                raise UsageError(
                    f"the tasks of the cluster were given different settings: {listed} ({self.cluster.task}). Give "
                    f"every task the same command."
                )

    def gather(self, topic, value):
        """What every task says about a topic, as a dict from task to value; waits for all of those that train.

        Each topic may be used once.
        """
        return self._gather(topic, value, None)

    def agree(self, topic, value):
        """Like `gather`, but raises RunError where the values differ from the chief's."""
        values = self.gather(topic, value)
        expected = values[self.cluster.chief]
        differing = [f"{task} has {value}" for task, value in values.items() if value != expected]
        if differing:
            raise RunError(
                f"the tasks of the cluster do not agree on {topic}: {self.cluster.chief} has {expected}, "
                f"{', '.join(differing)}. {self.advice()}"
            )

    def request_stop(self):
        """Asks all tasks to stop after a step that they will agree on."""
        send_line(self._socket, {"stop": True})

    def end(self, reason=None):
        """Leaves the cluster: in order when every task does, or (with a reason) alone."""
        if self._ended:
            return
        if reason is None:
            self._gather("end", True, None)
        self._ended = True
        try:
            if reason is not None:
                send_line(self._socket, {"leave": reason})
            # The chief's hub ends with it: the others are told first.
            time.sleep(_TELLING_SECONDS if self.cluster.is_chief else 0)
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def wait_to_be_told(self):
        """After an error that the loss of a task may have caused: leaves the time to be told of the loss and end."""
        time.sleep(GRACE_SECONDS)

    def _connect(self):
        place = self.cluster.meeting_place
        deadline, said = time.monotonic() + self.timeout, time.monotonic() + FIRST_WORD_SECONDS - WORD_SECONDS
        while True:
            try:
                self._socket = socket.create_connection(place, timeout=5)
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise RunError(
                        f"{self.cluster.task} waited {self.timeout:g} seconds (--cluster-timeout) for "
                        f"{self._named([self.cluster.chief])}, in vain: {error.strerror or error}. Start it, or check "
                        f"that port {place[1]} of {place[0]} can be reached from here."
                    ) from error
                said = self._say_missing([self.cluster.chief], said)
                time.sleep(0.2)
        keep_alive(self._socket)
        self._socket.settimeout(None)
        send_line(self._socket, {"hello": self.cluster.task})

    def _gather(self, topic, value, timeout):
        send_line(self._socket, {"gather": topic, "value": value})
        deadline = None if timeout is None else time.monotonic() + timeout
        said = time.monotonic() + FIRST_WORD_SECONDS - WORD_SECONDS
        while True:
            try:
                answered, values = self._answers.get(timeout=0.2)
            except queue.Empty:
                if topic == "meeting":
                    said = self._say_missing(self._missing, said)
                if deadline is not None and time.monotonic() > deadline:
                    raise RunError(
                        f"{self.cluster.task} waited {self.timeout:g} seconds (--cluster-timeout) for "
                        f"{self._named(self._missing)}, in vain. Start every task of the cluster, or wait longer."
                    ) from None
                continue
            if answered == topic:
                return values

    def _say_missing(self, tasks, said):
        if not tasks or time.monotonic() - said < WORD_SECONDS:
            return said
        self._say(f"{self.cluster.task} waits for {self._named(tasks)} (at most {self.timeout:g} seconds)")
        return time.monotonic()

    def _named(self, tasks):
        return ", ".join(f"{task} ({self.cluster.tasks[task]})" for task in tasks) or "the other tasks"

    def _listen(self):
        for message in self._messages():
            if "gathered" in message:
                self._missing = []
                # From now on the others may close their connections at any time.
                self._ended = self._ended or message["gathered"] == "end"
                self._answers.put((message["gathered"], message["values"]))
            elif "missing" in message:
                self._missing = message["missing"]
            elif "stop" in message:
                self.stop_requested.set()
            elif "back" in message and self.cluster.is_chief:
                self._away.discard(message["back"])
                self._say(f"{self._named([message['back']])} is back")
            elif "lost" in message:
                self._lost(message["lost"], "was lost")
            elif "left" in message:
                self._left(message["left"], message["reason"])
            elif "refused" in message:
                self._die(f"{self.cluster.task} is refused by {self.cluster.chief}: {message['refused']}.", 2)
        if not self._ended:
            self._lost(self.cluster.chief, "was lost")

    def _messages(self):
        with self._socket.makefile("rb") as lines:
            try:
                for line in lines:
                    yield json.loads(line)
            except (OSError, ValueError):
                return

    def _left(self, task, reason):
        # Most errors are met by every task: each is given the time to end with its own sentence.
        def later():
            time.sleep(GRACE_SECONDS)
            self._lost(task, f"ended: {reason}")

        threading.Thread(target=later, daemon=True).start()

    def _lost(self, task, how):
        if self._ended:
            return
        if self.cluster.asynchronous and task.startswith("worker "):
            if self.cluster.is_chief:
                self._say(f"{self._named([task])} {how}; the others go on, and it may come back")
                self._away.add(task)
                if len(self._away) == len(self.cluster.jobs["worker"]):
                    threading.Thread(target=self._wait_for_workers, daemon=True).start()
            return
        self._die(
            f"{self._named([task])} {how}. {self.advice()} To go on, start every task again with the same command.", 1
        )

    def _wait_for_workers(self):
        workers = len(self.cluster.jobs["worker"])
        self._say(f"no worker is left: waiting {self.timeout:g} seconds for one to come back")
        deadline = time.monotonic() + self.timeout
        while len(self._away) == workers and not self._ended:
            if time.monotonic() > deadline:
                self._die(
                    f"no worker came back within {self.timeout:g} seconds (--cluster-timeout). {self.advice()}", 1
                )
            time.sleep(0.5)

    def _die(self, sentence, code):
        # The main thread may be inside a collective operation that nothing can interrupt. What is on disk is complete
        # at any moment, so nothing is lost by ending here.
        print(f"error: {sentence}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        # The chief's hub ends with it: the others are told first.
        time.sleep(_TELLING_SECONDS if self.cluster.is_chief else 0)
        os._exit(code)
