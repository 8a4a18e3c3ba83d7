"""Muon: momentum whose steps on kernels are orthogonalized matrices.

References:
    - Jordan et al., *Muon: An optimizer for hidden layers in neural networks* (2024): the method.
    - Jordan, the airbench94_muon recipe (2024): kernels of constant norm.
    - Bernstein, *Deriving Muon* (2025), after Bernstein & Newhouse, *Old optimizer, new norm* (arXiv 2409.20325): the
      scale of free steps.
    - Liu et al., *Muon is scalable for LLM training* (arXiv 2502.16982): the scale "rms", weight decay, AdamW for the
      other variables.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, Self, Unpack, get_args

import keras
import numpy as np
from keras import ops

from idmatters_tf._arguments import check_choice, positive_integer
from idmatters_tf._keras_internals import value_outside_functions, variable_index
from idmatters_tf._keras_types import Config, OptimizerOptions, Tensor
from idmatters_tf._presentation.results import tabulate
from idmatters_tf.optimizers.kernels import (
    KernelMatrices,
    Rule,
    are_equal_paths,
    find_matrices,
    layer_matrices,
    rank_matrices,
)
from idmatters_tf.optimizers.momentum import LearningRate, Momentum
from idmatters_tf.optimizers.orthogonalization import orthogonalize

Norm = Literal["keep", "free"]
Scale = Literal["spectral", "rms"]
Other = Literal["momentum", "adamw"]
# Decay rates of AdamW's two moments.
BETAS = (0.9, 0.95)


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

    Weight decay is decoupled: `weight_decay=` subtracts `lr * weight_decay * W` first, as in all Keras optimizers.

    The rows and columns of a kernel follow from the kind of its layer: `layer_matrices` knows dense layers,
    `EinsumDense`, so also the projections of attention in Keras and KerasHub, ordinary, transposed and separable
    convolutions, and recurrent layers. A function of one's own in its place decides for others, such as banks of
    experts. `describe` lists the result. All other variables are updated by momentum or AdamW, with the learning rate
    multiplied by `other_rate`: biases, gains, embeddings, normalization, depthwise convolutions, LoRA's matrices,
    layers of other kinds, and the last layer.

    `build_for(model)` gives the optimizer the layers, which Keras does not pass to it. Without it, variables with two,
    four or more axes are kernels whose last axis is the outputs, also embeddings and transposed convolutions, except
    for the last of them. Three axes, as those of the projections of attention, are an error. A saved model keeps the
    matrices of `build_for`.

    Example:

    ```python
    # For a transformer, in place of keras.optimizers.AdamW(3e-4, weight_decay=0.1).
    settings = {"norm": "free", "scale": "rms", "iterations": 5, "other": "adamw", "other_rate": 1.0}
    optimizer = Muon(3e-4, 0.95, weight_decay=0.1, **settings)
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
        other: Update of the other variables, `"momentum"` or `"adamw"`, the step of `keras.optimizers.AdamW` with decay
            rates of 0.9 and 0.95.
        other_rate: Factor on the learning rate of the other variables. With `scale="rms"` and `other="adamw"`, 1.0
            gives all variables AdamW's rate.
        matrices: Function of (layer, variable) that returns the `KernelMatrices` of a trainable variable, or None for
            the other update. `build_for` calls it, not for the last layers. If None, `layer_matrices`. The
            configuration of a built optimizer has a table of all variables in its place.
        kwargs: See `keras.optimizers.SGD`. `weight_decay` applies to all variables, except for those of
            `exclude_from_weight_decay`.

    Raises:
        ValueError: For another `norm`, `scale` or `other`, for `weight_decay` or `scale="rms"` with `norm="keep"`, and
            for a momentum of 0 with AdamW; in `build` and `model.fit` for a kernel of zeros with `norm="keep"`, for
            `matrices` or a kernel of three axes without `build_for`, and for a model whose variables are not those of
            the table.
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
        matrices: Rule | Sequence[Config] | None = None,
        name: str = "muon",
        **kwargs: Unpack[OptimizerOptions],
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
        self.norm: Norm = norm
        self.scale: Scale = scale
        self.iterations_of_orthogonalization = positive_integer("iterations", iterations)
        self.other: Other = other
        self.other_rate = float(other_rate)
        # Of AdamW.
        self.epsilon = 1e-7
        self.matrices: Rule | None = matrices if callable(matrices) else None
        # Path and matrices of each variable.
        self._table: list[tuple[str, KernelMatrices | None]] = []
        if matrices is not None and not callable(matrices):
            self._table = [
                (row["name"], None if row["axes"] is None else KernelMatrices.from_config(row["axes"]))
                for row in matrices
            ]
        # Matrices by the index of the variable.
        self._kernels: dict[int, KernelMatrices] = {}
        self._squares: list[keras.Variable | None] = []

    def build(self, variables: Sequence[keras.Variable]) -> None:
        if self.built:
            return
        found = self._find(variables)
        kernels = [variable for variable, matrices in zip(variables, found, strict=True) if matrices is not None]
        if zeros := self._filter_zeros(kernels):
            raise ValueError(
                f"Muon with norm='keep' keeps the norm of every kernel. {zeros[0].path!r} is zero and would never "
                f"learn. Initialize it otherwise, such as with HeNormal, or use ScaledResidualConv2D(branch_gain=0)"
                f" or norm='free'."
            )
        super().build(variables)
        self._kernels = {index: matrices for index, matrices in enumerate(found) if matrices is not None}
        if self.other == "adamw":
            self._squares = [
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
            found = self._find_for(model, variables)
            self._table = [(variable.path, matrices) for variable, matrices in zip(variables, found, strict=True)]
            self.build(variables)
        return self

    def describe(self, model: keras.Model) -> str:
        """Return a table of a model's trainable variables and the matrices as which Muon uses them.

        Args:
            model: A built model.
        """
        variables = model.trainable_variables
        lines = []
        for variable, matrices in zip(variables, self._find_for(model, variables), strict=True):
            count, rows, columns = (0, 0, 0) if matrices is None else matrices.size
            use = f"{rows} x {columns}" if count == 1 else f"{count} of {rows} x {columns}" if count else self.other
            lines.append((variable.path, " x ".join(map(str, variable.shape)) or "scalar", use))
        return tabulate(("variable", "shape", "use"), lines)

    def kernels_of_zeros(self, model: keras.Model) -> list[keras.Variable]:
        """Return the kernels of a model that would stay zero: those whose values are all zero, with `norm="keep"`."""
        variables = model.trainable_variables
        found = zip(variables, self._find_for(model, variables), strict=True)
        return self._filter_zeros([variable for variable, matrices in found if matrices is not None])

    def _filter_zeros(self, kernels: Sequence[keras.Variable]) -> list[keras.Variable]:
        return [kernel for kernel in kernels if self.norm == "keep" and not np.any(value_outside_functions(kernel))]

    def _find_for(self, model: keras.Model, variables: Sequence[keras.Variable]) -> list[KernelMatrices | None]:
        """Return the matrices of each variable of a model, by its layers or, if it is in the table, by its path."""
        found = find_matrices(model, self.matrices or layer_matrices)
        known = [] if self.matrices else self._table

        def find(variable: keras.Variable) -> KernelMatrices | None:
            entries = (matrices for path, matrices in known if are_equal_paths(path, variable.path))
            return next(entries, found.get(id(variable)))

        return list(map(find, variables))

    def _find(self, variables: Sequence[keras.Variable]) -> list[KernelMatrices | None]:
        """Return the matrices of each variable, by the table or without layers."""
        if self._table:
            pairs = zip(variables, self._table, strict=False)
            if len(variables) == len(self._table) and all(are_equal_paths(v.path, path) for v, (path, _) in pairs):
                return [matrices for _, matrices in self._table]
            problem = "has the matrices of other variables"
        elif self.matrices is None:
            return rank_matrices(variables)
        else:
            problem = "needs the layers for `matrices`"
        raise ValueError(f"Muon {problem}. Pass the model before training: `optimizer.build_for(model)`.")

    def update_step(self, gradient: Tensor, variable: keras.Variable, learning_rate: Tensor) -> None:
        index = variable_index(self, variable)
        matrices = self._kernels.get(index)
        if matrices is not None:
            step = matrices.split(self.advance_velocity(gradient, variable))
            dtype = keras.backend.result_type(variable.dtype, "float32")
            direction = orthogonalize(step, self.iterations_of_orthogonalization, dtype)
            self._move(variable, direction, matrices, learning_rate)
            return
        rate: Tensor = ops.multiply(ops.cast(learning_rate, variable.dtype), self.other_rate)
        if self.other == "momentum":
            super().update_step(gradient, variable, rate)
        else:
            self._update_by_adam(gradient, variable, rate, self.momentums[index], self._squares[index])

    def _update_by_adam(
        self, gradient: Tensor, variable: keras.Variable, rate: Tensor, mean: Tensor, square: Tensor
    ) -> None:
        gradient = ops.cast(gradient, variable.dtype)
        steps: Tensor = self.iterations
        first, second = (self._bias_correction(beta, steps + 1, variable.dtype) for beta in BETAS)
        self.assign_add(mean, (gradient - mean) * (1 - BETAS[0]))
        self.assign_add(square, (ops.square(gradient) - square) * (1 - BETAS[1]))
        root: Tensor = ops.sqrt(square)
        self.assign_sub(variable, mean * (rate * ops.sqrt(second) / first) / (root + self.epsilon))

    @staticmethod
    def _bias_correction(beta: float, steps: Tensor, dtype: str) -> Tensor:
        power: Tensor = ops.power(ops.cast(beta, dtype), ops.cast(steps, dtype))
        return 1 - power

    def _move(
        self, variable: keras.Variable, direction: Tensor, matrices: KernelMatrices, learning_rate: Tensor
    ) -> None:
        _, rows, columns = matrices.size
        rate: Tensor = ops.cast(learning_rate, variable.dtype)
        direction = ops.cast(direction, variable.dtype)
        step: Tensor = direction * rate
        if self.norm == "free":
            scale = 0.2 * math.sqrt(max(rows, columns)) if self.scale == "rms" else math.sqrt(columns / rows)
            self.assign_sub(variable, matrices.join(scale * step, variable.shape))
            return
        # The value, also where Keras passes the variable itself.
        kernel: Tensor = matrices.split(ops.convert_to_tensor(variable))
        norm = _norm(kernel)
        moved = kernel - (norm / math.sqrt(min(rows, columns))) * step
        moved = moved * (norm / ops.maximum(_norm(moved), 1e-30))
        self.assign(variable, matrices.join(moved, variable.shape))

    def get_config(self) -> dict[str, object]:
        config: dict[str, object] = {
            "norm": self.norm,
            "scale": self.scale,
            "iterations": self.iterations_of_orthogonalization,
            "other": self.other,
            "other_rate": self.other_rate,
            "matrices": self.matrices,
        }
        if self._table:
            rows = ({"name": path, "axes": found and found.get_config()} for path, found in self._table)
            config["matrices"] = list(rows)
        return {**super().get_config(), **config}

    @classmethod
    def from_config(cls, config: Config, custom_objects: Mapping[str, object] | None = None) -> Self:
        if isinstance(config.get("matrices"), dict):
            # A registered function in a file.
            function = keras.saving.deserialize_keras_object(config["matrices"], custom_objects)
            config = {**config, "matrices": function}
        return super().from_config(config, custom_objects)


def _norm(matrices: Tensor) -> Tensor:
    """Return the Frobenius norms of a batch of matrices, (n, rows, columns) -> (n, 1, 1)."""
    # A single matrix is summed as a whole, which gives the same bits as the norm of the kernel.
    axes = None if matrices.shape[0] == 1 else (-2, -1)
    return ops.reshape(ops.sqrt(ops.sum(ops.square(matrices), axis=axes)), (-1, 1, 1))
