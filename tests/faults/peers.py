"""Unauthenticated clients on the control port of a cluster: its tasks still meet and agree."""

import contextlib
import json
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator

from tests.faults.bench import Bench, Cluster
from tests.faults.tally import Tally
from tests.support.forge import PATIENCE
from trainers.cluster import protocol

ATTACKS_A_TRIAL = 40
MEMBER = "tests.support.member"
ROW = "unauthenticated client on the control port: {}"
TASKS = ("worker 0", "worker 1", "worker 7", "", "\x1b[2J", "worker 1 " * 50)


def peers(bench: Bench, chance: random.Random, most: int) -> Tally:
    """Attack the control port before two tasks meet and while they are connected."""
    tally, count = Tally(), min(most, ATTACKS_A_TRIAL)
    folder, tried, wrong = bench.place("peers"), [], ""
    release = folder / "release"
    folder.mkdir()
    actions = ["gather:first:1", f"until-exists:{release}", "gather:last:2"]
    with bench.cluster(2) as cluster, contextlib.ExitStack() as held:
        try:
            cluster.start(MEMBER, folder, PATIENCE, *actions, tasks=["worker 0"], cold=True)
            _check_that_it_answers(cluster)
            for number in range(count):
                if number == count // 2:
                    cluster.start(MEMBER, folder, PATIENCE, *actions, tasks=["worker 1"], cold=True)
                name, attack = chance.choice(list(ATTACKS.items()))
                tried.append(name)
                # The previous attack may close this connection.
                with contextlib.suppress(ConnectionError):
                    attack(cluster, chance, held)
                _check_that_it_answers(cluster)
            release.touch()
            for task, process in cluster.processes.items():
                code, said = process.wait(), process.said()
                assert code == 0, f"{task}: exit code {code}: {said}"
                assert said.count("[('worker 0', '1'), ('worker 1', '1')]") == 1, said
                assert said.count("[('worker 0', '2'), ('worker 1', '2')]") == 1, said
                assert "Traceback" not in said, said
                assert "\x1b" not in said, said
        except (AssertionError, OSError) as error:
            said = {task: process.said() for task, process in cluster.processes.items()}
            wrong = f"after {tried[-5:]}: {error!r}; {said}"
    for name in tried:
        tally.count(ROW.format(name), 1, not wrong, wrong)
    return tally


def _connect(cluster: Cluster) -> socket.socket:
    """Return a connection to the control port, once the chief listens."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return socket.create_connection(("127.0.0.1", cluster.control_port), timeout=60)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, "nobody listens on the control port"
            time.sleep(0.05)


def _check_that_it_answers(cluster: Cluster) -> None:
    """Raise AssertionError or OSError unless a new connection receives a challenge."""
    with _connect(cluster) as connection:
        assert "challenge" in _read_line(connection)


def _read_line(connection: socket.socket) -> dict:
    return json.loads(connection.makefile("rb").readline() or b"{}")


def _send_in_pieces(connection: socket.socket, data: bytes, chance: random.Random) -> None:
    """Send data in one or several packets, until the other side closes the connection."""
    with contextlib.suppress(ConnectionError):
        for _ in range(chance.choice([0, 0, 1, 3])):
            cut = chance.randrange(len(data) + 1)
            connection.sendall(data[:cut])
            data = data[cut:]
            time.sleep(0.01 * chance.random())
        connection.sendall(data)


def _leave(connection: socket.socket, chance: random.Random, held: contextlib.ExitStack) -> None:
    """Close a connection in one of several ways, or keep it open."""
    how = chance.randrange(4)
    if how == 0:
        held.enter_context(connection)
        return
    if how == 1:
        # Reset the connection.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    elif how == 2:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass
    connection.close()


def _sending(data_of: Callable[[random.Random], bytes]):
    def attack(cluster: Cluster, chance: random.Random, held: contextlib.ExitStack) -> None:
        connection = _connect(cluster)
        _send_in_pieces(connection, data_of(chance), chance)
        _leave(connection, chance, held)

    return attack


def _messages(chance: random.Random) -> bytes:
    """Return lines of JSON that an unauthenticated client may not send."""
    odd = [None, True, 0, -1, 1e308, "", "worker 1", [], {}, ["worker 1"], {"a": "\x1b[2J"}, "é☃\x00", 10**400]
    keys = ["hello", "challenge", "proof", "gather", "value", "stop", "leave", "alive", "welcome", "lost", "x" * 100]
    kinds = [
        {"stop": True},
        {"gather": "meeting", "value": {}},
        {"leave": "\x1b[31mgone"},
        {"alive": True},
        {"hello": "worker 1"},
        {"hello": "worker 1", "challenge": "", "proof": ""},
    ]
    made = [chance.choice([chance.choice(kinds), {chance.choice(keys): chance.choice(odd) for _ in range(3)}])]
    made += [chance.choice(kinds) for _ in range(chance.randrange(1, 5))]
    return b"".join(map(protocol.encode, made))


def _nested(chance: random.Random) -> bytes:
    depth = chance.choice([100, 500, 900, 10_000, 200_000])
    return chance.choice([b"[", b'{"a":', b'{"hello":[']) * depth + chance.choice([b"", b"\n"])


def _overlong(chance: random.Random) -> bytes:
    letter = bytes([chance.randrange(1, 256)]).replace(b"\n", b"x")
    return letter * chance.choice([1_025, 5_000, 1 << 20, 3 << 20]) + chance.choice([b"", b"\n"])


def _garbage(chance: random.Random) -> bytes:
    return chance.randbytes(chance.choice([1, 2, 17, 300, 5_000])) + chance.choice([b"", b"\n", b"\r\n\r\n"])


def _never_reads(cluster: Cluster, chance: random.Random, held: contextlib.ExitStack) -> None:
    connection = held.enter_context(socket.socket())
    # The smallest buffer that the system allows.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    connection.settimeout(60)
    connection.connect(("127.0.0.1", cluster.control_port))
    with contextlib.suppress(ConnectionError):
        for _ in range(chance.randrange(1, 200)):
            connection.sendall(b'{"hello": "worker 1", "challenge": "", "proof": ""}\n')


def _crowd(cluster: Cluster, chance: random.Random, held: contextlib.ExitStack) -> None:
    for _ in range(chance.randrange(100, 300)):
        connection = _connect(cluster)
        if chance.random() < 0.5:
            _send_in_pieces(connection, chance.randbytes(chance.randrange(1, 20)), chance)
        held.enter_context(connection) if chance.random() < 0.7 else connection.close()


def _impostor(cluster: Cluster, chance: random.Random, held: contextlib.ExitStack) -> None:
    with _connect(cluster) as connection, _connect(cluster) as other:
        theirs, elsewhere = (str(_read_line(each).get("challenge")) for each in (connection, other))
        task, ours = chance.choice(TASKS), protocol.challenge()
        for answer in _proofs(cluster.token, theirs, elsewhere, ours, task, chance):
            _send_in_pieces(connection, protocol.encode({"hello": task, "challenge": ours, "proof": answer}), chance)
        connection.settimeout(60)
        with contextlib.suppress(ConnectionError):
            for line in connection.makefile("rb"):
                assert "welcome" not in json.loads(line), f"an impostor was accepted as {task!r}"


def _proofs(token: str, theirs: str, elsewhere: str, ours: str, task: str, chance: random.Random) -> Iterator[object]:
    """Yield one or two invalid proofs."""
    for _ in range(chance.randrange(1, 3)):
        yield chance.choice(
            [
                None,
                "",
                chance.randbytes(32).hex(),
                protocol.proof(b"another secret, long enough", "task", theirs, ours, task),
                # The right token, but another role, an older challenge, or another task.
                protocol.proof(token.encode(), "server", theirs, ours, task),
                protocol.proof(token.encode(), "task", elsewhere, ours, task),
                protocol.proof(token.encode(), "task", theirs, ours, f"{task} "),
            ]
        )


ATTACKS = {
    "several messages in one packet, without a greeting": _sending(_messages),
    "deeply nested JSON": _sending(_nested),
    "overlong line": _sending(_overlong),
    "random bytes": _sending(_garbage),
    "never reads": _never_reads,
    "hundreds of connections at once": _crowd,
    "invalid proof of the token": _impostor,
}
