"""Coordination of tasks in separate processes that do not train: start, exchange, stop, loss and end."""

import os
import selectors
import signal
import socket
import stat
import time

import pytest

from tests.support.processes import Cluster
from trainers.cluster import token
from trainers.cluster.server import CoordinationServer

MEMBER = "tests.support.member"


def address(cluster, task):
    job, index = task.split()
    return cluster.jobs[job][int(index)]


def test_gathering_agreeing_stopping_and_leaving(tmp_path):
    with Cluster(3) as cluster:
        actions = ["gather:topic:value", "agree:weights:1"]
        cluster.start(MEMBER, tmp_path, 60, *actions, "until-stop", tasks=["worker 0", "worker 2"])
        cluster.start(MEMBER, tmp_path, 60, *actions, "stop", "until-stop", tasks=["worker 1"])
        for code, output in cluster.finish(60).values():
            assert code == 0, output
            assert "[('worker 0', 'value'), ('worker 1', 'value'), ('worker 2', 'value')]" in output
            assert output.splitlines()[-1] == "done: until-stop"


def test_different_values_end_all_tasks_with_one_error_message(tmp_path):
    with Cluster(3) as cluster:
        cluster.start(MEMBER, tmp_path, 60, "agree:weights:1", tasks=["worker 0"])
        cluster.start(MEMBER, tmp_path, 60, "agree:weights:1", "until-stop", tasks=["worker 1"])
        cluster.start(MEMBER, tmp_path, 60, "agree:weights:2", tasks=["worker 2"])
        for code, output in cluster.finish(60).values():
            assert code == 1, output
            assert "do not agree on weights: worker 0 has 1, worker 2 has 2. The advice." in output
            assert output.count("The advice.") == 1, output
            assert "Traceback" not in output


def test_different_settings_are_rejected(tmp_path):
    with Cluster(2) as cluster:
        for number in (0, 1):
            cluster.start(MEMBER, tmp_path, 60, tasks=[f"worker {number}"], env={"SETTING": f"\x1b[2J{number}"})
        for task, (code, output) in cluster.finish(60).items():
            assert code == 2, output
            ours = int(task.split()[1])
            assert rf"setting is '\x1b[2J{1 - ours}' at worker {1 - ours}, '\x1b[2J{ours}' here ({task})" in output
            assert "Traceback" not in output


@pytest.mark.parametrize(("absent", "timeout"), [("worker 0", 5), ("worker 1", 0.6)])
def test_absent_tasks_are_named(tmp_path, absent, timeout):
    with Cluster(2) as cluster:
        (present,) = set(cluster.tasks) - {absent}
        cluster.start(MEMBER, tmp_path, timeout, tasks=[present])
        ((code, output),) = cluster.finish(60).values()
        assert code == 1, output
        named = f"{absent} ({address(cluster, absent)})"
        assert (f"{present} waits for {named} (at most 5 seconds)" in output) == (timeout == 5)
        assert f"error: {present} waited {timeout} seconds (--cluster-timeout) for {named}" in output
        assert "Traceback" not in output


@pytest.mark.parametrize("lost", ["worker 0", "worker 1"])
def test_a_killed_task_is_named_by_the_others(tmp_path, lost):
    with Cluster(3) as cluster:
        cluster.start(MEMBER, tmp_path, 60, "sleep:60")
        for task in cluster.tasks:
            cluster.output(task, "met")
        cluster.kill(lost)
        for code, output in cluster.finish(30).values():
            assert code == 1, output
            assert f"error: {lost} ({address(cluster, lost)}) was lost. The advice. To resume, start every" in output


def test_a_loss_is_reported_during_the_import_of_tensorflow(tmp_path):
    (tmp_path / "tensorflow.py").write_text("import time\ntime.sleep(60)\n")
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    with Cluster(2) as cluster:
        cluster.start(MEMBER, tmp_path, 60, "import", env={"PYTHONPATH": path})
        for task in cluster.tasks:
            cluster.output(task, "met")
        cluster.kill("worker 1")
        ((code, output),) = cluster.finish(30).values()
        assert code == 1
        assert f"error: worker 1 ({address(cluster, 'worker 1')}) was lost" in output


@pytest.mark.parametrize(
    ("raised", "own", "told"),
    [
        ("a \x1b[31mreason", r"a \x1b[31mreason", r"a \x1b[31mreason. The advice."),
        # In place of the other tasks' own advice, which is to resume, for example a diverged run.
        ("a reason.:Its own advice.", "a reason. Its own advice.\n", "a reason. Its own advice.\n"),
    ],
)
def test_an_error_of_one_task_is_reported_to_the_others(tmp_path, raised, own, told):
    with Cluster(2) as cluster:
        cluster.start(MEMBER, tmp_path, 60, f"raise:{raised}", tasks=["worker 1"])
        cluster.start(MEMBER, tmp_path, 60, "gather:topic:1", tasks=["worker 0"])
        ended = cluster.finish(60)
        assert [code for code, _ in ended.values()] == [1, 1], ended
        assert f"error: {own}" in ended["worker 1"][1]
        assert f"error: worker 1 ({address(cluster, 'worker 1')}) ended: {told}" in ended["worker 0"][1]


def test_a_hanging_task_is_named_with_its_seconds_of_silence(tmp_path):
    with Cluster(2) as cluster:
        cluster.start(MEMBER, tmp_path, 60, "sleep:1", "gather:topic:1", "sleep:5")
        for task in cluster.tasks:
            cluster.output(task, "met")
        cluster.send("worker 1", signal.SIGSTOP)
        said = cluster.output("worker 0", "has been silent")
        assert f"worker 1 ({address(cluster, 'worker 1')}) has been silent for 1" in said
        assert "The advice." in said
        cluster.send("worker 1", signal.SIGCONT)
        ended = cluster.finish(60)
        assert [code for code, _ in ended.values()] == [0, 0], ended
        assert f"worker 1 ({address(cluster, 'worker 1')}) responds again" in ended["worker 0"][1]


def test_a_hanging_chief_is_named(tmp_path):
    with Cluster(2) as cluster:
        cluster.start(MEMBER, tmp_path, 60, "sleep:1", "gather:topic:1")
        for task in cluster.tasks:
            cluster.output(task, "met")
        cluster.send("worker 0", signal.SIGSTOP)
        assert f"worker 0 ({address(cluster, 'worker 0')}) has been silent" in cluster.output("worker 1", "silent")
        cluster.send("worker 0", signal.SIGCONT)
        for code, output in cluster.finish(60).values():
            assert code == 0, output
            # No other task was silent: the chief itself was suspended.
            assert "worker 1 (" not in output


def test_an_error_of_tensorflow_names_the_task_that_hangs(tmp_path):
    (tmp_path / "tensorflow.py").write_text(
        """
class errors:
    class OpError(Exception):
        def __init__(self, node_def, op, message, error_code):
            self.message = message
"""
    )
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    with Cluster(2) as cluster:
        cluster.start(MEMBER, tmp_path, 60, "sleep:3", "fail-in-tensorflow", env={"PYTHONPATH": path})
        for task in cluster.tasks:
            cluster.output(task, "met")
        cluster.send("worker 1", signal.SIGSTOP)
        code = cluster.processes["worker 0"].wait(timeout=60)
        output = cluster.processes["worker 0"].stdout.read()
        assert code == 1
        assert f"error: worker 1 ({address(cluster, 'worker 1')}) has been silent for 1" in output
        assert "TensorFlow" not in output
        cluster.send("worker 1", signal.SIGCONT)


def test_different_folders_are_rejected_unless_only_the_coordinator_uses_them(tmp_path):
    with Cluster(2) as cluster:
        for number in (0, 1):
            cluster.start(MEMBER, tmp_path / str(number), 60, tasks=[f"worker {number}"])
        for code, output in cluster.finish(60).values():
            assert code == 2
            assert f"different settings: out is '{tmp_path}/" in output
    with Cluster(1, ps=1) as cluster:
        for number, task in enumerate(cluster.tasks):
            cluster.start(MEMBER, tmp_path / str(number), 60, tasks=[task])
        for code, output in cluster.finish(60).values():
            assert code == 0, output


def test_without_the_variable_the_chief_writes_a_token_file(tmp_path):
    folder = tmp_path / "run"
    path, waiting = folder / token.FILE, f"until-exists:{tmp_path / 'go'}"
    with Cluster(2) as cluster:
        cluster.start(MEMBER, folder, 60, waiting, tasks=["worker 1"], env={token.VARIABLE: ""})
        time.sleep(1)
        cluster.start(MEMBER, folder, 60, waiting, tasks=["worker 0"], env={token.VARIABLE: ""})
        cluster.output("worker 1", "met")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert len(path.read_text()) == 64
        (tmp_path / "go").touch()
        for code, output in cluster.finish(60).values():
            assert code == 0, output
    # The file is removed at the end.
    assert not path.exists()
    path.write_text("x" * 64)
    path.chmod(0o644)
    with Cluster(2) as cluster:
        cluster.start(MEMBER, folder, 60, tasks=["worker 0"], env={token.VARIABLE: ""})
        ((code, output),) = cluster.finish(60).values()
        assert code == 2
        assert f"{path} can be read by other users of this machine. Delete it" in output


@pytest.mark.parametrize("how", ["raise", "kill"])
def test_the_token_is_removed_after_failures_too(how, tmp_path):
    failing = ["raise:a reason"] if how == "raise" else ["until-stop"]
    with Cluster(2) as cluster:
        for task, actions in (("worker 0", failing), ("worker 1", ["until-stop"])):
            cluster.start(MEMBER, tmp_path, 60, "gather:topic:1", *actions, tasks=[task], env={token.VARIABLE: ""})
        cluster.output("worker 1", "done: gather")
        if how == "kill":
            cluster.kill("worker 1")
        assert cluster.processes["worker 0"].wait(timeout=60) == 1
    assert not (tmp_path / token.FILE).exists()


@pytest.mark.parametrize("secret", ["another secret, long enough", ""])
def test_tasks_with_different_tokens_time_out(tmp_path, secret):
    with Cluster(2) as cluster:
        cluster.start(MEMBER, tmp_path, 6, tasks=["worker 0"])
        cluster.start(MEMBER, tmp_path, 5, tasks=["worker 1"], env={token.VARIABLE: secret})
        ended = cluster.finish(60)
        assert [code for code, _ in ended.values()] == [1, 1], ended
        expected = "it has a different token" if secret else f"neither {token.VARIABLE} nor"
        assert expected in ended["worker 1"][1]
        assert "for worker 1" in ended["worker 0"][1]
        for _, output in ended.values():
            assert "Traceback" not in output


def served(folder, cluster, timeout, tasks=None):
    cluster.start(MEMBER, folder, timeout, "until-stop", tasks=tasks)
    for task in tasks or cluster.tasks:
        cluster.output(task, "met")


def test_one_of_two_lost_asynchronous_workers_rejoins(tmp_path):
    with Cluster(2, ps=1) as cluster:
        served(tmp_path, cluster, 8)
        for task in ("worker 0", "worker 1"):
            cluster.kill(task)
        assert "was lost; the other workers continue" in cluster.output("chief 0", "no worker is left")
        served(tmp_path, cluster, 8, ["worker 0"])
        for task, (code, output) in cluster.finish(30).items():
            assert code == 1, output
            cause = f"no worker is left, and worker 1 ({address(cluster, 'worker 1')}) did not rejoin within 8 seconds"
            told = "" if task == "chief 0" else f"chief 0 ({address(cluster, 'chief 0')}) ended: "
            assert f"error: {told}{cause}" in output
            assert "The advice. To resume, start every task again" in output


def test_both_lost_asynchronous_workers_rejoin(tmp_path):
    with Cluster(2, ps=1) as cluster:
        served(tmp_path, cluster, 8)
        for task in ("worker 0", "worker 1"):
            cluster.kill(task)
        cluster.output("chief 0", "no worker is left")
        served(tmp_path, cluster, 8, ["worker 1", "worker 0"])
        cluster.output("chief 0", "worker 0 (")
        # After a later loss one of two workers remains, and the coordinator does not wait.
        cluster.kill("worker 1")
        assert "worker 1 (" in cluster.output("chief 0", "was lost; the other workers continue")
        time.sleep(9)
        cluster.start(MEMBER, tmp_path, 8, "stop", "until-stop", tasks=["worker 1"])
        for code, output in cluster.finish(30).values():
            assert code == 0, output


def test_the_chief_listens_on_its_own_address_only(tmp_path):
    with Cluster(2) as cluster:
        cluster.start(MEMBER, tmp_path, 60, "sleep:60", tasks=["worker 0"])
        while socket.socket().connect_ex(("127.0.0.1", cluster.control_port)):
            assert cluster.processes["worker 0"].poll() is None
            time.sleep(0.05)
        # All addresses in 127.0.0.0/8 belong to this machine.
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", cluster.control_port))


def test_the_end_of_the_server_is_the_end_of_the_task(monkeypatch):
    class Failing(selectors.DefaultSelector):
        def select(self, timeout=None):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(selectors, "DefaultSelector", Failing)
    failures = []
    server = CoordinationServer("127.0.0.1", 0, b"token", {}, ["worker 0"], failures.append)
    server.start()
    server.join(timeout=30)
    assert [str(failure) for failure in failures] == ["[Errno 5] Input/output error"]


def test_a_taken_port_is_named(tmp_path):
    with Cluster(2) as cluster, socket.create_server(("127.0.0.1", cluster.control_port)):
        cluster.start(MEMBER, tmp_path, 60, tasks=["worker 0"])
        ((code, output),) = cluster.finish(30).values()
        assert code == 2
        assert f"port {cluster.control_port} of this machine" in output
        assert "Pass another --control-port to every task" in output
