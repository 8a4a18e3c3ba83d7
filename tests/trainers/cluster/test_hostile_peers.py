"""Tests that strangers who connect to the chief's control port cannot disturb the tasks of a cluster."""

import contextlib
import json
import resource
import socket
import struct
import time

import pytest

from tests.support.processes import Cluster
from trainers.cluster import protocol

MEMBER = "tests.support.member"


@contextlib.contextmanager
def half_a_cluster(folder, *actions, workers=2):
    """Start a cluster whose chief waits for worker 1, which connects at the end. The cluster must start normally."""
    with Cluster(workers) as cluster:
        cluster.start(MEMBER, folder, 60, *actions, "gather:topic:1", tasks=["worker 0"])
        connection(cluster).close()
        yield cluster
        cluster.start(MEMBER, folder, 60, *actions, "gather:topic:1", tasks=["worker 1"])
        for code, output in cluster.finish(60).values():
            assert code == 0, output
            assert "[('worker 0', '1'), ('worker 1', '1')]" in output
            assert "Traceback" not in output
            assert "\x1b" not in output


def connection(cluster, timeout=30):
    """Return a connection to the control port after the chief has started to listen."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            return socket.create_connection(("127.0.0.1", cluster.control_port), timeout=30)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def is_closed(stranger):
    """Return True if the chief closes the connection, regardless of the data that it sends before."""
    with contextlib.suppress(ConnectionResetError):
        while stranger.recv(1 << 16):
            pass
    return True


def greeting(task, token, answer_to):
    ours = protocol.challenge()
    proof = protocol.proof(token.encode(), "task", answer_to, ours, task)
    return {"hello": task, "challenge": ours, "proof": proof}


def greeted(cluster, task, token):
    """Return a connection that has sent its greeting, and the answer."""
    stranger = connection(cluster)
    lines = stranger.makefile("rb")
    theirs = json.loads(lines.readline())["challenge"]
    stranger.sendall(protocol.encode(greeting(task, token, theirs)))
    return stranger, json.loads(lines.readline())


@pytest.mark.parametrize(
    "data",
    [
        b'{"stop": true}\n{"stop": true}\n',
        b'{"gather": "meeting", "value": {}}\n',
        b"[" * 900 + b"\n",
        b"[" * 100_000,
        b'{"hello": "worker 1"}\n',
        b'{"hello": ["worker 1"], "challenge": 1, "proof": null}\n{}\n{}\n',
        b'{"hello": "worker 1", "challenge": "", "proof": "\xc3\xa9"}\n',
        b"GET / HTTP/1.1\r\nHost: chief\r\n\r\n",
        b"\x1b[2J\x1b[31m\n",
        b"\n\n\n",
        b"\xff\xfe\x00\n",
        b"1" * 5000 + b"\n",
    ],
    ids=lambda data: repr(data[:16]),
)
def test_whatever_strangers_send_is_answered_by_closing(hostile, data):
    stranger = connection(hostile)
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
        stranger.sendall(data)
    assert is_closed(stranger)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Yield one cluster for all strangers, which must start after they have disconnected."""
    with half_a_cluster(tmp_path_factory.mktemp("hostile")) as cluster:
        yield cluster


def test_a_stranger_cannot_take_the_place_of_an_absent_task(hostile):
    stranger, answer = greeted(hostile, "worker 1", "a guess of the token")
    assert answer == {"refused": "it has another token", "proof": None}
    assert is_closed(stranger)


def test_an_answer_to_one_challenge_is_no_answer_to_another(hostile):
    with connection(hostile) as first, connection(hostile) as second:
        theirs = json.loads(first.makefile("rb").readline())["challenge"]
        second.sendall(protocol.encode(greeting("worker 1", hostile.token, theirs)))
        assert b"refused" in second.makefile("rb").read()


def test_a_task_of_another_cluster_and_a_second_chief_are_refused(hostile):
    for task, why in (("worker 7", "is not a task of the chief's cluster"), ("worker 0", "is worker 0 already")):
        stranger, answer = greeted(hostile, task, hostile.token)
        assert why in answer["refused"]
        assert is_closed(stranger)


def test_who_says_nothing_is_closed_in_time(hostile):
    started = time.monotonic()
    assert is_closed(connection(hostile))
    assert time.monotonic() - started > protocol.GREETING_SECONDS - 3


def test_resets_and_many_connections(hostile):
    for _ in range(50):
        stranger = connection(hostile)
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        stranger.close()
    strangers = [connection(hostile) for _ in range(200)]
    assert is_closed(strangers[0])
    for stranger in strangers:
        stranger.close()


def test_a_task_that_breaks_the_protocol_is_lost_and_no_more(tmp_path):
    with Cluster(2) as cluster:
        cluster.start(MEMBER, tmp_path, 60, "sleep:60", tasks=["worker 0"])
        rogue, answer = greeted(cluster, "worker 1", cluster.token)
        assert "welcome" in answer
        settings = {"setting": "same", "out": str(tmp_path)}
        rogue.sendall(protocol.encode({"gather": "meeting", "value": settings}))
        cluster.output("worker 0", "met")
        rogue.sendall(b"[" * 100_000 + b"\n" + b'{"gather": 1}\n')
        ((code, output),) = cluster.finish(30).values()
        assert code == 1
        assert "error: worker 1" in output
        assert "was lost. The advice." in output
        assert "Traceback" not in output


def test_the_chief_runs_out_of_descriptors_and_recovers(tmp_path):
    with half_a_cluster(tmp_path) as cluster:
        chief = cluster.processes["worker 0"].pid
        limits = resource.prlimit(chief, resource.RLIMIT_NOFILE)
        resource.prlimit(chief, resource.RLIMIT_NOFILE, (16, limits[1]))
        strangers = [connection(cluster) for _ in range(30)]
        time.sleep(3)
        for stranger in strangers:
            stranger.close()


def test_a_task_that_never_reads_holds_up_nobody(tmp_path):
    with Cluster(1, ps=1) as cluster:
        cluster.start(MEMBER, tmp_path, 60, "flood:300:100000", tasks=["chief 0"])
        # The parameter server, without which nobody can go on, reads; the worker does not.
        reader, rogue = (greeted(cluster, task, cluster.token)[0] for task in ("ps 0", "worker 0"))
        for peer in (reader, rogue):
            peer.sendall(b'{"gather": "meeting", "value": {"setting": "same"}}\n')
        assert is_closed(reader)
        ((code, output),) = cluster.finish(60).values()
        assert code == 0, output[-2000:]
        assert "worker 0" in output
        assert "was lost; the others go on" in output
