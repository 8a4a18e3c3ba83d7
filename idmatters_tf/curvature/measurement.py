"""What is measured of a Hessian while a model trains, and how it is shown in TensorBoard."""

import dataclasses
import io

import numpy as np
import tensorflow as tf

from idmatters_tf.curvature.estimators import trace
from idmatters_tf.curvature.spectrum import SpectralDensity, spectral_density, top_eigenpairs


@dataclasses.dataclass(frozen=True)
class Measurement:
    """The curvature at one moment.

    Attributes:
        loss: on the data.
        gradient_norm: of that loss.
        largest, smallest: eigenvalues at the two ends, (k,) each, the outermost first.
        trace, trace_error: Hutch++'s estimate and its standard error.
        index, index_error: the fraction of eigenvalues below -1 % of the largest in size, by Lanczos quadrature, and
            its standard error; see `SpectralDensity.index`.
        density: `SpectralDensity`.
    """

    loss: float
    gradient_norm: float
    largest: np.ndarray
    smallest: np.ndarray
    trace: float
    trace_error: float
    index: float
    index_error: float
    density: SpectralDensity

    def scalars(self):
        """The numbers by name, eigenvalues numbered from 1."""
        numbers = {"loss": self.loss, "gradient_norm": self.gradient_norm}
        for end in ("largest", "smallest"):
            values = getattr(self, end)
            numbers |= {f"{end}_eigenvalue_{place}": float(value) for place, value in enumerate(values, 1)}
        names = ("trace", "trace_error", "index", "index_error")
        return numbers | {name: getattr(self, name) for name in names}


def measure(operator, eigenvalues=1, probes=4, steps=40, products=30, tolerance=1e-3, seed=0):
    """Eigenvalues at both ends, trace, index, density, gradient norm and loss.

    Args:
        operator: a `HessianOperator`, or a relative.
        eigenvalues: how many at each end.
        probes, steps: of `spectral_density`, probes * steps products.
        products: of `trace`.
        tolerance: relative accuracy of the eigenvalues.
        seed: of the random vectors.

    Returns:
        `Measurement`.
    """
    eigenvalues = min(eigenvalues, operator.shape[0] // 2) or 1
    both = operator.shape[0] > 1
    ends = top_eigenpairs(operator, eigenvalues, "both" if both else "largest", tolerance, seed=seed).values
    density = spectral_density(operator, probes, steps, seed=seed)
    index, index_error = density.index()
    value, error = trace(operator, products, seed=seed)
    return Measurement(
        loss=operator.loss(),
        gradient_norm=float(np.linalg.norm(operator.gradient())),
        largest=ends[-eigenvalues:][::-1],
        smallest=ends[:eigenvalues],
        trace=value,
        trace_error=error,
        index=float(index),
        index_error=float(index_error),
        density=density,
    )


def draw_density(density, title=""):
    """A image of a density on a logarithmic scale, with the error band of two standard errors.

    Returns:
        uint8, (rows, columns, 4).
    """
    import matplotlib.image
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # No pyplot: whoever calls this in a notebook keeps the backend chosen there.
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    floor = density.density.max() * 1e-7
    axes.semilogy(density.grid, np.maximum(density.density, floor), color="tab:blue")
    if np.isfinite(density.standard_error).all():
        low, high = (density.density + sign * 2 * density.standard_error for sign in (-1, 1))
        axes.fill_between(density.grid, np.maximum(low, floor), np.maximum(high, floor), alpha=0.3)
    axes.axvline(0, color="grey", linewidth=0.8)
    axes.set_ylim(bottom=floor)
    axes.set_xlabel("eigenvalue")
    axes.set_ylabel("density")
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=80)
    buffer.seek(0)
    return (matplotlib.image.imread(buffer) * 255).round().astype(np.uint8)


def write_summary(writer, step, measurement, prefix="curvature"):
    """Writes the numbers as scalars and the density as an image.

    Args:
        writer: of `tf.summary`.
        step: of training.
        measurement: a `Measurement`.
        prefix: of the tags.
    """
    with writer.as_default(step=step):
        for name, value in measurement.scalars().items():
            tf.summary.scalar(f"{prefix}/{name}", value)
        image = draw_density(measurement.density, f"step {step}, loss {measurement.loss:.4g}")
        tf.summary.image(f"{prefix}/density", image[None])
    writer.flush()
