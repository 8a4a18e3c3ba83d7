"""Checks of a `fit` on several replicas, for what Keras and TensorFlow do differently than on one device.

Errors: batches that leave a replica without examples, or of a `train_step` of the user with unequal parts,
`jit_compile=True`, models of another scope, callbacks that write files on several workers, and arguments, data and
orders of the data that differ between workers.

Batch sizes of generators and of a `PyDataset` are not checked when `fit` begins. The step with such a batch fails.
"""

import contextlib
import functools
from collections.abc import MutableMapping
from typing import Any

import keras

from idmatters_tf._keras_internals.data_order import SharedOrder, is_within_fit, use_order
from idmatters_tf._keras_internals.trial_steps import overrides_step
from idmatters_tf._tensorflow_internals.pipelines import batch_sizes
from idmatters_tf._tensorflow_internals.runtime import wait_for_all_tasks
from idmatters_tf.distribute.callbacks import WRITE_FILES, StopTogether, is_chief_only, refuse_backup
from idmatters_tf.distribute.order import (
    check_batches,
    choose_seed,
    count_rows,
    describe_data,
    describe_seeds,
    synchronize_generators,
)
from idmatters_tf.distribute.tasks import check_equal, describe_cluster, explain_lost_tasks, known_cluster, run_on_all


def check_fit(model: keras.Model, arguments: MutableMapping[str, Any]) -> contextlib.AbstractContextManager[None]:
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
    strategy: Any = model.distribute_strategy
    if strategy.num_replicas_in_sync == 1:
        _check_scope(model)
        return use_order(None)
    given = arguments["callbacks"]
    callbacks = [] if given is None else keras.tree.flatten(getattr(given, "callbacks", given))
    cluster = describe_cluster(strategy)

    def check():
        _check_scope(model)
        _check_step(model)
        _check_batches(model, arguments, strategy)
        return None if cluster is None else _check_worker(model, arguments, callbacks)

    described = run_on_all(strategy, check)
    if cluster is None:
        return _surround(None, callbacks, None)
    seed = choose_seed([each.pop("seeds") for each in described])
    check_equal(list(cluster.tasks), described)
    synchronize = functools.partial(synchronize_generators, strategy)
    # ExactResume exchanges the flag itself, after the other callbacks.
    if not any(hasattr(callback, "surround_fit") for callback in callbacks):
        arguments["callbacks"] = [*callbacks, StopTogether()]
    # Arrays are shuffled by `seed`. The generators of other data may draw from the global generators.
    if count_rows(arguments["x"]) is None:
        synchronize()
    return _surround(cluster, callbacks, SharedOrder(seed, synchronize, functools.partial(check_batches, strategy)))


@contextlib.contextmanager
def _surround(cluster, callbacks, order):
    with contextlib.ExitStack() as stack:
        stack.enter_context(explain_lost_tasks(cluster))
        stack.enter_context(use_order(order))
        for surround in filter(None, (getattr(callback, "surround_fit", None) for callback in callbacks)):
            stack.enter_context(surround(cluster))
        yield
    if cluster is not None:
        wait_for_all_tasks()


def _check_scope(model):
    """Check that model and optimizer belong to the strategy of several workers, unless a callback trains the model."""
    strategy = getattr(model, "_distribute_strategy", None)
    if strategy is None and known_cluster() is not None and not is_within_fit():
        raise ValueError(
            "The model was built outside of the scope of the strategy, so that this worker would train alone. Build it "
            "in `with strategy.scope():`, or in that of tf.distribute.OneDeviceStrategy to train alone."
        )
    optimizer: Any = model.optimizer
    owner = getattr(optimizer, "_distribution_strategy", None)
    if strategy is not None and owner is not None and owner is not strategy:
        raise ValueError(
            "The optimizer was created outside of the scope of the strategy. Create it and call `compile` in `with "
            "strategy.scope():`."
        )


def _check_step(model):
    if model.jit_compile:
        raise ValueError("`jit_compile=True` fails on several replicas. Pass jit_compile=False to `compile`.")


def _check_batches(model, arguments, strategy):
    """Check that no replica receives an empty part of a training batch, and steps of the user equal parts."""
    has_workers = describe_cluster(strategy) is not None
    replicas = strategy.num_replicas_in_sync
    x, rows, batch_size = arguments["x"], count_rows(arguments["x"]), arguments["batch_size"] or 32
    validation, split = arguments["validation_data"], arguments["validation_split"]
    if validation is not None:
        validation = keras.utils.unpack_x_y_sample_weight(validation)[0]
        validation_rows = count_rows(validation)
    elif rows is not None and split:
        validation_rows = rows - int(rows * (1.0 - split))
        rows -= validation_rows
    else:
        validation_rows = None
    validation_size = arguments.get("validation_batch_size") or batch_size
    sizes = {
        "train_step": _batch_sizes(x, rows, batch_size),
        "test_step": _batch_sizes(validation, validation_rows, validation_size),
    }
    for name, batches in sizes.items():
        if overrides_step(model, name == "train_step") and any(size % replicas for size in batches):
            raise ValueError(
                f"All batches must be divisible among the {replicas} replicas for a `{name}` of your own. Received: "
                f"batches of {batches[0]} and {batches[1]} examples. Use batch(..., drop_remainder=True)."
            )
    is_dataset = batch_sizes(x) is not None
    for size in sizes["train_step"]:
        if size and _leaves_replica_empty(size, sizes["train_step"][0], replicas, is_dataset, has_workers):
            raise ValueError(
                f"A training batch has {size} examples: one of {replicas} replicas would receive none. "
                f"{'Use batch(..., drop_remainder=True)' if is_dataset else f'Remove {size} examples'}."
            )


def _batch_sizes(x: Any, rows: int | None, batch_size: int) -> tuple[int, ...]:
    """Return the sizes of a batch and of the last batch of an epoch, 0 for a complete one; () if they are unknown."""
    known = batch_sizes(x)
    if known is not None or rows is None:
        return known or ()
    return (batch_size, rows % batch_size) if rows >= batch_size else (rows, 0)


def _leaves_replica_empty(size, batch_size, replicas, is_dataset, has_workers):
    """Return True if a replica receives none of the `size` examples of a batch."""
    if not is_dataset:
        # Parts have the same size, except for the last one.
        return size <= (replicas - 1) * -(-size // replicas)
    if has_workers or size == batch_size:
        return size < replicas
    # In one process, the examples of a last batch fill the parts of a full batch one after the other.
    return size <= batch_size - batch_size // replicas


def _check_worker(model, arguments, callbacks):
    """Check a `fit` on one of several workers, and return a description that must be equal on all."""
    for callback in callbacks:
        refuse_backup(callback)
        if isinstance(callback, WRITE_FILES) and not is_chief_only(callback):
            raise ValueError(
                f"{type(callback).__name__} writes files, which several workers would write at once. Pass "
                f"*chief_only({type(callback).__name__}(...)) to `fit`."
            )
    return {
        "callbacks": [type(callback).__name__ for callback in callbacks if not is_chief_only(callback)],
        "the optimizer": type(model.optimizer).__name__,
        "the number of weights": model.count_params() if model.built else None,
        **{name: arguments[name] for name in ("epochs", "initial_epoch")},
        **describe_data(arguments),
        "seeds": describe_seeds(),
    }
