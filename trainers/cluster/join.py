"""The one interface of a program to the tasks that it trains with, whether there are many or none but itself."""

import contextlib
import ipaddress
import os
import pathlib
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trainers.cli.arguments import RunError, UsageError
from trainers.cli.startup import explained
from trainers.cli.text import as_text
from trainers.cluster import token
from trainers.cluster.client import ClusterClient
from trainers.cluster.description import ClusterDescription
from trainers.cluster.server import CoordinationServer

LISTEN_VARIABLE = "IDMATTERS_CLUSTER_LISTEN"


class Alone:
    """The interface of `trainers.cluster.client.ClusterClient` for a process that trains alone."""

    alone = is_chief = True
    asynchronous = serves = stop_requested = False
    description = None
    task = chief = "this process"
    workers = 1

    def gather(self, topic: str, value: Any) -> dict[str, Any]:
        return {self.task: value}

    def agree(self, topic: str, value: Any) -> None:
        """There is nobody to disagree with."""

    def stop(self) -> None:
        self.stop_requested = True

    def leave(self, reason: str | None = None) -> None:
        """There is nobody to leave."""


Cluster = ClusterClient | Alone


@contextlib.contextmanager
def join(
    description: ClusterDescription | None,
    settings: Mapping[str, Any],
    folder: str | os.PathLike,
    timeout: float,
    say: Callable[[str], object],
    advice: Callable[[], str] = lambda: "",
) -> Iterator[Cluster]:
    """Meets the other tasks; at the end of the block leaves in order, or says why.

    Args:
        description: the cluster's; None for a process that trains alone.
        settings: the JSON values that have to be the same for every task.
        folder, timeout, say, advice: see `trainers.cluster.client.ClusterClient`.

    Raises:
        UsageError: the tasks were given different settings, or the chief's port cannot be used.
        RunError: tasks are absent.
    """
    if description is None:
        yield Alone()
        return
    folder = pathlib.Path(folder)
    # An asynchronous cluster's folder is the coordinator's own affair.
    shared = settings if description.asynchronous else {**settings, "out": as_text(str(folder.absolute()))}
    client = ClusterClient(description, folder, timeout, say, advice)
    if client.is_chief:
        _start_server(client, folder)
    try:
        client.meet(shared)
        yield client
        client.leave()
    except RunError as error:
        client.leave(error.reason, error.advice)
        raise
    except UsageError as error:
        client.leave(str(error))
        raise
    except BaseException as error:
        if _of_tensorflow(error):
            sentence = client.explain_failure()
            if sentence:
                client.leave(sentence)
                raise RunError(sentence, client.advice()) from error
        client.leave(explained(error)[0] or f"{type(error).__name__} {error}".strip().partition("\n")[0])
        raise
    finally:
        if client.is_chief:
            token.remove(folder)


def _of_tensorflow(error):
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow is not None and isinstance(error, tensorflow.errors.OpError)


def _start_server(client, folder):
    description = client.description
    everyone = list(description.tasks)
    # The tasks that train take part in everything; parameter servers and their workers only in the meeting.
    trainers = [description.chief] if description.asynchronous else everyone
    port = description.meeting_place[1]
    try:
        host = _listening_host(description)
        secret = token.of_chief(folder)
        CoordinationServer(host, port, secret, {"meeting": everyone}, trainers, client.fail).start()
    except socket.gaierror as error:
        raise UsageError(
            f"the address of {description.chief} is not known on its own machine: {error.strerror}. "
            f"{_how_to_listen(description)}"
        ) from error
    except OSError as error:
        raise UsageError(
            f"port {port} of this machine, where the tasks meet, cannot be used: {error.strerror}. Give every "
            f"task another --control-port. {_how_to_listen(description)}"
        ) from error


def _how_to_listen(description):
    return (
        f"{description.chief} listens on {description.meeting_place[0]}, as {description.source} says; "
        f"{LISTEN_VARIABLE} in its environment names another address of its machine, or 0.0.0.0 for all of them."
    )


def _listening_host(description):
    """The chief's own address, and no other: strangers on other networks of the machine are not listened to."""
    host = os.environ.get(LISTEN_VARIABLE) or description.meeting_place[0]
    others = [address.rpartition(":")[0].strip("[]") for address in description.tasks.values()]
    elsewhere = [other for other in others if other != host and not _is_loopback(other)]
    if not elsewhere or not _is_loopback(host):
        return host
    # Some distributions give a machine's own name an address of 127.0.1.1, where no other machine can reach it. What
    # the machine would send from to one of the others is what they reach it by; nothing is sent here.
    family, kind, _, _, address = socket.getaddrinfo(elsewhere[0], 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        return probe.getsockname()[0]


def _is_loopback(host):
    try:
        return ipaddress.ip_address(socket.getaddrinfo(host, None)[0][4][0]).is_loopback
    except OSError:
        return False
