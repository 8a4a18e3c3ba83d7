"""Optimizers with a factor on the gradient and on the step of each variable, for branches scaled with depth."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import keras
from keras import ops

from idmatters_tf._keras_internals import dense_gradient, inner_optimizer, optimized_variables, variable_index
from idmatters_tf._keras_types import Config, Regularizer, Tensor
from idmatters_tf._presentation.results import Result, tabulate
from idmatters_tf.optimizers import Momentum, Muon
from idmatters_tf.optimizers.building import new_optimizer
from idmatters_tf.optimizers.kernels import are_equal_paths

Use = Literal["last", "inner", "other"]


class ScaledWeight(NamedTuple):
    """A variable of a model whose branches are scaled.

    Attributes:
        path: path of the variable.
        use: "last" for the last weights of a branch, "inner" for its other weights, "other" outside of the branches.
        block: name of the block; empty outside of the blocks.
    """

    path: str
    use: Use
    block: str


class Factors(NamedTuple):
    """Factors of a variable.

    Attributes:
        gradient: factor on the gradient, before clipping.
        counted: factor on the gradient after clipping.
        penalty: multiple of the variable that is then added to the gradient.
        step: factor on the learning rate, except that of weight decay.
    """

    gradient: float = 1.0
    counted: float = 1.0
    penalty: float = 0.0
    step: float = 1.0


@dataclasses.dataclass(frozen=True, repr=False)
class DepthScaling(Result):
    """Scale of the residual branches of a model, in `optimizer.depth_scaling`. `table()` lists its weights.

    Attributes:
        base: number of residual sums for which the learning rate was chosen.
        sums: number of residual sums of the model.
        alpha: exponent of the scale.
        weights: all weights of the model that can be trained, in its order, also frozen ones.
        variables: variables of these weights; empty after loading.
    """

    base: int
    sums: int
    alpha: float
    weights: tuple[ScaledWeight, ...]
    variables: tuple[keras.Variable, ...] = dataclasses.field(default=(), compare=False)

    @property
    def scale(self) -> float:
        """Factor a = (base / sums)^alpha on the initial values of the last weights."""
        return (self.base / self.sums) ** self.alpha

    def factors(
        self, weight: ScaledWeight, regularizer: Regularizer = None, keeps_norm: bool = False, counts_all: bool = False
    ) -> Factors:
        """Return the factors of a variable.

        Args:
            weight: one of `weights`.
            regularizer: L2 penalty on the variable; None without one.
            keeps_norm: True if the size of a step is a fraction of the norm of the variable.
            counts_all: True if the gradients are clipped by their global norm.
        """
        if weight.use == "other":
            return Factors()
        scale, ratio = self.scale, self.base / self.sums
        counted = ratio**-0.5 if counts_all else 1.0
        penalty = 2 * regularizer.l2 * (1 / scale - 1) if regularizer else 0.0
        if weight.use == "last":
            step = ratio ** (1 - self.alpha) if keeps_norm else ratio
            return Factors(1 / counted, counted, penalty, step)
        return Factors(1 / scale / counted, counted, -penalty, ratio ** (1 - self.alpha))

    def table(self) -> str:
        """Return a table of the weights of the blocks and their factors.

        With an optimizer that keeps norms, the step of a last kernel has the factor of the inner weights.
        """
        lines = []
        for weight in self.weights:
            if weight.use != "other":
                factors = self.factors(weight)
                start = self.scale if weight.use == "last" else 1.0
                lines.append((weight.block, weight.path, weight.use, start, factors.gradient, factors.step))
        return tabulate(("block", "weights", "use", "initial values", "gradient", "step"), lines)

    def match(self, variables: Iterable[keras.Variable]) -> list[ScaledWeight]:
        """Return the weights that belong to variables.

        Those of a loaded model are matched by their paths and their order, without frozen ones. Its paths may lack the
        name of the model.

        Raises:
            ValueError: for variables of another model, and for equal paths of which some are frozen.
        """
        known = {id(variable): weight for variable, weight in zip(self.variables, self.weights, strict=False)}
        variables = list(variables)
        if all(id(variable) in known for variable in variables):
            return [known[id(variable)] for variable in variables]
        first = _match_in_order(self.weights, variables)
        last = _match_in_order(self.weights[::-1], variables[::-1])[::-1]
        if [weight.use for weight in first] != [weight.use for weight in last]:
            raise ValueError(
                "The optimizer of `scale_depth` cannot tell the weights of this model apart: some have equal paths, "
                "and one is frozen. Give their layers different names, or load the model with compile=False."
            )
        return first

    def get_config(self) -> dict[str, object]:
        """Return the scale as plain data."""
        # Under the key "name", because default names are numbered over all models of a process.
        weights = [{"name": path, "use": {"name": block, "kind": use}} for path, use, block in self.weights]
        return {"base": self.base, "sums": self.sums, "alpha": self.alpha, "weights": weights}

    @classmethod
    def from_config(cls, config: Config) -> "DepthScaling":
        """Return a scale from the result of `get_config`."""
        weights = [ScaledWeight(w["name"], w["use"]["kind"], w["use"]["name"]) for w in config["weights"]]
        return cls(config["base"], config["sums"], config["alpha"], tuple(weights))


class DepthScaled(keras.optimizers.Optimizer):
    """Part of an optimizer that multiplies gradients and steps by the factors of `DepthScaling`.

    Args:
        depth_scaling: a `DepthScaling` or its configuration; None for no factors.
    """

    def __init__(self, *args: Any, depth_scaling: DepthScaling | Config | None = None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if isinstance(depth_scaling, Mapping):
            depth_scaling = DepthScaling.from_config(depth_scaling)
        self.depth_scaling = depth_scaling
        self._factors_by_index: tuple[Factors, ...] | None = None

    def build(self, variables: Sequence[keras.Variable]) -> None:
        super().build(variables)
        if self.depth_scaling is not None:
            variables, counts_all = optimized_variables(self), bool(self.global_clipnorm)
            weights = self.depth_scaling.match(variables)
            self._factors_by_index = tuple(
                self.depth_scaling.factors(weights[index], variable.regularizer, self._keeps_norm(index), counts_all)
                for index, variable in enumerate(variables)
            )

    def _keeps_norm(self, index: int) -> bool:
        return False

    def _factors(self, variable: keras.Variable) -> Factors:
        factors = self._factors_by_index
        return Factors() if factors is None else factors[variable_index(self, variable)]

    def apply(self, grads: Sequence[Tensor], trainable_variables: Sequence[keras.Variable] | None = None) -> None:
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
            if not self.built:
                self.build(trainable_variables)
        variables = trainable_variables or optimized_variables(self)
        scaled = [
            _scale(gradient, self._factors(variable).gradient)
            for gradient, variable in zip(grads, variables, strict=True)
        ]
        super().apply(scaled, trainable_variables)

    def _finish_gradient(self, gradient: Tensor, variable: keras.Variable) -> Tensor:
        """Return a gradient after clipping and the sum over replicas, with the share of the penalty."""
        factors = self._factors(variable)
        gradient = _times(gradient, factors.counted)
        if factors.penalty:
            value: Tensor = ops.cast(ops.convert_to_tensor(variable), gradient.dtype)
            gradient = gradient + factors.penalty * value
        return gradient

    def update_step(self, gradient: Tensor, variable: keras.Variable, learning_rate: Tensor) -> None:
        rate = _times(learning_rate, self._factors(variable).step)
        super().update_step(self._finish_gradient(gradient, variable), variable, rate)

    def get_config(self) -> dict[str, object]:
        config = super().get_config()
        return config if self.depth_scaling is None else {**config, "depth_scaling": self.depth_scaling.get_config()}


class DepthScaledKernels(DepthScaled, Muon):
    """Muon with the factors of `DepthScaling`."""

    def _keeps_norm(self, index: int) -> bool:
        return self.norm == "keep" and index in self._kernels


def _match_in_order(weights: Sequence[ScaledWeight], variables: Iterable[keras.Variable]) -> list[ScaledWeight]:
    """Return the first weights with the paths of variables, both in one order."""
    found: list[ScaledWeight] = []
    left = iter(weights)
    for variable in variables:
        weight = next((weight for weight in left if are_equal_paths(weight.path, variable.path)), None)
        if weight is None:
            raise ValueError(
                f"The optimizer is that of `scale_depth` for a model without {variable.path!r}, or with another order "
                f"of its variables. Compile this model with another optimizer."
            )
        found.append(weight)
    return found


def _scale(gradient: Tensor | None, factor: float) -> Tensor | None:
    return gradient if gradient is None or factor == 1 else dense_gradient(gradient) * factor


def _times(value: Tensor, factor: float) -> Tensor:
    return value if factor == 1 else ops.multiply(value, factor)


def _define(
    parent: type[keras.optimizers.Optimizer], base: type[keras.optimizers.Optimizer], name: str
) -> type[keras.optimizers.Optimizer]:
    text = f"`{base.__name__}` with the factors of `DepthScaling`, made by `scale_depth`."
    new = type(name, (parent,) if issubclass(parent, base) else (parent, base), {"__doc__": text})
    registered: Any = keras.saving.register_keras_serializable(package="idmatters_tf")(new)
    return registered


_KERAS = ("SGD", "Adam", "AdamW", "Nadam", "Adamax", "Adagrad", "RMSprop", "Lion")

# Optimizers whose steps depend on the gradients alone and are proportional to the learning rate, or to it and the norm
# of a kernel.
SCALED: dict[type[keras.optimizers.Optimizer], type[keras.optimizers.Optimizer]] = {
    **{(base := getattr(keras.optimizers, name)): _define(DepthScaled, base, f"DepthScaled{name}") for name in _KERAS},
    keras.optimizers.Muon: _define(DepthScaled, keras.optimizers.Muon, "DepthScaledKerasMuon"),
    Momentum: _define(DepthScaled, Momentum, "DepthScaledMomentum"),
    Muon: _define(DepthScaledKernels, Muon, "DepthScaledMuon"),
}


def make_scaled(
    optimizer: keras.optimizers.Optimizer, model: keras.Model, scaling: DepthScaling | None
) -> keras.optimizers.Optimizer:
    """Return an optimizer of a model with the same settings and the factors of a scale.

    Raises:
        ValueError: for an optimizer that is not among `SCALED`.
    """
    inner = inner_optimizer(optimizer)
    if type(inner) not in SCALED:
        names = ", ".join(f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in SCALED)
        raise ValueError(
            f"Argument `optimizer` must be one of {names}, whose steps do not depend on the weights or keep norms. "
            f"Received: {type(inner).__name__}."
        )
    same = {id(variable): variable for variable in model.variables}
    return new_optimizer(
        optimizer, model, same, lambda old, config: SCALED[type(old)].from_config(config | {"depth_scaling": scaling})
    )
