"""Muon: momentum whose steps on kernels are orthogonalized matrices.

References:
    - Jordan et al., *Muon: An optimizer for hidden layers in neural networks* (2024): the method.
    - Jordan, the airbench94_muon recipe (2024): kernels of constant norm.
    - Bernstein, *Deriving Muon* (2025), after Bernstein & Newhouse, *Old optimizer, new norm* (arXiv 2409.20325): the
      scale of free steps.
    - Liu et al., *Muon is scalable for LLM training* (arXiv 2502.16982): the scale "rms", weight decay, AdamW for the
      other variables.
    - Li et al., *NorMuon: Making Muon more efficient and scalable* (arXiv 2510.05491): normalized outputs.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self, get_args

import keras
import numpy as np
from keras import ops

from idmatters_tf._arguments import check_choice, positive_integer
from idmatters_tf._keras_internals import replicas, value_outside_functions
from idmatters_tf._presentation.results import tabulate
from idmatters_tf.optimizers.kernels import KernelMatrices, find_kernels_by_layer, find_kernels_by_path
from idmatters_tf.optimizers.momentum import LearningRate, Momentum
from idmatters_tf.optimizers.orthogonalization import orthogonalize

Norm = Literal["keep", "free"]
Scale = Literal["spectral", "rms"]
Other = Literal["momentum", "adamw"]


@keras.saving.register_keras_serializable(package="idmatters_tf")
class Muon(Momentum):
    """Orthogonalized momentum on kernels, momentum or AdamW on all other variables.

    A kernel W is used as a matrix of one row for each input and one column for each output:

        v = m v + g
        D = orthogonalize(g + m v)                             (v in place of g + m v without `nesterov`)

    With `norm="keep"` each kernel keeps its Frobenius norm:

        W = W - lr ||W|| / sqrt(min(rows, columns)) D
        W = W ||W before|| / ||W||

    The learning rate is then the angle, in radians, by which a kernel turns in one step. Gains that multiply the
    kernel's outputs (`layers.ScaledResidualConv2D`) take the place of batch normalization in deep networks. The
    initial norm must be the final one, as with `HeNormal`. Kernels of zeros would stay zero and raise an error.

    With `norm="free"` the norm changes with the steps:

        W = W - lr sqrt(columns / rows) D                      (scale="spectral")
        W = W - lr 0.2 sqrt(max(rows, columns)) D              (scale="rms")

    The largest singular value of D is about 1. With "spectral", a step changes the root mean square of a kernel's
    outputs by at most about lr times that of the patches that it is applied to, for kernels of any shape. Networks that
    start near the identity, as the paper's, need this mode. With "rms" (Liu et al., 2025), the entries of a step have
    a root mean square of about 0.2 lr, as those of AdamW, so that AdamW's learning rate and weight decay can be kept.

    With `neuron_beta`, 0.95 in NorMuon (Li et al., 2025, Algorithm 1), the column of D of each output is divided by the
    root of a moving average s of its mean square. Then D gets the norm of an orthogonal matrix:

        s = neuron_beta s + (1 - neuron_beta) mean_rows(D^2);  D = D / (sqrt(s) + 1e-8)
        D = D sqrt(min(rows, columns)) / ||D||

    With "rms" this is NorMuon: the entries of a step have a root mean square of exactly 0.2 lr. With `norm="keep"`, the
    step before the last division is exactly lr ||W|| long.

    Weight decay is decoupled: `weight_decay=` subtracts `lr * weight_decay * W` first, as in all Keras optimizers.

    The rows and columns of a kernel follow from its layer: dense layers, `EinsumDense`, so also the projections of
    attention in Keras and KerasHub, banks of experts with a matrix for each expert, ordinary, transposed and separable
    convolutions, and recurrent layers. `describe` lists them. All other variables are updated by momentum or AdamW,
    with the learning rate multiplied by `other_rate`: biases, gains, embeddings, normalization, depthwise convolutions,
    LoRA's matrices, and the last layer.

    `build_for(model)` gives the optimizer the layers. Keras passes variables to optimizers without their layers, so
    that an optimizer which has been compiled only reads their paths and shapes, by the rules in
    `docs/reference/api/layers.md`, and raises an error where they are ambiguous. A saved model keeps its matrices.

    Kernels whose matrices have equal shapes are orthogonalized in one batched product, except in `model.fit` under a
    `tf.distribute` strategy of several replicas.

    Example:

    ```python
    # For a transformer, in place of keras.optimizers.AdamW(3e-4, weight_decay=0.1).
    decays = {"weight_decay": 0.1, "other_weight_decay": 0.1}
    optimizer = Muon(3e-4, 0.95, norm="free", scale="rms", iterations=5, other="adamw", other_rate=1.0, **decays)
    model.compile(optimizer.build_for(model), "sparse_categorical_crossentropy")
    print(optimizer.describe(model))
    ```

    References: see the module.

    Args:
        learning_rate: A float or a Keras schedule. Defaults to 0.1. In the paper's network with 9 blocks per stage and
            `norm="free"`, 0.036 is near the highest rate that trains.
        momentum: The factor m, in [0, 1). It is positive with `other="adamw"`, where it applies to kernels only.
        nesterov: If True, the step is Nesterov's.
        norm: `"keep"` or `"free"`.
        scale: `"spectral"` or, with `norm="free"`, `"rms"`.
        iterations: Number of Newton-Schulz iterations in `orthogonalize`.
        other: Update of the other variables, `"momentum"` or `"adamw"`, the step of `keras.optimizers.AdamW`.
        other_rate: Factor on the learning rate of the other variables. With `scale="rms"` and `other="adamw"`, 1.0
            gives all variables AdamW's rate.
        other_weight_decay: Decoupled weight decay of the other variables with `other="adamw"`, times their learning
            rate. With momentum, `weight_decay` applies to all variables. Both follow `exclude_from_weight_decay`.
        betas: Decay rates of AdamW's two moments.
        neuron_beta: Decay rate of the mean squares of NorMuon, in [0, 1). None leaves D as it is.
        exclude: Layers, or names of layers, whose kernels count as other variables. A name may be a part of the path
            of the variables, such as "decoder/attention".
        per_head: If True, each head of an attention projection is orthogonalized by itself.
        split: Dict from names, as in `exclude`, to numbers of equal parts of the last axis of a kernel's outputs, each
            of which is a matrix. `{"query_key_value": 3}` separates the queries, keys and values of GPT-NeoX.
        orthogonalize_dtype: Type of the matrix products of the orthogonalization. With `"bfloat16"`, the steps of
            2,400 random matrices from 2 x 2 to 256 x 64 differed in norm from those of float32 by at most 12 % with 3
            iterations (median 1 to 9 % by kind of matrix) and 33 % with 5. With 5, matrices of rank one, whose
            rounding errors are amplified, differed by up to 128 %. Singular values stayed below 1.25.
        kernels: Matrices of all variables, from the configuration of an optimizer that `build_for` has built. They hold
            for a model whose variables have the same paths.
        kwargs: See `keras.optimizers.SGD`.

    Raises:
        ValueError: For another `norm`, `scale` or `other`, for `weight_decay` or `scale="rms"` with `norm="keep"`, for
            `other_weight_decay` with momentum, and for a momentum of 0 with AdamW; in `build` and `model.fit` for a
            name in `exclude` or `split` that is in no path, parts that do not divide an axis, a kernel of zeros with
            `norm="keep"`, and, without `build_for`, variables whose paths and shapes do not determine their matrices.
    """

    def __init__(
        self,
        learning_rate: LearningRate = 0.1,
        momentum: float = 0.9,
        nesterov: bool = True,
        norm: Norm = "keep",
        scale: Scale = "spectral",
        iterations: int = 3,
        other: Other = "momentum",
        other_rate: float = 0.5,
        other_weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.95),
        neuron_beta: float | None = None,
        exclude: Iterable[str | keras.layers.Layer] = (),
        per_head: bool = False,
        split: Mapping[str, int] | None = None,
        orthogonalize_dtype: str = "float32",
        kernels: Sequence[Any] | None = None,
        name: str = "muon",
        **kwargs: Any,
    ):
        super().__init__(learning_rate, momentum=momentum, nesterov=nesterov, name=name, **kwargs)
        check_choice("norm", norm, get_args(Norm))
        check_choice("scale", scale, get_args(Scale))
        check_choice("other", other, get_args(Other))
        for argument, value in (("weight_decay", self.weight_decay), ("scale", None if scale == "spectral" else scale)):
            if norm == "keep" and value is not None:
                raise ValueError(
                    f"Argument `{argument}` must be left out with norm='keep', which would undo it. Received: "
                    f"{argument}={value!r}. Use norm='free'."
                )
        if other == "adamw" and not momentum:
            raise ValueError("Argument `momentum` must be positive with other='adamw'. Received: momentum=0.")
        if other_weight_decay and other == "momentum":
            raise ValueError(
                f"Argument `other_weight_decay` requires other='adamw'. Received: other_weight_decay="
                f"{other_weight_decay}. Use `weight_decay`, which applies to all variables."
            )
        if neuron_beta is not None and not 0 <= neuron_beta < 1:
            raise ValueError(f"Argument `neuron_beta` must be None or in [0, 1). Received: neuron_beta={neuron_beta}")
        self.norm: Norm = norm
        self.scale: Scale = scale
        self.iterations_of_orthogonalization = int(iterations)
        self.other: Other = other
        self.other_rate, self.other_weight_decay = float(other_rate), float(other_weight_decay)
        # Attributes that `keras.optimizers.Adam.update_step` reads, with `_momentums` and `_velocities`.
        self.beta_1, self.beta_2 = map(float, betas)
        self.epsilon, self.amsgrad = 1e-7, False
        self.neuron_beta = neuron_beta
        self.exclude = tuple(entry if isinstance(entry, str) else entry.path for entry in exclude)
        self.per_head = bool(per_head)
        self.split = {name: positive_integer(f"split[{name!r}]", parts) for name, parts in (split or {}).items()}
        self.orthogonalize_dtype = orthogonalize_dtype
        self._kernels: dict[int, KernelMatrices] = {}
        # Paths of the variables and their matrices, if they follow from the layers of a model.
        self._table = [(path, matrices and KernelMatrices.from_config(matrices)) for path, matrices in kernels or ()]

    def build(self, variables: Any) -> None:
        if self.built:
            return
        kernels = self._find_kernels(variables)
        if zeros := self._filter_zeros(variable for variable, _ in kernels):
            raise ValueError(
                f"Muon with norm='keep' keeps the norm of every kernel. {zeros[0].path!r} is zero and would never "
                f"learn. Initialize it otherwise, such as with HeNormal, or use ScaledResidualConv2D(branch_gain=0)"
                f" or norm='free'."
            )
        super().build(variables)
        self._kernels = {self._get_variable_index(variable): matrices for variable, matrices in kernels}
        if self.neuron_beta is not None:
            self._neuron_squares: list[Any] = [None] * len(variables)
            for index, matrices in self._kernels.items():
                shape, name = (matrices.size[0], 1, matrices.size[2]), f"neuron_squares_{index}"
                self._neuron_squares[index] = self.add_variable(shape, dtype=variables[index].dtype, name=name)
        if self.other == "adamw":
            self._momentums = self.momentums
            self._velocities = [
                None if index in self._kernels else self.add_variable_from_reference(variable, "velocity")
                for index, variable in enumerate(variables)
            ]

    def build_for(self, model: keras.Model, variables: Sequence[keras.Variable] | None = None) -> Self:
        """Build the optimizer with the layers of a model, and return it.

        Args:
            model: A built model.
            variables: Trainable variables of the model that the optimizer updates. If None, all of them.
        """
        if not self.built:
            variables = model.trainable_variables if variables is None else variables
            matrices = {id(variable): view for variable, view in self._find_kernels(variables, model)}
            self._table = [(variable.path, matrices.get(id(variable))) for variable in variables]
            self.build(variables)
        return self

    def describe(self, model: keras.Model) -> str:
        """Return a table of a model's trainable variables and the matrices as which Muon uses them.

        Args:
            model: A built model.
        """
        matrices = {id(variable): view.size for variable, view in self._find_kernels(model.trainable_variables, model)}
        lines = []
        for variable in model.trainable_variables:
            count, rows, columns = matrices.get(id(variable), (0, 0, 0))
            use = f"{rows} x {columns}" if count == 1 else f"{count} of {rows} x {columns}" if count else self.other
            lines.append((variable.path, " x ".join(map(str, variable.shape)) or "scalar", use))
        return tabulate(("variable", "shape", "use"), lines)

    def select_kernels(self, model: keras.Model) -> list[keras.Variable]:
        """Return the trainable variables of a built model that are orthogonalized."""
        return [variable for variable, _ in self._find_kernels(model.trainable_variables, model)]

    def kernels_of_zeros(self, model: keras.Model) -> list[keras.Variable]:
        """Return the kernels of a model that would stay zero: those whose values are all zero, with `norm="keep"`."""
        return self._filter_zeros(self.select_kernels(model))

    def _filter_zeros(self, kernels: Iterable[keras.Variable]) -> list[keras.Variable]:
        return [kernel for kernel in kernels if self.norm == "keep" and not np.any(value_outside_functions(kernel))]

    def _find_kernels(
        self, variables: Sequence[keras.Variable], model: keras.Model | None = None
    ) -> list[tuple[keras.Variable, KernelMatrices]]:
        """Return the variables that are orthogonalized and their matrices."""
        if model is None and [variable.path for variable in variables] == [path for path, _ in self._table]:
            pairs = zip(variables, self._table, strict=True)
            return [(variable, matrices) for variable, (_, matrices) in pairs if matrices is not None]
        excluded = {id(variable) for name in self.exclude for variable in _find_named("exclude", name, variables)}
        if model is None:
            found, last = find_kernels_by_path(variables, self.per_head, excluded)
        else:
            found, last = find_kernels_by_layer(model, self.per_head)
        kernels = [v for v in variables if id(v) in found and id(v) not in excluded | last]
        for name, parts in self.split.items():
            for variable in _find_named("split", name, kernels):
                try:
                    found[id(variable)] = found[id(variable)].divide(parts)
                except ValueError as error:
                    raise ValueError(f"Argument `split`: {variable.path!r} has {error}.") from None
        return [(variable, found[id(variable)]) for variable in kernels]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        self.update_steps([gradient], [variable], learning_rate)

    def update_steps(self, gradients: Sequence[Any], variables: Sequence[Any], learning_rate: Any) -> None:
        """Update all variables. Kernels with matrices of equal shape are orthogonalized in one batched product.

        Args:
            gradients: One tensor for each variable.
            variables: Variables that the optimizer was built for.
            learning_rate: A scalar.
        """
        groups: dict[tuple[Any, ...], list[tuple[Any, Any, KernelMatrices, Any]]] = {}
        for gradient, variable in zip(gradients, variables, strict=True):
            own_rate = self._rate(variable, learning_rate)
            matrices = self._kernels.get(self._get_variable_index(variable))
            if matrices is not None:
                step = matrices.split(self.advance_velocity(gradient, variable))
                groups.setdefault((*matrices.size[1:], variable.dtype), []).append((step, variable, matrices, own_rate))
                continue
            rate: Any = ops.multiply(ops.cast(own_rate, variable.dtype), self.other_rate)
            if self.other == "momentum":
                super().update_step(gradient, variable, rate)
                continue
            if self.other_weight_decay and super()._use_weight_decay(variable):
                # As in Keras, of the learning rate itself, which subclasses may scale for a variable.
                decay: Any = ops.cast(self.learning_rate, variable.dtype)
                self.assign_sub(variable, variable * self.other_weight_decay * (decay * self.other_rate))
            adam: Any = keras.optimizers.Adam
            adam.update_step(self, gradient, variable, rate)
        for members in groups.values():
            steps = ops.concatenate([step for step, *_ in members])
            directions = orthogonalize(steps, self.iterations_of_orthogonalization, self.orthogonalize_dtype)
            start = 0
            for _, variable, matrices, own_rate in members:
                stop = start + matrices.size[0]
                self._move(variable, directions[start:stop], matrices, own_rate)
                start = stop

    def _rate(self, variable: Any, learning_rate: Any) -> Any:
        """Return the learning rate of a variable, which subclasses may scale."""
        return learning_rate

    def _backend_update_step(self, grads: Any, trainable_variables: Any, learning_rate: Any) -> None:
        # With several replicas Keras reduces the gradients and updates one variable at a time, each in its own context.
        if replicas(self) > 1:
            super()._backend_update_step(grads, trainable_variables, learning_rate)
        else:
            self.update_steps(grads, trainable_variables, learning_rate)

    def _use_weight_decay(self, variable: Any) -> bool:
        # With AdamW, other variables have a weight decay of their own, which `update_steps` applies.
        is_decayed = self.other == "momentum" or self._get_variable_index(variable) in self._kernels
        return is_decayed and super()._use_weight_decay(variable)

    def _move(self, variable: Any, direction: Any, matrices: KernelMatrices, learning_rate: Any) -> None:
        _, rows, columns = matrices.size
        rate: Any = ops.cast(learning_rate, variable.dtype)
        direction = ops.cast(direction, variable.dtype)
        if self.neuron_beta is not None:
            direction = self._normalize_neurons(variable, direction)
        step: Any = direction * rate
        if self.norm == "free":
            scale = 0.2 * math.sqrt(max(rows, columns)) if self.scale == "rms" else math.sqrt(columns / rows)
            self.assign_sub(variable, matrices.join(scale * step, variable.shape))
            return
        # The value, also where Keras passes the variable itself.
        kernel: Any = matrices.split(ops.convert_to_tensor(variable))
        norm = _norm(kernel)
        moved = kernel - (norm / math.sqrt(min(rows, columns))) * step
        moved = moved * (norm / ops.maximum(_norm(moved), 1e-30))
        self.assign(variable, matrices.join(moved, variable.shape))

    def _normalize_neurons(self, variable: Any, direction: Any) -> Any:
        """Return orthogonalized matrices with columns of about equal norm, (n, rows, columns), by Li et al. (2025)."""
        squares: Any = self._neuron_squares[self._get_variable_index(variable)]
        mean: Any = ops.mean(ops.square(direction), axis=-2, keepdims=True)
        beta: Any = self.neuron_beta
        new: Any = beta * ops.cast(squares, direction.dtype) + (1 - beta) * mean
        self.assign(squares, new)
        direction = direction / (new**0.5 + 1e-8)
        return direction * (math.sqrt(min(direction.shape[1:])) / (_norm(direction) + 1e-30))

    def get_config(self) -> dict[str, Any]:
        config = {
            "norm": self.norm,
            "scale": self.scale,
            "iterations": self.iterations_of_orthogonalization,
            "other": self.other,
            "other_rate": self.other_rate,
            "other_weight_decay": self.other_weight_decay,
            "betas": (self.beta_1, self.beta_2),
            "neuron_beta": self.neuron_beta,
            "exclude": self.exclude,
            "per_head": self.per_head,
            "split": dict(self.split),
            "orthogonalize_dtype": self.orthogonalize_dtype,
        }
        if self._table:
            config["kernels"] = [[path, matrices and matrices.get_config()] for path, matrices in self._table]
        return {**super().get_config(), **config}


def _find_named(argument: str, name: str, variables: Sequence[keras.Variable]) -> list[keras.Variable]:
    """Return the variables with a name in their path."""
    named = [variable for variable in variables if f"/{name}/" in f"/{variable.path}/"]
    if not named:
        kind = "kernels" if argument == "split" else "trainable variables"
        example = f", such as {variables[0].path!r}" if variables else ""
        raise ValueError(
            f"Argument `{argument}` must name layers with {kind}. Received: {name!r}, which is in none of the paths"
            f"{example}."
        )
    return named


def _norm(matrices: Any) -> Any:
    """Return the Frobenius norms of a batch of matrices, (n, rows, columns) -> (n, 1, 1)."""
    # A single matrix is summed as a whole, which gives the same bits as the norm of the kernel.
    axes = None if matrices.shape[0] == 1 else (-2, -1)
    return ops.reshape(ops.sqrt(ops.sum(ops.square(matrices), axis=axes)), (-1, 1, 1))
