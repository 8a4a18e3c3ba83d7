"""Which processes train together, and which of them this one is: from TF_CONFIG or from Slurm.

The jobs have tf.distribute's names: `chief` and `worker` train together; with `ps` (parameter servers) the `chief` is
the coordinator, which hands out the work. Where there is no `chief`, worker 0 is the chief.
"""

import dataclasses
import os
import reprlib
from typing import TYPE_CHECKING

from trainers.cli.arguments import UsageError
from trainers.cli.reading import decode_json

if TYPE_CHECKING:
    import tensorflow as tf

JOBS = ("chief", "worker", "ps")
CONTROL_PORT_OFFSET = 1000


@dataclasses.dataclass(frozen=True)
class ClusterDescription:
    """The processes of a run.

    Attributes:
        jobs: a dict from the job's name to its tasks' addresses, "host:port" each.
        job, index: this process.
        source: "TF_CONFIG" or "Slurm".
        control_port: where the tasks meet on the chief's machine; None: the chief's own port + 1000 (- 1000 where that
            is not a port).
    """

    jobs: dict[str, list[str]]
    job: str
    index: int
    source: str
    control_port: int | None = None

    @property
    def task(self) -> str:
        """This process in words: "worker 1"."""
        return f"{self.job} {self.index}"

    @property
    def chief(self) -> str:
        """The task that writes the run's folder, in words."""
        return "chief 0" if "chief" in self.jobs else "worker 0"

    @property
    def is_chief(self) -> bool:
        return self.task == self.chief

    @property
    def asynchronous(self) -> bool:
        """Whether there are parameter servers."""
        return "ps" in self.jobs

    @property
    def tasks(self) -> dict[str, str]:
        """A dict from every task in words to its address, the chief first."""
        named = {f"{job} {i}": address for job in JOBS for i, address in enumerate(self.jobs.get(job, ()))}
        return {self.chief: named.pop(self.chief), **named}

    @property
    def meeting_place(self) -> tuple[str, int]:
        """(host, port) where all tasks meet."""
        host, port = self.tasks[self.chief].rsplit(":", 1)
        shifted = int(port) + CONTROL_PORT_OFFSET
        return host.strip("[]"), self.control_port or (shifted if shifted < 2**16 else int(port) - CONTROL_PORT_OFFSET)

    def resolver(self) -> "tf.distribute.cluster_resolver.ClusterResolver":
        """The `tf.distribute.cluster_resolver.ClusterResolver` of this cluster."""
        import tensorflow as tf

        if self.source == "TF_CONFIG":
            return tf.distribute.cluster_resolver.TFConfigClusterResolver(rpc_layer="grpc")
        return _slurm_resolver(self.jobs.get("ps", ()))


def in_environment() -> bool:
    """Whether the environment names a cluster at all."""
    return bool(os.environ.get("TF_CONFIG", "").strip()) or _slurm_tasks() > 1


def find(control_port: int | None = None, parameter_servers: int = 0) -> ClusterDescription | None:
    """The cluster that the environment describes, or None where it describes none, or one of a single process.

    Args:
        control_port: see `ClusterDescription`.
        parameter_servers: how many of a Slurm step's tasks are parameter servers (TF_CONFIG names them itself); with
            any, its first task is the coordinator.

    Raises:
        UsageError: TF_CONFIG is not what it should be, or the tasks of a Slurm step are too few.
    """
    text = os.environ.get("TF_CONFIG", "")
    if text.strip():
        cluster = _from_tf_config(text, control_port)
    elif _slurm_tasks() > 1:
        cluster = _from_slurm(control_port, parameter_servers)
    else:
        return None
    if cluster is None or (len(cluster.tasks) == 1 and not cluster.asynchronous):
        return None
    if cluster.asynchronous and ("chief" not in cluster.jobs or "worker" not in cluster.jobs):
        raise UsageError(
            f"{cluster.source}: a cluster with parameter servers needs one chief, which hands out the work, and one or "
            f"more workers. Received the jobs: {', '.join(sorted(cluster.jobs))}"
        )
    return cluster


def _from_tf_config(text: str, control_port: int | None) -> ClusterDescription | None:
    def wrong(problem):
        return UsageError(
            f'TF_CONFIG {problem}. It must look like {{"cluster": {{"worker": ["host1:5000", "host2:5000"]}}, '
            f'"task": {{"type": "worker", "index": 0}}}}; unset it to train on this machine alone.'
        )

    try:
        config = decode_json(text)
    except ValueError as error:
        raise wrong(f"is not JSON ({error})") from error
    if not isinstance(config, dict) or not isinstance(config.get("cluster", {}), dict):
        raise wrong("is not an object with a cluster")
    jobs = {job: addresses for job, addresses in config.get("cluster", {}).items() if addresses and job != "evaluator"}
    if not jobs:
        return None
    for job, addresses in jobs.items():
        if job not in JOBS:
            raise wrong(f"names the job {reprlib.repr(job)}, but there are only {', '.join(JOBS)}")
        if not isinstance(addresses, list) or not all(map(_is_address, addresses)):
            raise wrong(f"must list the job {job} as host:port strings. Received: {reprlib.repr(addresses)}")
    addresses = [address for of_job in jobs.values() for address in of_job]
    twice = sorted({address for address in addresses if addresses.count(address) > 1})
    if twice:
        raise wrong(f"gives the address {twice[0]} to two tasks")
    if len(jobs.get("chief", ())) > 1:
        raise wrong("names more than one chief")
    task = config.get("task")
    if not isinstance(task, dict) or "type" not in task or "index" not in task:
        raise wrong("does not say which task this process is: the task's type and index are missing")
    job, index = task["type"], task["index"]
    if not isinstance(job, str):
        raise wrong(f"must have a string as the task's type. Received: {reprlib.repr(job)}")
    if isinstance(index, str) and _is_whole(index):
        index = int(index)
    if type(index) is not int:
        raise wrong(f"must have a whole number as the task's index. Received: {reprlib.repr(index)}")
    if job not in jobs or not 0 <= index < len(jobs[job]):
        listed = ", ".join(f"{name} 0..{len(of_job) - 1}" for name, of_job in jobs.items())
        raise wrong(f"says that this process is {reprlib.repr(job)[1:-1]} {index}, but the cluster has only {listed}")
    return ClusterDescription(jobs, job, index, "TF_CONFIG", control_port)


def _is_address(value):
    host, _, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    return bool(host) and _is_whole(port) and 0 < int(port) < 2**16


def _slurm_tasks():
    text = os.environ.get("SLURM_STEP_NUM_TASKS") or "1"
    if not _is_whole(text):
        raise UsageError(
            f"SLURM_STEP_NUM_TASKS must be a whole number. Received: {reprlib.repr(text)}. Start the program with "
            f"srun, or unset it."
        )
    return int(text)


def _is_whole(text):
    return text.isascii() and text.isdecimal() and len(text) < 10


def _from_slurm(control_port, parameter_servers):
    tasks = _slurm_tasks()
    if parameter_servers and tasks < parameter_servers + 2:
        raise UsageError(
            f"--parameter-servers {parameter_servers} needs at least {parameter_servers + 2} Slurm tasks (one chief, "
            f"one worker). Received: {tasks}. Start more tasks with srun --ntasks."
        )
    resolver = _slurm_resolver(range(parameter_servers))
    try:
        jobs = resolver.cluster_spec().as_dict()
    except (RuntimeError, LookupError, ValueError, TypeError, ArithmeticError) as error:
        raise UsageError(
            f"Slurm's variables do not describe a cluster: {error}. Start the program with srun."
        ) from error
    job, index = resolver.get_task_info()
    if job is None:
        raise UsageError(
            f"Slurm's variables do not describe a cluster: SLURM_PROCID is {reprlib.repr(os.environ['SLURM_PROCID'])} "
            f"among {tasks} tasks. Start the program with srun."
        )
    return ClusterDescription(jobs, job, index, "Slurm", control_port)


def _slurm_resolver(parameter_servers):
    import tensorflow as tf

    tasks = _slurm_tasks()
    servers = len(parameter_servers)
    jobs = {"chief": 1, "ps": servers, "worker": tasks - servers - 1} if servers else {"worker": tasks}
    try:
        # GPUs are left to Slurm's own --gpus-per-task: the resolver's counting divides by zero on machines without.
        return tf.distribute.cluster_resolver.SlurmClusterResolver(
            jobs=jobs, gpus_per_node=tasks, gpus_per_task=1, auto_set_gpu=False, rpc_layer="grpc"
        )
    except (RuntimeError, LookupError, ValueError, TypeError, ArithmeticError) as error:
        raise UsageError(
            f"Slurm's variables do not describe a cluster: {error}. Start the program with srun."
        ) from error
