"""Complete training of a task: cluster, data, network, run, loop, result and exports."""

import contextlib
import functools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from idmatters_tf.checkpointing import describe_newest, list_steps
from idmatters_tf.distribute import ClusterDescription, explain_lost_tasks, find_cluster
from idmatters_tf.distribute.tasks import wait_for_tasks
from trainers.backends import import_tensorflow, runs_on_tensorflow
from trainers.cli.arguments import RunError, UsageError, program_command
from trainers.cli.settings import as_dict
from trainers.cli.startup import print_lines, print_message
from trainers.cluster import check_agreement, gather, make_strategy, serve
from trainers.run.folder import WHERE_DATA_ARE, DataDescription, hold_lock
from trainers.training.settings import resolve_strategy
from trainers.training.task import Task

if TYPE_CHECKING:
    import tensorflow as tf


def train(task: Task) -> int:
    """Start or resume a run. Returns the exit code: 0, or 128 + N after signal N, when a checkpoint has been saved."""
    run = task.run
    result = None if run.overwrites else run.result()
    if result is not None and result["steps"] >= task.settings.recipe.steps:
        print_lines(
            f"{run.path} is finished. {describe_result(result)} Use another --out for a new run, --overwrite, or "
            f"--resume with more --steps."
        )
        return 0
    devices = task.settings.devices
    description = find_cluster(devices.parameter_servers)
    strategy_name = resolve_strategy(devices.strategy, description)
    task.check_cluster(description)
    advice = functools.partial(describe_newest, run.checkpoints_path)
    # Only the chief writes to the folder.
    run.writes = description is None or description.is_chief
    with hold_lock(run.path) if run.writes else contextlib.nullcontext(), explain_lost_tasks(description, advice):
        if description is not None:
            import_tensorflow()
            if description.asynchronous and not description.is_chief:
                return serve(description, devices.cluster_timeout)
            wait_for_tasks(description, devices.cluster_timeout, print_message, "--cluster-timeout")
        return _train(task, description, strategy_name)


def _train(task: Task, description: ClusterDescription | None, strategy_name: str) -> int:
    run, settings, steps = task.run, task.settings, task.settings.recipe.steps
    # In a cluster, only the chief prints messages.
    say_once = print_message if run.writes else lambda _text: None
    strategy = _load_and_connect(task, description, strategy_name)
    say_once(f"{task.data.name}: {task.source.summary()} ({task.data.origin})")
    _check_agreement(task, description, strategy)

    from trainers.training.build import build_model, find_drop_steps

    model = build_model(task, strategy)
    _start_run(task)
    say_once(
        f"{count_parameters(model):,} trainable parameters on {_devices(strategy, description)}, "
        f"{settings.recipe.precision}; results in {run.path}"
    )
    late = [drop for drop in find_drop_steps(settings.recipe, task.source.training_images) if drop >= steps]
    if late:
        say_once(f"the learning rate will not drop at {' '.join(map(str, late))}: --steps is {steps}")

    from trainers.training import checkpoints

    checkpoint = checkpoints.read(run.checkpoints_path, task.identity, repair=True) if run.writes else None
    step = gather(strategy, None if checkpoint is None else checkpoint.step)[0]
    if step is not None and checkpoint is None:
        checkpoint = checkpoints.read_step(run.checkpoints_path, step)
    if run.writes and run.config()["settings"]["steps"] < steps:
        run.extend(as_dict(settings))
    if checkpoint is not None:
        checkpoints.load(checkpoint, model, optimizer=True)
        say_once(f"resuming from step {checkpoint.step}")

    with _explain_data_errors(task, model):
        if description is not None and description.asynchronous:
            from trainers.training.asynchronous import fit_asynchronously

            signal = fit_asynchronously(task, model, description, checkpoint)
        else:
            from trainers.training.fit import fit

            signal = fit(task, model, description, checkpoint)
    if signal is not None:
        resume = program_command(task.program, "--resume", "--out", run.path)
        same_command = resume if description is None else "run the same command again"
        # A signal during the first evaluation stops the run before the first checkpoint.
        saved = "saved a checkpoint" if list_steps(run.checkpoints_path) else "no checkpoint yet"
        say_once(f"stopped by {signal.name}; {saved}. To resume: {same_command}")
        return 128 + signal
    if run.writes:
        _finish(task, count_parameters(model))
    return 0


def _load_and_connect(
    task: Task, description: ClusterDescription | None, strategy_name: str
) -> "tf.distribute.Strategy | None":
    """Load the data and return the strategy: None on JAX.

    Several workers must be connected before TensorFlow computes anything. Otherwise the data are loaded first, before
    TensorFlow is imported, so that missing files are reported at once.
    """
    if description is None:
        _check_batch_size(task)
    import_tensorflow()
    strategy = None
    if runs_on_tensorflow():
        strategy = make_strategy(strategy_name, description)
    elif description is not None or strategy_name not in ("auto", "one"):
        raise UsageError("on JAX the programs train on one device. Use TensorFlow, or --strategy one.")
    _check_batch_size(task)
    return strategy


def _check_agreement(
    task: Task, description: ClusterDescription | None, strategy: "tf.distribute.Strategy | None"
) -> None:
    """Raise UsageError if the tasks of a cluster have other settings, data or folders."""
    local = (*WHERE_DATA_ARE, "cluster_timeout")
    shared = {name: value for name, value in as_dict(task.settings).items() if name not in local}
    if description is not None and not description.asynchronous:
        shared["out"] = str(task.run.path.absolute())
    check_agreement(description, strategy, {**shared, "the digest of the data": task.data.digest()})


def _start_run(task: Task) -> None:
    """Write config.json and the fitted preprocessing, or check that an existing run has the same data."""
    import keras

    from idmatters_tf._environment import describe_numerics
    from trainers import preprocessing

    run, data = task.run, task.data
    names = tuple(data.class_names)
    described = DataDescription(data.origin, tuple(data.image_shape), data.classes, data.digest(), names)
    numerics = describe_numerics(keras.backend.backend())
    run.start(as_dict(task.settings), as_dict(described), task.program, numerics)
    if run.writes and task.source.preprocessing is not None:
        preprocessing.save(task.source.preprocessing, data.image_shape, run.path)


def _finish(task: Task, parameters: int) -> None:
    """Write the exports, the plot and the result of a run."""
    from trainers.run.figures import convergence
    from trainers.training.evaluate import export_newest

    run = task.run
    plot = run.path / "convergence.png"
    result = summarize(run.records, task.settings.recipe.steps, parameters)
    # From the checkpoint of the last step: on JAX another process writes the exports, and the trained model may be in
    # bfloat16 on several devices.
    export_newest(task, run.path)
    convergence(run.records, plot, task.title(parameters))
    run.finish(result)
    print_lines(describe_result(result), f"convergence plot:      {plot}")


def count_parameters(model: Any) -> int:
    """Return the number of trainable parameters."""
    return sum(math.prod(variable.shape) for variable in model.trainable_variables)


@contextlib.contextmanager
def _explain_data_errors(task: Task, model: Any) -> Iterator[None]:
    """Raise RunError in place of an error that the task can explain by unreadable data."""
    try:
        yield
    except Exception as error:
        import keras

        iterations: Any = keras.ops.convert_to_numpy(model.optimizer.iterations)
        sentence = task.source.explain(error, int(iterations))
        if not sentence:
            raise
        raise RunError(sentence) from error


def _check_batch_size(task: Task) -> None:
    """Raise UsageError unless there are enough images for a batch."""
    images, batch_size = task.source.training_images, task.settings.recipe.batch_size
    # A larger batch would repeat images, and TensorFlow's kernels crash with 2^31 numbers per batch.
    if batch_size > images:
        raise UsageError(f"--batch-size must be at most the {images:,} training images. Received: {batch_size}")


def summarize(records: list[dict[str, Any]], steps: int, parameters: int) -> dict[str, Any]:
    """Return the content of result.json."""
    # The evaluation of the initial weights is not a result.
    tests = [record for record in records if record["kind"] == "test" and record["step"]]
    best, last = min(tests, key=lambda record: record["error"]), tests[-1]
    result = {
        "steps": steps,
        "best_error": best["error"],
        "best_step": best["step"],
        "last_error": last["error"],
        "last_loss": last["loss"],
        "parameters": parameters,
        "seconds": records[-1]["seconds"],
    }
    return {**result, "last_top5_error": last["top5_error"]} if "top5_error" in last else result


def describe_result(result: dict[str, Any]) -> str:
    """Return a result as a sentence."""
    top5 = f", top-5 {100 * result['last_top5_error']:.2f} %" if "last_top5_error" in result else ""
    return (
        f"test error: best {100 * result['best_error']:.2f} % (step {result['best_step']}), "
        f"last {100 * result['last_error']:.2f} %{top5} (step {result['steps']}), "
        f"after {result['seconds'] / 60:.1f} minutes."
    )


def _devices(strategy: Any, cluster: ClusterDescription | None) -> str:
    replicas = getattr(strategy, "num_replicas_in_sync", 1)
    here = "1 device" if replicas == 1 else f"{replicas} replicas"
    if cluster is None:
        return here
    if cluster.asynchronous:
        return f"{cluster.workers} asynchronous workers of {here}, {len(cluster.jobs['ps'])} parameter servers"
    return f"{here} of {cluster.workers} workers"
