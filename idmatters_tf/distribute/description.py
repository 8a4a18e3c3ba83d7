"""Description of the cluster and of this process's task in it, from TF_CONFIG or Slurm's variables.

Jobs have the names of tf.distribute: `chief` and `worker` train synchronously. With `ps` (parameter servers), the
`chief` is the coordinator, which distributes the work. Without a `chief`, worker 0 is the chief.
"""

import contextlib
import dataclasses
import json
import os
import re
import reprlib
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tensorflow as tf

JOBS = ("chief", "worker", "ps")


class ClusterError(ValueError):
    """Invalid description of a cluster. The message contains the problem and the remedy.

    Attributes:
        exit_code: exit code of a program that ends with this error.
    """

    exit_code = 2


@dataclasses.dataclass(frozen=True)
class ClusterDescription:
    """Processes of a run.

    Attributes:
        jobs: addresses "host:port" of the tasks of each job.
        job: job of this process.
        index: index of this process in its job.
        source: origin of the description: "Slurm", "TF_CONFIG", or another name for error messages.
    """

    jobs: dict[str, list[str]]
    job: str
    index: int
    source: str = "the argument `cluster`"

    @property
    def task(self) -> str:
        """Name of this process, such as "worker 1"."""
        return f"{self.job} {self.index}"

    @property
    def chief(self) -> str:
        """Name of the task that writes the run's folder."""
        return "chief 0" if "chief" in self.jobs else "worker 0"

    @property
    def is_chief(self) -> bool:
        """True if this process is the chief."""
        return self.task == self.chief

    @property
    def asynchronous(self) -> bool:
        """True if there are parameter servers."""
        return "ps" in self.jobs

    @property
    def tasks(self) -> dict[str, str]:
        """Address of each task by name, the chief first."""
        named = {f"{job} {i}": address for job in JOBS for i, address in enumerate(self.jobs.get(job, ()))}
        return {self.chief: named.pop(self.chief), **named}

    @property
    def workers(self) -> int:
        """Number of tasks that compute gradients."""
        return len(self.jobs["worker"]) if self.asynchronous else len(self.tasks)

    def resolver(self) -> "tf.distribute.cluster_resolver.ClusterResolver":
        """Return the `ClusterResolver` of this cluster."""
        import tensorflow as tf

        if self.source == "Slurm":
            return _slurm_resolver(len(self.tasks))
        return tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(self.jobs), task_type=self.job, task_id=self.index, rpc_layer="grpc"
        )


def find_cluster() -> ClusterDescription | None:
    """Return the cluster that the environment describes, or None without one or for a single process.

    Raises:
        ClusterError: TF_CONFIG or a variable of Slurm is invalid.
    """
    text = os.environ.get("TF_CONFIG", "")
    if text.strip():
        cluster = _from_tf_config(text)
    elif _slurm_tasks() > 1:
        cluster = _from_slurm()
    else:
        return None
    if cluster is None or (len(cluster.tasks) == 1 and not cluster.asynchronous):
        return None
    if cluster.asynchronous and ("chief" not in cluster.jobs or "worker" not in cluster.jobs):
        raise ClusterError(
            f"{cluster.source}: a cluster with parameter servers needs one chief and one or more workers. Received the "
            f"jobs: {', '.join(sorted(cluster.jobs))}"
        )
    return cluster


def _from_tf_config(text: str) -> ClusterDescription | None:
    def wrong(problem: str) -> ClusterError:
        return ClusterError(
            f'TF_CONFIG {problem}. It must look like {{"cluster": {{"worker": ["host1:5000", "host2:5000"]}}, '
            f'"task": {{"type": "worker", "index": 0}}}}; unset it to train on this machine only.'
        )

    try:
        config = json.loads(text)
        jobs = {job: addresses for job, addresses in config.get("cluster", {}).items() if job != "evaluator"}
        task = config.get("task", {})
        job, index = task.get("type"), int(task.get("index", 0))
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise wrong(f"is invalid ({error})") from error
    if not jobs:
        return None
    addresses = []
    for name, listed in jobs.items():
        if name not in JOBS:
            raise wrong(f"names the job {name!r}, but the jobs are {', '.join(JOBS)}")
        if not isinstance(listed, list) or not all(map(_is_address, listed)):
            raise wrong(
                f"must list the job {name} as host:port strings with ports from 1 to 65535. Received: "
                f"{reprlib.repr(listed)}"
            )
        addresses += listed
    if len(set(addresses)) < len(addresses):
        raise wrong(f"gives one address to two tasks: {', '.join(sorted(addresses))}")
    if len(jobs.get("chief", ())) > 1:
        raise wrong("names more than one chief")
    if not isinstance(job, str) or job not in jobs or not 0 <= index < len(jobs[job]):
        names = ", ".join(f"{name} 0..{len(listed) - 1}" for name, listed in jobs.items())
        raise wrong(f"assigns the task {job!r} {index} to this process, but the cluster has only {names}")
    return ClusterDescription(jobs, job, index, "TF_CONFIG")


def _is_address(value: object) -> bool:
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.%]+\]|[^\s:./]+(?:\.[^\s:./]+)*\.?):([0-9]{1,5})", str(value))
    return isinstance(value, str) and match is not None and 1 <= int(match[2]) <= 65535


def _slurm_tasks() -> int:
    text = os.environ.get("SLURM_STEP_NUM_TASKS") or "1"
    if not text.isdecimal():
        raise ClusterError(
            f"SLURM_STEP_NUM_TASKS must be a whole number. Received: {reprlib.repr(text)}. Start the program with "
            f"srun, or unset it."
        )
    return int(text)


def _from_slurm() -> ClusterDescription:
    tasks = _slurm_tasks()
    try:
        resolver = _slurm_resolver(tasks)
        jobs = resolver.cluster_spec().as_dict()
        job, index = resolver.get_task_info()
        if job is None:
            number = reprlib.repr(os.environ["SLURM_PROCID"])
            raise ValueError(f"SLURM_PROCID is {number} among {tasks} tasks")
    except (RuntimeError, LookupError, ValueError, TypeError, ArithmeticError) as error:
        raise ClusterError(
            f"Slurm's variables do not describe a cluster: {error}. Start the program with srun."
        ) from error
    return ClusterDescription(jobs, job, index, "Slurm")


def _slurm_resolver(tasks: int) -> "tf.distribute.cluster_resolver.ClusterResolver":
    import tensorflow as tf

    # Slurm's --gpus-per-task assigns the GPUs: the resolver divides by zero on machines without GPUs.
    return tf.distribute.cluster_resolver.SlurmClusterResolver(
        jobs={"worker": tasks}, gpus_per_node=tasks, gpus_per_task=1, auto_set_gpu=False, rpc_layer="grpc"
    )


def make_local_cluster(workers: int, ps: int = 0) -> dict[str, dict[str, str]]:
    """Return the `TF_CONFIG` of each process of a cluster on this machine, at free ports, by its name ("worker 0").

    With parameter servers there is a chief as well.
    """
    names = ["chief"] * (ps > 0) + ["worker"] * workers + ["ps"] * ps
    jobs: dict[str, list[str]] = {}
    with contextlib.ExitStack() as stack:
        for name in names:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            jobs.setdefault(name, []).append(f"127.0.0.1:{listener.getsockname()[1]}")
    tasks = [(job, index) for job, addresses in jobs.items() for index in range(len(addresses))]
    return {
        f"{job} {index}": {"TF_CONFIG": json.dumps({"cluster": jobs, "task": {"type": job, "index": index}})}
        for job, index in tasks
    }
