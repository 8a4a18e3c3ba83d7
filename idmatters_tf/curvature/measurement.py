"""Measurements of a Hessian during training, as numbers and as a figure."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from idmatters_tf._presentation.results import Drawing, Figure, Result
from idmatters_tf.curvature.operators import CurvatureOperator
from idmatters_tf.spectra import SpectralDensity, spectral_density, top_eigenpairs, trace

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, repr=False)
class Measurement(Result, Drawing):
    """Curvature at one point of training. `plot(path)` draws the density.

    Attributes:
        loss: loss on the data.
        gradient_norm: norm of the gradient of that loss.
        largest, smallest: eigenvalues at the two ends, (k,) each, the outermost first.
        alignment: fraction of the gradient's squared norm along each eigenvector of `largest`, (k,).
        threshold: largest eigenvalue at which the optimizer is stable, see
            `idmatters_tf.curvature.stability_threshold`; None if it is unknown.
        trace, trace_error: estimate by Hutch++ and its standard error.
        index, index_error: fraction of eigenvalues below -1 % of the largest in magnitude, by Lanczos quadrature, and
            its standard error; see `SpectralDensity.index`.
        density: `SpectralDensity`.
        converged: True if all eigenvalues reached the tolerance. The number in `scalars` is 0 or 1.
    """

    loss: float
    gradient_norm: float
    largest: Floats
    smallest: Floats
    alignment: Floats
    threshold: float | None
    trace: float
    trace_error: float
    index: float
    index_error: float
    density: SpectralDensity
    converged: bool = False

    def scalars(self) -> dict[str, float]:
        """Return the numbers by name, with eigenvalues numbered from 1."""
        numbers = {"loss": self.loss, "gradient_norm": self.gradient_norm}
        for end in ("largest", "smallest"):
            values = getattr(self, end)
            numbers |= {f"{end}_eigenvalue_{number}": float(value) for number, value in enumerate(values, 1)}
        numbers |= {f"gradient_alignment_{number}": float(share) for number, share in enumerate(self.alignment, 1)}
        if self.threshold is not None:
            numbers["stability_threshold"] = self.threshold
            numbers["sharpness_over_threshold"] = float(self.largest[0]) / self.threshold
        names = ("trace", "trace_error", "index", "index_error", "converged")
        return numbers | {name: float(getattr(self, name)) for name in names}

    def draw(self, figure: Figure) -> None:
        """Draw the density, with the loss in the title."""
        self.density.draw(figure)
        figure.suptitle(f"loss {self.loss:.4g}", fontsize=10)


def measure(
    operator: CurvatureOperator,
    eigenvalues: int = 1,
    probes: int = 4,
    steps: int = 40,
    products: int = 30,
    tolerance: float = 1e-3,
    seed: int = 0,
    threshold: float | None = None,
) -> Measurement:
    """Measure eigenvalues at both ends, alignment, trace, index, density, gradient norm and loss.

    If loss, gradient or matrix are not finite, all other numbers are NaN.

    Args:
        operator: `HessianOperator` or `GaussNewtonOperator`.
        eigenvalues: number of eigenvalues at each end.
        probes: probes of `spectral_density`, which takes probes * steps products.
        steps: Lanczos steps of `spectral_density`.
        products: number of products of `trace`.
        tolerance: tolerance of the eigenvalues, see `top_eigenpairs`.
        seed: seed of the random vectors.
        threshold: stability threshold of the optimizer, stored in the result.
    """
    count = min(eigenvalues, operator.shape[0] // 2) or 1
    both = operator.shape[0] > 1
    loss = operator.loss()
    gradient = operator.gradient().astype(np.float64)
    norm = float(np.linalg.norm(gradient))
    if not np.isfinite([loss, norm, *(operator @ np.ones(operator.shape[0]))]).all():
        return _not_finite(loss, norm, count, threshold)
    ends = top_eigenpairs(operator, count, "both" if both else "largest", tolerance, seed=seed)
    density = spectral_density(operator, probes, steps, seed=seed)
    index = density.index()
    total = trace(operator, products, seed=seed)
    along = ends.vectors[:, :count].astype(np.float64).T @ gradient
    return Measurement(
        loss=loss,
        gradient_norm=norm,
        largest=ends.values[:count],
        smallest=ends.values[::-1][:count],
        alignment=(along / norm) ** 2 if norm else np.zeros(count),
        threshold=threshold,
        trace=total.value,
        trace_error=total.standard_error,
        index=index.value,
        index_error=index.standard_error,
        density=density,
        converged=bool(ends.converged.all()),
    )


def _not_finite(loss: float, norm: float, count: int, threshold: float | None) -> Measurement:
    """Return the measurement of a model whose curvature is not finite."""
    unknown = np.full(count, np.nan)
    one = np.full((1, 1), np.nan)
    density = SpectralDensity(one[0], one[0], one[0], np.nan, one, one)
    numbers = dict.fromkeys(("trace", "trace_error", "index", "index_error"), np.nan)
    return Measurement(loss, norm, unknown, unknown, unknown, threshold, density=density, **numbers)
