"""Coupling between layers: Frobenius norms of the Hessian's blocks between all pairs of layers.

Li et al. derive the block structure of the Hessian of n-shortcut networks at zero. The functions here measure it for
any network at any point.
"""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idmatters_tf._arguments import positive_integer
from idmatters_tf._progress import Progress
from idmatters_tf.curvature._rendering import new_figure, render
from idmatters_tf.curvature.operators import CurvatureOperator


@dataclasses.dataclass(frozen=True)
class Coupling:
    """Norms of the blocks of a matrix.

    Attributes:
        layers: names of the layers, in the order of the variables.
        norms: ||H_ij||_F, (layers, layers), symmetric.
        off_diagonal_share: fraction of ||H||_F^2 in blocks between different layers.
    """

    layers: tuple[str, ...]
    norms: NDArray[np.float64]

    @property
    def off_diagonal_share(self) -> float:
        squares = self.norms**2
        total = float(squares.sum())
        return 1 - float(np.trace(squares)) / total if total else 0.0


def layer_coupling(operator: CurvatureOperator, probes: int = 8, seed: int = 0, progress: bool = False) -> Coupling:
    """Estimate the Frobenius norms of the blocks of an operator between layers from products.

    For random signs z that are zero outside layer j, E ||(H z)_i||^2 = ||H_ij||_F^2. For a layer with at most `probes`
    parameters, unit vectors are used and its norms are exact. Each block is estimated from both sides.

    Args:
        operator: `HessianOperator` or `GaussNewtonOperator`.
        probes: number of probes per layer. The relative error of a norm is at most about 1 / sqrt(2 probes).
        seed: seed of the random signs.
        progress: True shows a progress bar on standard error.
    """
    positive_integer("probes", probes)
    layers = operator.layers
    rng = np.random.default_rng(seed)
    squares = np.zeros((len(layers), len(layers)))
    with Progress(len(layers), "coupling", progress, unit="layers") as bar:
        for column, place in enumerate(layers.values()):
            size = place.stop - place.start
            exact = size <= probes
            inside = np.eye(size) if exact else rng.integers(0, 2, (size, probes)) * 2.0 - 1
            vectors = np.zeros((operator.shape[0], inside.shape[1]), operator.dtype)
            vectors[place] = inside
            products = np.asarray(operator @ vectors, np.float64)
            for row, other in enumerate(layers.values()):
                total = float(np.sum(products[other] ** 2))
                squares[row, column] = total if exact else total / probes
            bar.advance()
    return Coupling(tuple(layers), np.sqrt((squares + squares.T) / 2))


def draw_coupling(coupling: Coupling, title: str = "") -> NDArray[np.uint8]:
    """Draw the table of norms on a logarithmic scale.

    The scale starts at the smallest norm, but not below a millionth of the largest.

    Returns:
        RGBA image of uint8, (rows, columns, 4).
    """
    from matplotlib.colors import LogNorm

    figure, axes = new_figure(6.4, 5.2, 100)
    largest = float(coupling.norms.max()) or 1.0
    smallest = min(max(float(coupling.norms.min()), 1e-6 * largest), 0.1 * largest)
    shown: Any = axes.imshow(np.maximum(coupling.norms, smallest), norm=LogNorm(smallest, largest), cmap="viridis")
    figure.colorbar(shown, ax=axes, label="Frobenius norm of the block")
    count = len(coupling.layers)
    if count <= 30:
        axes.set_xticks(range(count), coupling.layers, rotation=90, fontsize=6)
        axes.set_yticks(range(count), coupling.layers, fontsize=6)
    axes.set_title(f"{title}\n{100 * coupling.off_diagonal_share:.0f} % between layers".strip(), fontsize=9)
    return render(figure)
