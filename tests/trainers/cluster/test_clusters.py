"""Training with several processes on loopback: equal results, and loss or stop of a process."""

import signal

import numpy as np

from idmatters_tf.checkpointing import list_steps
from tests.support.processes import Cluster, assert_same_run, reached, records, run_forked, tensors, wait_until
from tests.support.programs import run_here

TINY = ["trainers.cifar", "--dataset", "shapes", "--train-images", 300, "--test-images", 101, "--blocks", 1]
TINY += ["--stem", 4, "--widths", 4, "--batch-size", 16, "--initializer", "standard", "--log-every", 5]
# With other seeds, ReLUs near zero amplify rounding errors.
SHORT = [*TINY, "--seed", 1, "--steps", 10, "--drop-steps", 5, "--evaluate-every", 10, "--checkpoint-every", 5]
LONG = [*TINY, "--steps", 40, "--drop-steps", 30, "--evaluate-every", 20, "--checkpoint-every", 10]


# Batch normalization exchanges all that is exchanged without it, and more.
def test_replicas_and_workers_agree_with_one_device(tmp_path, without_exports):
    options = [*SHORT, "--norm", "batch", "--clip-norm", 1.0, "--out"]
    done = run_here(*options, tmp_path / "one", code=0)
    with Cluster(2) as cluster:
        cluster.start(*options, tmp_path / "2 workers")
        for code, output in cluster.finish().values():
            assert code == 0, output
    done = run_forked(*options, tmp_path / "2 replicas", devices=2)
    assert done.returncode == 0, done.stderr
    assert "2 replicas" in done.stderr
    expected = tensors(tmp_path / "one")
    for other in tmp_path.glob("* *"):
        got = tensors(other)
        assert set(got) == set(expected)
        for name, value in expected.items():
            # Weights only: rounding errors of gradients are ten times larger in the velocities.
            if value.dtype == np.float32 and name.startswith("model/"):
                np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-5, err_msg=f"{other.name}: {name}")
        ours, theirs = ([r for r in records(run) if r["kind"] == "test"][-1] for run in (tmp_path / "one", other))
        assert (theirs["count"], theirs["error"]) == (101, ours["error"]), other.name


def test_a_batch_must_be_divisible_among_replicas(tmp_path):
    result = run_forked(*TINY, "--batch-size", 15, "--out", tmp_path / "odd", devices=2)
    assert result.returncode == 2
    assert "--batch-size must be a multiple of the 2 replicas" in result.stderr
    assert not (tmp_path / "odd").exists()


def test_a_cluster_resumes_bit_for_bit(program, tmp_path, without_exports, slow):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    # The launcher starts the tasks in processes of their own.
    done = program("trainers.launch", "--workers", 2, "--", "cifar", *LONG[1:], "--out", whole)
    assert done.returncode == 0, done.stdout
    assert "convergence plot" in done.stdout
    with Cluster(2) as cluster:
        cluster.start(*LONG, "--out", cut)
        wait_until(cluster.processes["worker 0"], cut, 15)
        cluster.kill("worker 1")
        ((code, output),) = cluster.finish().values()
        assert code == 1, output
        assert f"worker 1 ({cluster.jobs['worker'][1]}) was lost" in output
        assert "The last good checkpoint is that of step" in output
        assert "start every task again with the same command" in output
        assert "Traceback" not in output

        step = list_steps(cut / "checkpoints")[-1]
        cluster.start(*LONG, "--out", cut)
        if slow:
            wait_until(cluster.processes["worker 0"], cut, step + 15)
            # The task that does not write; the chief must receive the request and save.
            cluster.processes["worker 1"].send_signal(signal.SIGTERM)
        ended = cluster.finish()
        assert [code for code, _ in ended.values()] == ([143, 143] if slow else [0, 0]), ended
        # The lost worker may not have completed its part of the newest checkpoint.
        assert any(f"resuming from step {saved}" in ended["worker 0"][1] for saved in (step, step - 10))
        if slow:
            assert "stopped by SIGTERM; saved" in ended["worker 0"][1]
            cluster.start(*LONG, "--out", cut)
            assert [code for code, _ in cluster.finish().values()] == [0, 0]
    assert_same_run(cut, whole)
    found = [[(r["kind"], r["step"], r["loss"], r["error"]) for r in records(run)] for run in (cut, whole)]
    assert found[0] == found[1]


def test_lost_asynchronous_workers_rejoin_and_a_lost_server_ends_the_run(tmp_path):
    run = tmp_path / "run"
    command = [*TINY, "--steps", 4000, "--drop-steps", 2000, "--evaluate-every", 4000, "--checkpoint-every", 20]
    command += ["--learning-rate", 0.01, "--clip-norm", 1, "--out", run]
    with Cluster(2, ps=1) as cluster:
        cluster.start(*command)
        chief = cluster.processes["chief 0"]
        wait_until(chief, run, 20)
        cluster.kill("worker 1")
        wait_until(chief, run, reached(run) + 60)
        cluster.start(*command, tasks=["worker 1"])
        wait_until(chief, run, reached(run) + 100)
        assert chief.poll() is None, chief.communicate()
        cluster.kill("ps 0")
        ended = cluster.finish()
        code, output = ended.pop("chief 0")
        assert code == 1, output
        assert f"ps 0 ({cluster.jobs['ps'][0]}) was lost" in output
        assert "Traceback" not in output
        step = list_steps(run / "checkpoints")[-1]
        assert f"The last good checkpoint is that of step {step}." in output
        for code, output in ended.values():
            assert code == 0, output
            assert f"chief 0 ({cluster.jobs['chief'][0]}) has ended" in output

        cluster.start(*command)
        wait_until(cluster.processes["chief 0"], run, step + 40)
        # As a scheduler does. Workers and parameter servers remain until the chief has saved a checkpoint.
        for task in ("ps 0", "worker 0", "worker 1", "chief 0"):
            cluster.processes[task].send_signal(signal.SIGTERM)
        ended = cluster.finish()
        assert [code for code, _ in ended.values()] == [143] * 4, ended
        assert f"resuming from step {step}" in ended["chief 0"][1]
        stopped = list_steps(run / "checkpoints")[-1]
        assert stopped > step


def test_different_settings_are_reported(tmp_path):
    run = ["--out", tmp_path / "run"]
    with Cluster(2) as cluster:
        cluster.start(*TINY, *run, "--seed", 1, tasks=["worker 0"])
        cluster.start(*TINY, *run, "--seed", 2, tasks=["worker 1"])
        for code, output in cluster.finish().values():
            assert code == 2, output
            assert "worker 1 does not train as worker 0: seed was 1, now 2. Start every worker with the same" in output
            assert "Traceback" not in output
