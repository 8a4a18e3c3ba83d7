"""Checks of a `fit` on several replicas, for what Keras and TensorFlow do differently than on one device.

Errors: batches that leave a replica without examples, steps of the user that have not been checked, `jit_compile=True`,
models of another scope, callbacks that write files on several workers, and weights, optimizers, arguments and data that
differ between workers. Batches are compared in each step, see `_keras_internals.replicas.data`.
"""

import contextlib
import functools
from collections.abc import Iterator, Sequence

import keras

from idmatters_tf._keras_internals.replicas.data import SharedOrder, use_order
from idmatters_tf._keras_internals.replicas.steps import check_scope, check_steps
from idmatters_tf._keras_types import Options, Strategy
from idmatters_tf._tensorflow_internals.pipelines import global_seed
from idmatters_tf._tensorflow_internals.runtime import wait_for_all_tasks
from idmatters_tf.distribute.callbacks import WRITE_FILES, StopTogether, is_chief_only, refuse_backup
from idmatters_tf.distribute.description import ClusterDescription
from idmatters_tf.distribute.order import (
    count_rows,
    describe_arrays,
    describe_data,
    describe_variables,
    draw_seed,
    synchronize_generators,
)
from idmatters_tf.distribute.tasks import check_equal, describe_cluster, explain_lost_tasks, known_cluster, run_on_all


def check_fit(model: keras.Model, arguments: Options) -> contextlib.AbstractContextManager[None]:
    """Check a `fit`, and prepare it for several replicas.

    Args:
        model: compiled model.
        arguments: arguments of `fit` by name. On several workers, a callback is added to `callbacks`.

    Returns:
        Context for the `fit`, in which errors name lost workers. It includes the contexts that the methods
        `surround_fit(cluster)` of callbacks return.

    Raises:
        ValueError: training would fail, or give another result without notice.
    """
    strategy: Strategy = model.distribute_strategy
    if strategy.num_replicas_in_sync == 1:
        check_scope(model, known_cluster() is not None)
        return use_order(None)
    given = arguments["callbacks"]
    callbacks = [] if given is None else keras.tree.flatten(getattr(given, "callbacks", given))
    cluster = describe_cluster(strategy)

    def check() -> dict[str, object]:
        _check_model(model, arguments, strategy)
        return {} if cluster is None else _check_worker(model, arguments, callbacks)

    described = run_on_all(strategy, check)
    if cluster is None:
        return _surround(None, callbacks, None)
    # A worker that evaluates has no seeds.
    global_seeds, own_seeds = zip(*(each.pop("seeds", (None, None)) for each in described), strict=True)
    check_equal(list(cluster.tasks), described)
    # Keras' order of arrays is the same on all workers with one global seed.
    seed = own_seeds[0] if None in global_seeds or len(set(global_seeds)) > 1 else None
    synchronize = functools.partial(synchronize_generators, strategy)
    # ExactResume exchanges the flag itself, after the other callbacks.
    if not any(hasattr(callback, "surround_fit") for callback in callbacks):
        arguments["callbacks"] = [*callbacks, StopTogether()]
    # Arrays are shuffled by `seed`. The generators of other data may draw from the global generators.
    if count_rows(arguments["x"]) is None:
        synchronize()
    return _surround(cluster, callbacks, SharedOrder(seed, synchronize))


def check_call(strategy: Strategy, name: str, arguments: Options) -> None:
    """Raise ValueError if the workers do not call `evaluate` or `predict` with the same data."""
    described = run_on_all(strategy, lambda: {"the call": name, **describe_arrays(arguments)})
    check_equal(list(describe_cluster(strategy).tasks), described)  # type: ignore[union-attr]


@contextlib.contextmanager
def _surround(
    cluster: ClusterDescription | None, callbacks: Sequence[keras.callbacks.Callback], order: SharedOrder | None
) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(explain_lost_tasks(cluster))
        stack.enter_context(use_order(order))
        for surround in filter(None, (getattr(callback, "surround_fit", None) for callback in callbacks)):
            stack.enter_context(surround(cluster))
        yield
    if cluster is not None:
        wait_for_all_tasks()


def _check_model(model: keras.Model, arguments: Options, strategy: Strategy) -> None:
    """Check the model of a `fit` on several replicas, and that arrays leave no replica without examples."""
    check_scope(model, known_cluster() is not None)
    check_steps(model, ("train_step", "compute_metrics"))
    if model.jit_compile:
        raise ValueError("`jit_compile=True` fails on several replicas. Pass jit_compile=False to `compile`.")
    rows, size, replicas = count_rows(arguments["x"]), arguments["batch_size"] or 32, strategy.num_replicas_in_sync
    if rows is None:
        return
    if arguments["validation_split"] and arguments["validation_data"] is None:
        rows = int(rows * (1.0 - arguments["validation_split"]))
    last = rows % size or min(rows, size)
    # Parts of a batch have the same size, except for the last one.
    if last <= (replicas - 1) * -(-last // replicas):
        raise ValueError(
            f"A training batch has {last} examples: one of {replicas} replicas would receive none. Remove {last} "
            f"examples."
        )


def _check_worker(
    model: keras.Model, arguments: Options, callbacks: Sequence[keras.callbacks.Callback]
) -> dict[str, object]:
    """Check a `fit` on one of several workers, and return a description that must be equal on all."""
    for callback in callbacks:
        refuse_backup(callback)
        if isinstance(callback, WRITE_FILES) and not is_chief_only(callback):
            raise ValueError(
                f"{type(callback).__name__} writes files, which several workers would write at once. Pass "
                f"*chief_only({type(callback).__name__}(...)) to `fit`."
            )
    return {
        "the call": "fit",
        "callbacks": [type(callback).__name__ for callback in callbacks if not is_chief_only(callback)],
        "the optimizer": type(model.optimizer).__name__,
        **{name: arguments[name] for name in ("epochs", "initial_epoch")},
        **describe_data(arguments),
        **describe_variables(model),
        # May differ between the workers.
        "seeds": [global_seed(), draw_seed()],
    }
