"""Interface of a program to the tasks of its cluster, also for a single process."""

import contextlib
import ipaddress
import os
import pathlib
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trainers.cli.arguments import RunError, UsageError
from trainers.cli.startup import explain_error
from trainers.cli.text import as_text
from trainers.cluster import token
from trainers.cluster.client import ClusterClient
from trainers.cluster.description import ClusterDescription
from trainers.cluster.server import CoordinationServer

LISTEN_VARIABLE = "IDMATTERS_CLUSTER_LISTEN"


class Alone:
    """Interface of `trainers.cluster.client.ClusterClient` for a single process."""

    alone = is_chief = True
    asynchronous = serves = stop_requested = False
    description = None
    task = chief = "this process"
    workers = 1

    def gather(self, topic: str, value: Any) -> dict[str, Any]:
        """Return the value of this process, by its name."""
        return {self.task: value}

    def agree(self, topic: str, value: Any) -> None:
        """Do nothing: there is no other task."""

    def stop(self) -> None:
        """Set `stop_requested`."""
        self.stop_requested = True

    def leave(self, reason: str | None = None) -> None:
        """Do nothing: there is no other task."""


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
    """Return a context that joins the cluster, and at its end leaves it or reports the error to the other tasks.

    Args:
        description: the cluster; None for a single process.
        settings: JSON values that must be the same for all tasks.
        folder: folder of the run, see `trainers.cluster.client.ClusterClient` for this and the other arguments.
        timeout: number of seconds to wait for absent tasks.
        say: function called with messages for the user.
        advice: function that returns text to append to messages about lost tasks.

    Raises:
        UsageError: the tasks have different settings, or the chief's port cannot be used.
        RunError: tasks are absent.
    """
    if description is None:
        yield Alone()
        return
    folder = pathlib.Path(folder)
    # In an asynchronous cluster only the coordinator uses the folder.
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
        if _is_tensorflow_error(error):
            sentence = client.explain_failure()
            if sentence:
                client.leave(sentence)
                raise RunError(sentence, client.advice()) from error
        client.leave(explain_error(error)[0] or f"{type(error).__name__} {error}".strip().partition("\n")[0])
        raise
    finally:
        if client.is_chief:
            token.remove(folder)


def _is_tensorflow_error(error):
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow is not None and isinstance(error, tensorflow.errors.OpError)


def _start_server(client, folder):
    description = client.description
    everyone = list(description.tasks)
    # Parameter servers and their workers take part in the start only, tasks that train in all exchanges.
    trainers = [description.chief] if description.asynchronous else everyone
    port = description.meeting_place[1]
    try:
        host = _listening_host(description)
        secret = token.load_or_create(folder)
        CoordinationServer(host, port, secret, {"meeting": everyone}, trainers, client.fail).start()
    except socket.gaierror as error:
        raise UsageError(
            f"the address of {description.chief} cannot be resolved on its own machine: {error.strerror}. "
            f"{_listening_advice(description)}"
        ) from error
    except OSError as error:
        raise UsageError(
            f"the control port {port} of this machine cannot be used: {error.strerror}. Pass another --control-port to "
            f"every task. {_listening_advice(description)}"
        ) from error


def _listening_advice(description):
    return (
        f"{description.chief} listens on {description.meeting_place[0]} (from {description.source}); set "
        f"{LISTEN_VARIABLE} in its environment to another address of its machine, or to 0.0.0.0 for all."
    )


def _listening_host(description):
    """Return the chief's own address: connections from other networks of the machine are not accepted."""
    host = os.environ.get(LISTEN_VARIABLE) or description.meeting_place[0]
    others = [address.rpartition(":")[0].strip("[]") for address in description.tasks.values()]
    elsewhere = [other for other in others if other != host and not _is_loopback(other)]
    if not elsewhere or not _is_loopback(host):
        return host
    # Some distributions assign 127.0.1.1 to the machine's own name, which other machines cannot reach. They reach it by
    # the source address of packets to them. Connecting a datagram socket sends nothing.
    family, kind, _, _, address = socket.getaddrinfo(elsewhere[0], 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        return probe.getsockname()[0]


def _is_loopback(host):
    try:
        return ipaddress.ip_address(socket.getaddrinfo(host, None)[0][4][0]).is_loopback
    except OSError:
        return False
