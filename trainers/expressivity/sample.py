"""Points and labels to memorize."""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idmatters_tf.data.images import ImageData
from idmatters_tf.expressivity._samples import distinct_rows
from trainers.expressivity.settings import DataSettings, Settings


@dataclasses.dataclass(frozen=True)
class Sample:
    """Rows and labels to memorize, and test images with true labels."""

    x: NDArray[Any]  # (n, d)
    labels: NDArray[np.integer]  # (n,)
    classes: int
    origin: str
    digest: str  # checksum of the data
    test_x: NDArray[Any] | None = None  # (tests, d); None for random points
    test_labels: NDArray[np.integer] | None = None  # (tests,)

    def distinct(self, rows: int) -> tuple[NDArray[Any], NDArray[np.integer]]:
        """Return the distinct ones of the first rows and their labels."""
        kept = distinct_rows(self.x[:rows], self.labels[:rows])
        return self.x[kept], self.labels[kept]


def sizes(sample: Sample) -> list[int]:
    """Return the numbers of rows for experiments, in ascending order, from 1/32 of the rows to all."""
    return sorted({max(2, len(sample.x) // fraction) for fraction in (32, 16, 8, 4, 2, 1)})


def load_sample(settings: Settings) -> Sample:
    """Load or draw a sample.

    Raises:
        idmatters_tf.data.images.DataError: the data set is missing.
        MemoryError: random points do not fit into memory.
    """
    data, rng = settings.data, np.random.default_rng(settings.network.seed)
    if data.dataset == "random":
        _check_memory(data)
        x = rng.standard_normal((data.rows, data.dim), np.float32)
        labels = rng.integers(0, data.classes, data.rows)
        unit = _normalize(x, settings.network.order)
        return Sample(unit, labels, data.classes, "standard normal", f"seed {settings.network.seed}")
    images = _load_images(data).first(data.train_images, None)
    labels = images.train_labels
    if data.labels == "random":
        labels = rng.integers(0, images.classes, len(labels))
    x, test_x = (
        _normalize(part.reshape(len(part), -1), settings.network.order)
        for part in (images.train_images, images.test_images)
    )
    return Sample(x, labels, images.classes, images.origin, images.digest(), test_x, images.test_labels)


def _check_memory(data: DataSettings) -> None:
    from idmatters_tf.curvature._memory import check_fits

    try:
        check_fits(data.rows, data.dim, np.float32, f"a sample of {data.rows:,} points", " ")
    except ValueError as error:
        raise MemoryError(str(error).strip()) from error


def _normalize(x: NDArray[Any], order: str) -> NDArray[Any]:
    """Return the rows, divided by their norms for the paper's order, as the paper assumes."""
    if order != "paper":
        return x
    x = x.astype(np.float64)
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), np.finfo(float).tiny)


def _load_images(data: DataSettings) -> ImageData:
    from idmatters_tf.data import cifar, mnist, shapes

    if data.dataset == "shapes":
        return shapes.load()
    if data.dataset == "mnist":
        return mnist.load(data.data_dir, data.download)
    return cifar.load(data.dataset, data.data_dir, data.download)
