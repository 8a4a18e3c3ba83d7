"""The function whose curvature is taken: a model's loss on a data set, as a function of chosen variables."""

import keras
import numpy as np
import tensorflow as tf

from idmatters_tf.curvature.batches import Batches
from idmatters_tf.curvature.losses import DataLoss, split_batch
from idmatters_tf.randomness import seed_states


class Objective:
    """The loss of a model on a data set, as one batch, and sums over the data of what is derived from it.

    The model is called as a function of its variables (`keras.StatelessScope`): nothing of it is changed, neither
    moving averages nor the states of random generators.

    Args: see `idmatters_tf.curvature.HessianOperator`.

    Attributes:
        variables: those it is a function of.
        slices: by layer, where its variables are in the flat vector.
        dtype: of the flat vector, NumPy's float32 or float64.
        size: of the flat vector.
    """

    def __init__(self, model, loss, data, variables, regularization, training, batch_size):
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                f"Curvature needs Keras' TensorFlow backend. Received: {keras.backend.backend()!r}. Set KERAS_BACKEND."
            )
        if not isinstance(model, keras.Model):
            raise ValueError(f"Argument `model` must be a keras.Model. Received: {type(model).__name__}")
        if not model.built:
            raise ValueError(
                f"Argument `model` must be built: {model.name!r} has no variables yet. Call it on a batch, or "
                f"model.build(input_shape), before."
            )
        self.model, self.loss = model, DataLoss(loss)
        self.regularization, self.training = bool(regularization), bool(training)
        self.variables = _checked_variables(model, variables)
        self._sizes = [int(np.prod(variable.shape, dtype=np.int64)) for variable in self.variables]
        self.size = sum(self._sizes)
        self.dtype = np.result_type(*(variable.dtype for variable in self.variables)).type
        self.slices = _layer_slices(self.variables, self._sizes)
        self._seeds = seed_states(model)
        self.batches = Batches(data, batch_size)
        self._sums = {}
        self._totals = None

    def split(self, flat):
        """Vectors (..., P) as tensors of the variables' shapes, (..., *shape)."""
        leading = tf.shape(flat)[:-1]
        parts = tf.split(flat, self._sizes, axis=-1)
        return [
            tf.cast(tf.reshape(part, tf.concat([leading, variable.shape], 0)), variable.dtype)
            for part, variable in zip(parts, self.variables, strict=True)
        ]

    def flatten(self, tensors):
        """The inverse of `split`; `tensors` may have one leading axis more than the variables."""
        extra = tensors[0].shape.rank - len(self.variables[0].shape)
        leading = tf.shape(tensors[0])[:extra]
        parts = [
            tf.reshape(tf.cast(tensor, self.dtype), tf.concat([leading, [size]], 0))
            for tensor, size in zip(tensors, self._sizes, strict=True)
        ]
        return tf.concat(parts, -1)

    def forward(self, theta, batch, draw=0):
        """The model's answer to a batch where its variables are theta.

        Args:
            theta: tensors, one for each variable.
            batch: a batch of the data.
            draw: which random numbers the model's generators give, if it uses them.

        Returns:
            (outputs, penalties): the outputs, or for a loss(model, batch) its value; and the sum of `model.losses`.
        """
        mapping = {id(variable): (variable, variable.value) for variable in self.model.trainable_variables}
        mapping |= {id(variable): (variable, value) for variable, value in zip(self.variables, theta, strict=True)}
        mapping |= {id(seed): (seed, seed.value + tf.cast(tf.stack([0, draw]), seed.dtype)) for seed in self._seeds}
        with keras.StatelessScope(list(mapping.values()), collect_losses=True):
            if self.loss.of_model:
                outputs = self.loss.of_batch(self.model, batch)
            else:
                outputs = self.model(split_batch(batch)[0], training=self.training)
            losses = self.model.losses if self.regularization else []
            penalties = tf.add_n([tf.cast(loss, self.dtype) for loss in losses]) if losses else None
        return outputs, penalties

    def data_sum(self, batch, outputs):
        """The sum over a batch of the examples' losses (times their weights), a scalar."""
        count = tf.cast(_count(batch), self.dtype)
        if self.loss.of_model:
            return tf.cast(outputs, self.dtype) * count
        _, _, weights = split_batch(batch)
        values = self.example_losses(batch, outputs, scalar=weights is None)
        if values.shape.rank == 0:
            return values * count
        return tf.reduce_sum(values if weights is None else values * tf.reshape(tf.cast(weights, self.dtype), [-1]))

    def example_losses(self, batch, outputs, scalar=False):
        """The loss of each example, (batch,); with `scalar` also a mean over the batch where the loss is one.

        Raises:
            ValueError: where the loss gives no value for each example and one is needed.
        """
        values = tf.cast(self.loss.of_outputs(split_batch(batch)[1], outputs), self.dtype)
        if values.shape.rank != 1 and not scalar:
            raise ValueError(
                f"Argument `loss` must give a value for each example here (for sample weights and for the Fisher "
                f"matrix). Received: a loss of shape {values.shape} for a batch. Return the examples' losses, not "
                f"their mean."
            )
        return values

    def value(self, theta, batch, scales, draw=0):
        """The part of the loss that a batch contributes; `scales` as in `sum_over_data`."""
        outputs, penalties = self.forward(theta, batch, draw)
        value = self.data_sum(batch, outputs) * scales[0]
        return value if penalties is None else value + penalties * scales[1]

    def sum_over_data(self, name, function, *arguments, progress=None):
        """Sums a function over all batches, on all replicas of the strategy in whose scope this was built.

        Args:
            name: under which the function is kept once traced.
            function: `function(theta, batch, scales, *arguments)`, which returns tensors. `scales` are the factors of
                the batch's sum of losses and of the penalties.
            arguments: tensors, the same for all batches.
            progress: called after each batch.
        """
        scale, per_example = self.totals()
        if name not in self._sums:
            self._sums[name] = self.batches.compiled(function, self._values, self.dtype)
        return self._sums[name](scale, per_example, arguments, progress)

    def totals(self):
        """(1 / the weight of all examples, 1 / their number): the factors that make sums to means."""
        if self._totals is None:
            count, weight = 0, 0.0
            for batch in self.batches:
                count += int(_count(batch))
                weights = None if self.loss.of_model else split_batch(batch)[2]
                weight += int(_count(batch)) if weights is None else float(np.sum(weights))
            if not count:
                raise ValueError("Argument `data` is empty: it gives no example. Pass at least one batch.")
            if not weight > 0:
                raise ValueError(f"Argument `data` has sample weights that sum to {weight}. They must be positive.")
            scale = {"mean": 1 / count, "sum": 1.0, "mean_with_sample_weight": 1 / weight}[self.loss.reduction]
            self._totals = scale, 1 / count
        return self._totals

    def _values(self):
        return [tf.convert_to_tensor(variable.value) for variable in self.variables]


def _count(batch):
    return tf.shape(tf.nest.flatten(batch)[0])[0]


def _checked_variables(model, variables):
    """The variables, those of a layer for a layer, all trainable ones for None."""
    if variables is None:
        variables = model.trainable_variables
        if not variables:
            raise ValueError(
                f"Argument `model` must have trainable variables. Received: {model.name!r}, which has none. Set "
                f"`trainable` on its layers, or name variables with `variables`."
            )
    elif isinstance(variables, (keras.Variable, keras.layers.Layer)):
        variables = [variables]
    flat = []
    for entry in variables:
        flat += entry.trainable_variables if isinstance(entry, keras.layers.Layer) else [entry]
    own = {id(variable) for variable in model.variables}
    for variable in flat:
        if id(variable) not in own:
            name = getattr(variable, "path", repr(variable))
            raise ValueError(
                f"Argument `variables` must hold variables of the model {model.name!r}, or its layers. Received: "
                f"{name}, which is not the model's."
            )
        if not tf.as_dtype(variable.dtype).is_floating:
            raise ValueError(f"Argument `variables` must hold floating-point variables. Received: {variable.path}")
    if not flat:
        raise ValueError("Argument `variables` must name at least one variable, or a layer that has some.")
    if len({id(variable) for variable in flat}) != len(flat):
        raise ValueError("Argument `variables` names a variable twice. Name each once.")
    return flat


def _layer_slices(variables, sizes):
    """By layer, in order, the slice of the flat vector that holds its variables."""
    slices, last, name, stop = {}, None, None, 0
    for variable, size in zip(variables, sizes, strict=True):
        layer = variable.path.rpartition("/")[0] or variable.path
        start, stop = stop, stop + size
        if layer == last:
            start = slices[name].start
        else:
            # A layer comes twice where variables of others were named in between.
            name = layer if layer not in slices else f"{layer} from {start}"
        slices[name], last = slice(start, stop), layer
    return slices
