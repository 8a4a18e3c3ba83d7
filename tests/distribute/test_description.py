"""Descriptions of clusters in TF_CONFIG and Slurm's variables, and error messages about their tasks."""

import json
import socket
import threading

import pytest
import tensorflow as tf

from idmatters_tf.distribute import ClusterError, TaskLost, explain_lost_tasks, find_cluster, tasks
from idmatters_tf.distribute.tasks import wait_for_tasks

TWO = {"worker": ["a:5000", "b:5000"]}
SERVED = {"chief": ["c:1"], "ps": ["p:1"], "worker": ["w:1", "w:2"]}


def described(monkeypatch, cluster, job="worker", index=0):
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": job, "index": index}}))
    return find_cluster()


def test_workers(monkeypatch):
    cluster = described(monkeypatch, TWO, index=1)
    assert (cluster.task, cluster.chief, cluster.is_chief) == ("worker 1", "worker 0", False)
    assert cluster.tasks == {"worker 0": "a:5000", "worker 1": "b:5000"}
    assert not cluster.asynchronous
    assert cluster.resolver().cluster_spec().as_dict() == TWO
    with_chief = described(monkeypatch, {"chief": ["c:5000"], **TWO}, "chief")
    assert with_chief.is_chief
    assert list(with_chief.tasks) == ["chief 0", "worker 0", "worker 1"]


def test_parameter_servers(monkeypatch):
    cluster = described(monkeypatch, SERVED, "chief")
    assert cluster.asynchronous
    with pytest.raises(ClusterError, match="needs one chief and one or more workers"):
        described(monkeypatch, {"ps": ["p:1"], "worker": ["w:1"]})


def test_without_a_cluster(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.delenv("SLURM_STEP_NUM_TASKS", raising=False)
    assert find_cluster() is None
    assert described(monkeypatch, {"worker": ["a:1"]}) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("worker", "is invalid"),
        (
            json.dumps({"cluster": TWO, "task": {"type": "worker", "index": 2}}),
            "assigns the task 'worker' 2 to this process, but .* only worker 0..1",
        ),
        (json.dumps({"cluster": {"worker": ["a"]}, "task": {}}), "list the job worker as host:port"),
        (json.dumps({"cluster": {"worker": ["a:1", "a:1"]}, "task": {}}), "gives one address to two tasks: a:1, a:1"),
        (json.dumps({"cluster": {"boss": ["a:1"]}, "task": {}}), "names the job 'boss'"),
        (json.dumps({"cluster": TWO, "task": {"type": "worker", "index": 1e999}}), "is invalid"),
        (json.dumps({"cluster": TWO, "task": {"type": [], "index": 0}}), "assigns the task .* 0"),
        *[
            (json.dumps({"cluster": {"worker": [bad, "b:1"]}}), "ports from 1 to 65535")
            for bad in ("a:0", "a:65536", "a..b:1")
        ],
    ],
)
def test_invalid_tf_config(monkeypatch, text, message):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ClusterError, match=f"TF_CONFIG .*{message}.*It must look like"):
        find_cluster()


HEARTBEATS = "The following tasks are unhealthy (stopped sending heartbeats):\n/job:worker/replica:0/task:"
REMOTE = "Error information from remote target /job:worker/replica:0/task:"


@pytest.mark.parametrize(
    ("workers", "message", "ended", "lost"),
    [
        (2, "Socket closed", [], "worker 1 .127.0.0.1:5001."),
        (3, f"Error reported from /job:worker/task:1: {HEARTBEATS}2", [], "worker 2 .127.0.0.1:5002."),
        (3, f"{HEARTBEATS}1\n/job:worker/replica:0/task:2", [], "another task"),
        (3, f"{REMOTE}1", ["127.0.0.1:5001"], "worker 1 .127.0.0.1:5001."),
        (3, f"{REMOTE}1", [], "worker 1 .127.0.0.1:5001."),
        # Worker 1 has ended because of worker 2.
        (3, f"{REMOTE}1", ["127.0.0.1:5001", "127.0.0.1:5002"], "another task"),
        (3, f"{REMOTE}1. lost task: worker 2.", ["127.0.0.1:5001", "127.0.0.1:5002"], "worker 2 .127.0.0.1:5002."),
    ],
)
def test_a_lost_task_is_named(monkeypatch, workers, message, ended, lost):
    cluster = described(monkeypatch, {"worker": [f"127.0.0.1:{5000 + index}" for index in range(workers)]})
    reports = []
    monkeypatch.setattr(tasks, "_answers", lambda address: address not in ended)
    monkeypatch.setattr(tasks, "report_error", reports.append)
    with (
        pytest.raises(TaskLost, match=f"^{lost} was lost.*LAST CHECKPOINT"),
        explain_lost_tasks(cluster, lambda: "LAST CHECKPOINT"),
    ):
        raise tf.errors.UnavailableError(None, None, message)
    assert bool(reports) == (workers > 2 and lost != "another task")


def test_other_errors_are_no_lost_tasks(monkeypatch):
    cluster = described(monkeypatch, {"worker": ["127.0.0.1:5000", "127.0.0.1:5001"]})
    message = "Shape mismatch in the collective instance. Op at device /job:worker/replica:0/task:1 expected shape [2]"
    monkeypatch.setattr(tasks, "report_error", lambda message: None)
    for error in (tf.errors.InvalidArgumentError, tf.errors.UnavailableError):
        with pytest.raises(RuntimeError, match=f"^{tasks._MISMATCH}.*on all workers"), explain_lost_tasks(cluster):
            raise error(None, None, message)
        message = f"Reported by another task: {tasks._MISMATCH}"
    with pytest.raises(tf.errors.InvalidArgumentError), explain_lost_tasks(cluster):
        raise tf.errors.InvalidArgumentError(None, None, "/job:worker/replica:0/task:1: Incompatible shapes")


def slurm(monkeypatch, rank, nodes="node[1-3]", per_node="2(x3)", tasks=6):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    for name, value in (
        ("SLURM_PROCID", rank),
        ("SLURM_STEP_NUM_TASKS", tasks),
        ("SLURM_STEP_NODELIST", nodes),
        ("SLURM_STEP_TASKS_PER_NODE", per_node),
    ):
        monkeypatch.setenv(name, str(value))


def test_slurm(monkeypatch):
    slurm(monkeypatch, rank=3)
    cluster = find_cluster()
    assert (cluster.task, cluster.source) == ("worker 3", "Slurm")
    assert cluster.jobs == {"worker": [f"node{node}:{port}" for node in (1, 2, 3) for port in (8888, 8889)]}
    assert cluster.resolver().cluster_spec().as_dict() == cluster.jobs


def test_slurm_with_an_invalid_number(monkeypatch):
    slurm(monkeypatch, rank=0, tasks="many")
    with pytest.raises(ClusterError, match="SLURM_STEP_NUM_TASKS must be a whole number. Received: 'many'.*srun"):
        find_cluster()


def test_waiting_for_tasks_on_ipv6(monkeypatch):
    jobs = {"worker": [f"[::1]:{free_port()}", f"127.0.0.1:{free_port()}"]}
    both = [described(monkeypatch, jobs, index=index) for index in range(2)]
    said = []
    threads = [threading.Thread(target=wait_for_tasks, args=(each, 60, said.append)) for each in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
        assert not thread.is_alive()
    with pytest.raises(TaskLost, match=rf"worker 0 waited 0.1 seconds \(timeout\) for worker 1 \({jobs['worker'][1]}"):
        wait_for_tasks(both[0], 0.1, said.append)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
