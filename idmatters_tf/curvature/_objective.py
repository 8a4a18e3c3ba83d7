"""Loss of a model on a batch as a function of selected variables, its gradient, and products of the two matrices."""

import itertools
from collections.abc import Iterable, Sequence

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

from idmatters_tf._arguments import make_unique_name
from idmatters_tf._evaluation.batches import RepeatableBatches, check_data
from idmatters_tf._evaluation.losses import DataLoss, ModelLoss
from idmatters_tf._keras_internals import get_mask, seed_states, set_mask, substitute_values, variable_owners
from idmatters_tf._keras_types import Data, Loss, Options, Structure, Tensor, Variables
from idmatters_tf.autodiff import LinearMap, current_backend


class Objective:
    """Loss of a model on a data set, as one batch.

    The model is called as a function of its variables and is not changed. The sums of `loss_beside`,
    `loss_and_gradient`, `hessian` and `gauss_newton` over the batches are the values for all data. These are compiled,
    with the arguments:

    - values: one tensor for each of `arguments`.
    - batch: a batch of the data.
    - scales: one factor for the sum of each loss term, from `DataLoss.factors`, and a last one for the penalties.
    - shift: vector (P,) that is added to the values of the flat vector's variables.
    - draw: offset of the seeds of the model's random generators.
    - vectors: one vector (P,), with a list of tensors like the variables as the product, or k vectors (k, P).

    Args: see `idmatters_tf.curvature.HessianOperator`.

    Attributes:
        variables: variables of the flat vector.
        arguments: all variables of the model, those of the flat vector first.
        slices: slice of the flat vector for each layer.
        dtype: dtype of the flat vector, "float32" or "float64".
        size: length of the flat vector.
        backend: derivatives on Keras' backend.
    """

    def __init__(
        self,
        model: keras.Model,
        loss: Loss | ModelLoss,
        data: Data | None,
        variables: Variables,
        regularization: bool,
        training: bool,
        batch_size: int,
    ):
        if not isinstance(model, keras.Model):
            raise ValueError(f"Argument `model` must be a keras.Model. Received: {type(model).__name__}")
        if not model.built:
            raise ValueError(
                f"Argument `model` must be built. Received: {model.name!r} without variables. Call it on a batch, or "
                f"model.build(input_shape), first."
            )
        check_data(loss, data)
        self.model = model
        self.loss = DataLoss(model, loss)
        self.regularization = bool(regularization)
        self.training = bool(training)
        self.variables = _resolve_variables(model, variables)
        chosen = {id(variable) for variable in self.variables}
        others = [variable for variable in model.variables if id(variable) not in chosen]
        self.arguments = [*self.variables, *others]
        self.sizes = [int(np.prod(variable.shape, dtype=np.int64)) for variable in self.variables]
        self.size = sum(self.sizes)
        # Dtypes of the values, because JAX stores float64 variables as float32 unless jax_enable_x64 is set.
        dtypes = {_get_dtype(variable) for variable in self.variables}
        self.dtype = "float64" if "float64" in dtypes else "float32"
        self.slices = _layer_slices(model, self.variables, self.sizes)
        self._seeds = {id(state) for state in seed_states(model)}
        self.batches = RepeatableBatches(data, batch_size)
        self.backend = current_backend()

    @property
    def coupling(self) -> str | None:
        """Subject of an error message, if the loss of all data is not a sum over batches; None if it is."""
        if self.training:
            return "The model in training mode"
        return self.loss.coupling

    def split(self, flat: Tensor) -> list[Tensor]:
        """Split a vector (P,) into tensors with the shapes of the variables."""
        # Slices, which TensorFlow takes without copying where possible; ops.split always copies.
        parts: list[Tensor] = [
            flat[start:stop] for start, stop in itertools.pairwise([0, *np.cumsum(self.sizes).tolist()])
        ]
        return [
            ops.cast(ops.reshape(part, variable.shape), _get_dtype(variable))
            for part, variable in zip(parts, self.variables, strict=True)
        ]

    def flatten(self, tensors: Sequence[Tensor]) -> Tensor:
        """Concatenate tensors with the shapes of the variables to a vector (P,), the inverse of `split`."""
        return ops.concatenate([ops.reshape(ops.cast(tensor, self.dtype), (-1,)) for tensor in tensors])

    def magnitudes(self) -> NDArray[np.floating]:
        """Return the root mean square of each entry's variable, (P,), in place of 0 a usual one of the others."""
        values = [np.asarray(ops.convert_to_numpy(variable.value)).astype(self.dtype) for variable in self.variables]
        sizes = [float(np.linalg.norm(value)) / max(value.size, 1) ** 0.5 for value in values]
        usual = float(np.median([size for size in sizes if size] or [1.0]))
        return np.repeat(np.array([size or usual for size in sizes], self.dtype), self.sizes)

    def forward(self, values: Sequence[Tensor], batch: Structure, draw: Tensor = 0) -> tuple[Structure, Tensor | None]:
        """Compute the model's outputs for a batch with other values of its variables.

        Returns:
            (outputs, penalties): the outputs, or the value of a loss of the model; and the sum of `model.losses`, or
            None without penalties.
        """
        mapping: list[tuple[keras.Variable, Tensor]] = [
            (variable, value + ops.cast(ops.stack([0, draw]), variable.dtype) if id(variable) in self._seeds else value)
            for variable, value in zip(self.arguments, values, strict=True)
        ]
        with substitute_values(mapping):
            if self.loss.takes_model:
                outputs = self.loss.evaluate(self.model, batch, self.training)
            else:
                x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
                outputs = self.model(x, training=self.training)
            # `compute_loss` includes the penalties.
            losses = self.model.losses if self.regularization and not self.loss.is_compute_loss else []
            cast: list[Tensor] = [ops.sum(ops.cast(loss, self.dtype)) for loss in losses]
            penalties: Tensor = sum(cast[1:], cast[0]) if cast else None
        return outputs, penalties

    def divisors(self, batch: Structure, outputs: Structure) -> Tensor:
        """Return the divisor of each term for a batch, (terms,)."""
        return ops.stack([ops.cast(divisor, self.dtype) for divisor in self.loss.divisors(batch, outputs)])

    def data_loss(self, batch: Structure, outputs: Structure, factors: Tensor) -> Tensor:
        """Return the contribution of a batch to the loss without penalties, a scalar."""
        totals = [ops.cast(total, self.dtype) for total in self.loss.totals(batch, outputs)]
        parts: list[Tensor] = [total * factors[index] for index, total in enumerate(totals)]
        return sum(parts[1:], parts[0])

    def value(self, values: Sequence[Tensor], batch: Structure, scales: Tensor, draw: Tensor = 0) -> Tensor:
        """Return the contribution of a batch to the loss."""
        outputs, penalties = self.forward(values, batch, draw)
        value = self.data_loss(batch, outputs, scales[:-1])
        return value if penalties is None else value + penalties * scales[-1]

    def loss_beside(self, values: Sequence[Tensor], batch: Structure, scales: Tensor, shift: Tensor) -> Tensor:
        """Return `value` for shifted variables."""
        theta, others = self._separate(values, shift)
        return self.value([*theta, *others], batch, scales)

    def loss_and_gradient(
        self, values: Sequence[Tensor], batch: Structure, scales: Tensor, shift: Tensor, draw: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return `value` for shifted variables and its gradient, (P,)."""
        theta, others = self._separate(values, shift)
        value, gradient = self.backend.gradient(lambda theta: self.value([*theta, *others], batch, scales, draw), theta)
        return value, self.flatten(gradient)

    def hessian(self, values: Sequence[Tensor], batch: Structure, scales: Tensor, vectors: Tensor) -> Structure:
        """Return products of the Hessian with vectors."""
        theta, others = self._separate(values)
        product = self.backend.hessian_product(lambda theta: self.value([*theta, *others], batch, scales), theta)
        return self._mapped(product, vectors)

    def gauss_newton(self, values: Sequence[Tensor], batch: Structure, scales: Tensor, vectors: Tensor) -> Structure:
        """Return products of the Gauss-Newton matrix with vectors, J^T H J and the Hessian of the penalties."""
        theta, others = self._separate(values)
        # Structure of the outputs, indices of those of floating-point dtypes, and presence of penalties, set by the
        # first call.
        traced: Options = {}

        def outputs_at(theta: list[Tensor]) -> tuple[list[Tensor], Structure]:
            traced["structure"], penalties = self.forward([*theta, *others], batch)
            traced["penalized"] = penalties is not None
            outputs = keras.tree.flatten(traced["structure"])
            traced["floats"] = [index for index, output in enumerate(outputs) if _is_float(output)]
            return [outputs[index] for index in traced["floats"]], (outputs, [get_mask(output) for output in outputs])

        def loss_at(floats: list[Tensor]) -> Tensor:
            outputs: list[Tensor] = list(values_at)
            for index, output in zip(traced["floats"], floats, strict=True):
                # Masks are attached to the tensors that the model returned, not to these replacements.
                set_mask(output, masks[index])
                outputs[index] = output
            return self.data_loss(batch, keras.tree.pack_sequence_as(traced["structure"], outputs), scales[:-1])

        def penalty_at(theta: list[Tensor]) -> Tensor:
            return self.forward([*theta, *others], batch)[1] * scales[-1]

        floats, (values_at, masks), jvp, vjp = self.backend.linearize(outputs_at, theta)
        curved = self.backend.hessian_product(loss_at, floats)
        added = self.backend.hessian_product(penalty_at, theta) if traced["penalized"] else None

        def product(vector: list[Tensor]) -> list[Tensor]:
            transposed = vjp(curved(jvp(vector)))
            if added is None:
                return transposed
            return [part + other for part, other in zip(transposed, added(vector), strict=True)]

        return self._mapped(product, vectors)

    def _mapped(self, linear_map: LinearMap, vectors: Tensor) -> Structure:
        """Return tensors like the variables for a vector (P,), and (k, P) for k vectors."""
        if len(vectors.shape) == 1:
            return linear_map(self.split(vectors))
        return self.backend.batched(lambda vector: self.flatten(linear_map(self.split(vector))))(vectors)

    def _separate(self, values: Sequence[Tensor], shift: Tensor | None = None) -> tuple[list[Tensor], list[Tensor]]:
        """Return the values of the flat vector's variables, shifted if `shift` is given, and those of all others."""
        theta, others = list(values[: len(self.variables)]), list(values[len(self.variables) :])
        if shift is not None:
            theta = [value + part for value, part in zip(theta, self.split(shift), strict=True)]
        return theta, others


def _get_dtype(variable: keras.Variable) -> str:
    value: Tensor = variable.value
    return keras.backend.standardize_dtype(value.dtype)


def _resolve_variables(model: keras.Model, variables: Variables) -> list[keras.Variable]:
    """Return a list of variables for variables, layers, or None for all trainable variables."""
    if variables is None:
        variables = model.trainable_variables
        if not variables:
            raise ValueError(
                f"Argument `model` must have trainable variables. Received: {model.name!r} without trainable "
                f"variables. Set `trainable` on its layers, or pass `variables`."
            )
    elif isinstance(variables, (keras.Variable, keras.layers.Layer)):
        variables = [variables]
    flat: list[keras.Variable] = []
    for entry in variables:
        flat += entry.trainable_variables if isinstance(entry, keras.layers.Layer) else [entry]
    own = {id(variable) for variable in model.variables}
    for variable in flat:
        if id(variable) not in own:
            name = getattr(variable, "path", repr(variable))
            raise ValueError(
                f"Argument `variables` must contain variables or layers of the model {model.name!r}. Received: "
                f"{name}, which is not the model's."
            )
        if not _is_float(variable):
            raise ValueError(f"Argument `variables` must contain floating-point variables. Received: {variable.path}")
    if not flat:
        raise ValueError("Argument `variables` must contain at least one variable. Received: no variables.")
    if len({id(variable) for variable in flat}) != len(flat):
        raise ValueError("Argument `variables` must not contain a variable twice. Pass each variable once.")
    return flat


def _layer_slices(model: keras.Model, variables: Iterable[keras.Variable], sizes: Iterable[int]) -> dict[str, slice]:
    """Return the slice of the flat vector for each layer, in order.

    Layers in different nested models may have the same name. A layer occurs twice if variables of other layers are
    between its variables.
    """
    slices: dict[str, slice] = {}
    owners = variable_owners(model)
    last = None
    name = ""
    stop = 0
    for variable, size in zip(variables, sizes, strict=True):
        layer = variable.path.rpartition("/")[0] or variable.path
        current = id(owners.get(id(variable))), layer
        start = stop
        stop += size
        if current == last:
            start = slices[name].start
        else:
            name = make_unique_name(layer, slices)
        slices[name] = slice(start, stop)
        last = current
    return slices


def _is_float(tensor: Tensor) -> bool:
    return keras.backend.is_float_dtype(keras.backend.standardize_dtype(tensor.dtype))
