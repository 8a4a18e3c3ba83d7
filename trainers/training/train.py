"""Complete training of a task: cluster, data, network, optimizer, callbacks, `fit`, exports."""

import contextlib
import functools
import math
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from idmatters_tf.checkpointing import OtherRun, describe_newest, list_steps
from idmatters_tf.distribute import ClusterDescription, explain_lost_tasks, find_cluster
from idmatters_tf.distribute.tasks import wait_for_tasks
from trainers.backends import import_tensorflow
from trainers.cli.arguments import RunError, UsageError, program_command
from trainers.cli.settings import as_dict
from trainers.cli.startup import print_lines, print_message, print_warnings
from trainers.cluster import check_agreement, make_strategy, serve
from trainers.run.folder import SAME, WHERE_DATA_ARE, DataDescription, hold_lock
from trainers.run.signals import SignalHandler
from trainers.training.settings import Task, recorded_settings

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

# Number of training images whose loss `--curvature-every` measures, by about 100 Hessian-vector products.
CURVATURE_EXAMPLES = 256
CURVATURE_EFFORT: dict[str, Any] = {"eigenvalues": 2, "probes": 2, "steps": 20, "products": 15, "tolerance": 1e-2}


def train(task: Task) -> int:
    """Start or resume a run. Returns the exit code: 0, or 128 + N after signal N, when a checkpoint has been saved."""
    run, timeout = task.run, task.settings.run.cluster_timeout
    if _is_finished(task):
        return 0
    cluster = find_cluster(task.settings.run.parameter_servers)
    task.check_cluster(cluster)
    # Only the chief writes to the folder.
    run.writes = cluster is None or cluster.is_chief
    advice = functools.partial(describe_newest, run.checkpoints_path)
    with hold_lock(run.path) if run.writes else contextlib.nullcontext(), explain_lost_tasks(cluster, advice):
        if cluster is not None:
            import_tensorflow()
            if cluster.asynchronous and not cluster.is_chief:
                return serve(cluster, timeout)
            wait_for_tasks(cluster, timeout, print_message, "--cluster-timeout")
        with print_warnings():
            return _train(task, cluster)


def _train(task: Task, cluster: ClusterDescription | None) -> int:
    run, recipe = task.run, task.settings.recipe
    # In a cluster, only the chief prints messages.
    say_once = print_message if run.writes else lambda _text: None

    # Data. Several workers must be connected before TensorFlow computes anything. Otherwise the data are loaded before
    # TensorFlow is imported, so that missing files are reported at once.
    if cluster is None:
        _check_batch_size(task)
    import_tensorflow()
    strategy = make_strategy(cluster)
    _check_batch_size(task)
    say_once(f"{task.data.name}: {task.source.summary()} ({task.data.origin})")
    _check_agreement(task, cluster, strategy)

    # Network and optimizer
    from idmatters_tf.optimizers import Muon
    from trainers.training import build
    from trainers.training.optimizers import find_drop_steps, make_optimizer

    drops = find_drop_steps(recipe, task.source.training_images)
    with build.strategy_scope(strategy):
        model = build.build_model(task, strategy)
        optimizer = make_optimizer(recipe, drops)
        build.compile_model(task, model, optimizer)
        # Inside the scope: slot variables created while tracing break under several replicas.
        if isinstance(optimizer, Muon):
            optimizer.build_for(model)
        optimizer.build(model.trainable_variables)
    parameters = count_parameters(model)
    say_once(
        f"{parameters:,} trainable parameters on {_devices(strategy, cluster)}, {recipe.precision}; results in "
        f"{run.path}"
    )
    late = " ".join(str(drop) for drop in drops if drop >= recipe.steps)
    if late:
        say_once(f"the learning rate will not drop at {late}: --steps is {recipe.steps}")

    # Run. `ExactResume` finds the checkpoint of an existing one.
    if run.overwrites or not list_steps(run.checkpoints_path):
        if not run.overwrites and run.result() is not None:
            raise UsageError(f"{run.path} is finished, but its checkpoints are missing. {SAME}")
        _start_run(task)

    # Updates
    with _explain_data_errors(task, model), SignalHandler() as handler:
        if cluster is not None and cluster.asynchronous:
            from trainers.training.asynchronous import fit_asynchronously

            is_complete = fit_asynchronously(task, model, cluster, handler)
        else:
            is_complete = _fit(task, model, strategy, cluster, handler)
    if not is_complete:
        stopped = handler.received or signal.SIGTERM
        resume = program_command(task.program, "--resume", "--out", run.path)
        same_command = resume if cluster is None else "run the same command again"
        # A signal during the first evaluation stops the run before the first checkpoint.
        saved = "saved a checkpoint" if list_steps(run.checkpoints_path) else "no checkpoint yet"
        say_once(f"stopped by {stopped.name}; {saved}. To resume: {same_command}")
        return 128 + stopped

    # Exports and result
    if run.writes:
        from trainers.run.figures import convergence
        from trainers.training.evaluate import export_newest

        plot = run.path / "convergence.png"
        result = summarize(run.records, recipe.steps, parameters)
        # Its file may have been removed.
        _save_preprocessing(task)
        # From the checkpoint of the last step: on JAX another process writes the exports, and the trained model may be
        # in bfloat16 on several devices.
        export_newest(task, run.path)
        convergence(run.records, plot, task.title(parameters))
        run.finish(result)
        print_lines(describe_result(result), f"convergence plot:      {plot}")
    return 0


def _fit(
    task: Task, model: "keras.Model", strategy: Any, cluster: ClusterDescription | None, handler: SignalHandler
) -> bool:
    """Train by Keras' `fit`, whose epochs are the log interval. Return False if a signal has stopped the training."""
    from idmatters_tf.callbacks import ExactResume
    from trainers.training import build, reports
    from trainers.training.measure import measure

    run, settings, recipe = task.run, task.settings, task.settings.recipe
    network = build.with_image_size(model, *task.data.image_shape[:2]) if recipe.train_sizes else model
    test = functools.partial(measure, model, task.source.test_batches(), task.source.test_images, run.writes)
    recorded = reports.Reports(task, network, test)
    resume = ExactResume(run.checkpoints_path, settings.run.checkpoint_every, reports.KEPT, identity=task.identity)
    listed = [
        *([] if settings.run.curvature_every is None else [_curvature_monitor(task, model, strategy)]),
        reports.ReportEpochs(recorded, resume, handler, cluster is not None),
        resume,
    ]
    batches, epochs = build.make_train_batches(task), recipe.steps // settings.log_interval
    silent: Any = 0  # Keras annotates `verbose` as a string
    shown = {"epochs": epochs, "steps": batches.steps_per_epoch, "verbose": silent}
    callbacks = reports.DeviceLogs(listed, add_history=True, model=model, **shown)
    with recorded, reports.explain_write_errors(run.checkpoints_path), contextlib.suppress(reports.Interrupted):
        try:
            model.fit(batches, epochs=epochs, shuffle=False, verbose=silent, callbacks=callbacks)
        except OtherRun as error:
            raise UsageError(f"{error.reason} {SAME}") from error
        finally:
            resume.close()
    return recorded.step >= recipe.steps and not recorded.evaluation_is_due(recipe.steps)


def _curvature_monitor(task: Task, model: Any, strategy: Any) -> "keras.callbacks.Callback":
    """Return the measurement of the loss on training images. A network that trains in bfloat16 is copied to float32."""
    import keras

    from idmatters_tf.curvature import CurvatureMonitor
    from trainers.training import build
    from trainers.training.optimizers import plain_momentum

    copy = None
    if task.settings.recipe.precision != "float32":
        with build.strategy_scope(strategy):
            replicas = getattr(strategy, "num_replicas_in_sync", 1)
            copy = build.in_float32(task, model, task.data.image_shape, replicas)
    return CurvatureMonitor(
        task.source.examples(CURVATURE_EXAMPLES).dataset(),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight"),
        every=f"{task.settings.run.curvature_every} steps",
        log_dir=task.run.path / "events",
        measure_options=CURVATURE_EFFORT,
        copy=copy,
        optimizer=plain_momentum(model.optimizer),
    )


def _is_finished(task: Task) -> bool:
    """Return True, after a message, if the run has its result and the same settings."""
    run, settings = task.run, task.settings
    result = None if run.overwrites else run.result()
    if result is None or result["steps"] < settings.recipe.steps:
        return False
    # Other settings are named when `ExactResume` compares them.
    if recorded_settings(task.program, run).identity("", "") != settings.identity("", ""):
        return False
    print_lines(
        f"{run.path} is finished. {describe_result(result)} Use another --out for a new run, --overwrite, or --resume "
        f"with more --steps."
    )
    return True


def _check_agreement(task: Task, cluster: ClusterDescription | None, strategy: "tf.distribute.Strategy | None") -> None:
    """Raise UsageError if the tasks of a cluster have other settings, data or folders."""
    local = (*WHERE_DATA_ARE, "cluster_timeout")
    shared = {name: value for name, value in as_dict(task.settings).items() if name not in local}
    if cluster is not None and not cluster.asynchronous:
        shared["out"] = str(task.run.path.absolute())
    check_agreement(cluster, strategy, {**shared, "the digest of the data": task.data.digest()})


def _start_run(task: Task) -> None:
    """Write config.json and the fitted preprocessing of a new run."""
    import keras

    from idmatters_tf._environment import describe_numerics

    run, data = task.run, task.data
    names = tuple(data.class_names)
    described = DataDescription(data.origin, tuple(data.image_shape), data.classes, data.digest(), names)
    numerics = describe_numerics(keras.backend.backend())
    run.start(as_dict(task.settings), as_dict(described), task.program, numerics)
    _save_preprocessing(task)


def _save_preprocessing(task: Task) -> None:
    """Save the fitted preprocessing, if there is one, for exports without the data."""
    from trainers import preprocessing

    if task.run.writes and task.source.preprocessing is not None:
        preprocessing.save(task.source.preprocessing, task.data.image_shape, task.run.path)


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
