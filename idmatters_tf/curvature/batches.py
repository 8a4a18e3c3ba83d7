"""A data set as batches that can be gone through again and again, on one device or split over replicas."""

import contextlib
import itertools
import logging

import numpy as np
import tensorflow as tf


class Batches:
    """Batches of examples.

    Args:
        data: a `tf.data.Dataset` of batches; a tuple of arrays, cut into batches here; or any other iterable of batches
            that can be gone through more than once.
        batch_size: for arrays.
    """

    def __init__(self, data, batch_size):
        self.strategy = tf.distribute.get_strategy()
        self.replicas = self.strategy.num_replicas_in_sync
        if isinstance(
            self.strategy,
            (tf.distribute.MultiWorkerMirroredStrategy, tf.distribute.experimental.ParameterServerStrategy),
        ):
            raise ValueError(
                "Curvature is computed on one machine: leave the scope of the multi-worker strategy, or use "
                "tf.distribute.MirroredStrategy."
            )
        self._batches = data
        if isinstance(data, tuple):
            self._batches = list(_cut(data, batch_size))
        elif isinstance(data, np.ndarray) or tf.is_tensor(data) or not hasattr(data, "__iter__"):
            raise ValueError(
                f"Argument `data` must be a tf.data.Dataset of batches, a tuple of arrays (x, y), or an iterable of "
                f"batches. Received: {type(data).__name__}"
            )
        elif iter(data) is data:
            raise ValueError(
                "Argument `data` must be an iterable that can be gone through again: every product needs all of it. "
                "Received: an iterator. Pass a list or a tf.data.Dataset."
            )

    def __iter__(self):
        for batch in self._batches:
            batch = tf.nest.map_structure(tf.convert_to_tensor, batch)
            if tf.nest.flatten(batch)[0].shape.rank == 0:
                raise ValueError(
                    "Argument `data` must give batches; received: single examples. Use data.batch(batch_size)."
                )
            yield batch

    def compiled(self, function, values, dtype):
        """A function that sums `function` over the batches.

        Args:
            function: `function(theta, batch, scales, *arguments)`, which returns tensors.
            values: returns theta.
            dtype: of the scales.

        Returns:
            A function of (scale, per_example, arguments, progress): the factor of the sum of losses, the factor of the
            number of examples for penalties, a tuple of tensors, and None or a function called after each batch.
        """

        def on_replica(batch, scales, *arguments):
            return function(values(), batch, scales, *arguments)

        @tf.function
        def on_batch(batch, scales, *arguments):
            if self.replicas == 1:
                return on_replica(batch, scales, *arguments)
            results = self.strategy.run(on_replica, args=(batch, scales, *arguments))
            return self.strategy.reduce(tf.distribute.ReduceOp.SUM, results, axis=None)

        traced = _Traced(on_batch)

        def total(scale, per_example, arguments, progress):
            sums = None
            for batch in self:
                parts = _shares(batch, self.replicas)
                scales = [
                    tf.constant([scale * share, per_example * share * _length(part)], dtype) for part, share in parts
                ]
                with _without_advice():
                    if self.replicas == 1:
                        result = traced(parts[0][0], scales[0], *arguments)
                    else:
                        result = on_batch(self._spread([part for part, _ in parts]), self._spread(scales), *arguments)
                sums = result if sums is None else tf.nest.map_structure(tf.add, sums, result)
                if progress is not None:
                    progress()
            return sums

        return total

    def _spread(self, values):
        """One value for each replica."""

        def value(context):
            return values[context.replica_id_in_sync_group]

        return self.strategy.experimental_distribute_values_from_function(value)


@contextlib.contextmanager
def _without_advice():
    """Without `vectorized_map`'s line for each gradient of a kernel that it computes in a loop: that is all right."""

    def wanted(record):
        return "uses a while_loop" not in str(record.msg)

    logger = logging.getLogger("tensorflow")
    logger.addFilter(wanted)
    try:
        yield
    finally:
        logger.removeFilter(wanted)


class _Traced:
    """A `tf.function` traced for each size of batch; from the third size on, once for all the others.

    Calling a `tf.function` itself would warn of retracing as soon as a few operators have been made: it counts by the
    place in the source.
    """

    def __init__(self, function):
        self._function, self._graphs = function, {}

    def __call__(self, batch, *arguments):
        shapes = tuple(tuple(argument.shape) for argument in arguments)
        graphs = self._graphs.setdefault(shapes, {})
        length = _length(batch)
        if length not in graphs:
            specification = batch
            if len(graphs) >= 2:
                length = "any"
                specification = tf.nest.map_structure(_of_any_length, batch)
            if length not in graphs:
                graphs[length] = self._function.get_concrete_function(specification, *arguments)
        return graphs[length](batch, *arguments)


def _of_any_length(tensor):
    return tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)


def _cut(arrays, batch_size):
    if batch_size < 1:
        raise ValueError(f"Argument `batch_size` must be positive. Received: batch_size={batch_size}")
    lengths = {len(array) for array in tf.nest.flatten(arrays)}
    if len(lengths) != 1:
        raise ValueError(
            f"Argument `data` must hold arrays of one length. Received: lengths {', '.join(map(str, sorted(lengths)))}"
        )
    for start in range(0, lengths.pop(), batch_size):
        yield tf.nest.map_structure(
            lambda array, start=start: tf.convert_to_tensor(array[start : start + batch_size]), arrays
        )


def _length(batch):
    return int(tf.nest.flatten(batch)[0].shape[0])


def _shares(batch, replicas):
    """(part, factor) for each replica; parts differ in size by at most one example.

    A batch with fewer examples than replicas is given to all of them, and counts on the first alone.
    """
    length = _length(batch)
    if length < replicas:
        return [(batch, float(replica == 0)) for replica in range(replicas)]
    bounds = np.linspace(0, length, replicas + 1).round().astype(int)
    return [
        (tf.nest.map_structure(lambda tensor, a=a, b=b: tensor[a:b], batch), 1.0) for a, b in itertools.pairwise(bounds)
    ]
