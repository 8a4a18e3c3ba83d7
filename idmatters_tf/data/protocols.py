"""Interfaces of data sets and batches for training code, and their implementations.

DataSet                 `images.ImageData`, `imagenet.StreamedImageData`
TrainBatchSource        `batches.TrainBatches`, `streams.StreamTrainBatches`
EvaluationBatchSource   `batches.EvaluationBatches`, `streams.StreamEvaluationBatches`

Any object with these methods is accepted as training data. This module does not import TensorFlow.
"""

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol, TypeAlias, Union

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import tensorflow as tf

    from idmatters_tf._keras_types import Dataset
    from idmatters_tf.data.imagenet import StreamedImageData
    from idmatters_tf.data.images import ImageData

# Labeled training and test images.
DataSet: TypeAlias = Union["ImageData", "StreamedImageData"]
# An integer, or an int64 scalar.
Int: TypeAlias = Union[int, "tf.Tensor"]
# Images, float32 (n, rows, cols, channels), and labels, int32 (n,).
Batch: TypeAlias = tuple[NDArray[np.float32], NDArray[np.int32]]
# Images, labels, and weights, float32 (n,): 1, or 0 for padding.
WeightedBatch: TypeAlias = tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.float32]]


@dataclasses.dataclass(frozen=True)
class Share:
    """The part of each global batch that one input pipeline computes.

    Attributes:
        replicas: number of all replicas, which divide the global batch evenly.
        first: first replica that this pipeline feeds.
        count: number of replicas that it feeds.
    """

    replicas: int = 1
    first: int = 0
    count: int = 1


ALONE = Share()


class TrainBatchSource(Protocol):
    """Batches of images, as a function of the step, that replicas and workers share."""

    def batch(self, step: int) -> "Batch | tuple[tf.Tensor, tf.Tensor]":
        """Return the images and labels of a step, which is the number of batches before it since training began."""
        ...

    def dataset(self, first_step: Int, steps: int, share: Share = ALONE, stride: int = 1) -> "Dataset":
        """Return the batches of `steps` steps as a `tf.data.Dataset`, with one element for each replica in turn.

        Args:
            first_step: first step, an integer or int64 scalar.
            steps: number of steps.
            share: replicas that the data set feeds.
            stride: difference between successive steps.
        """
        ...


class EvaluationBatchSource(Protocol):
    """Batches that contain every image once, without augmentation. Padding of the last batch has weight 0."""

    @property
    def steps(self) -> int:
        """Number of global batches that contain all images."""
        ...

    def __iter__(self) -> Iterator[WeightedBatch]:
        """Yield (images, labels, weights) of all global batches as NumPy arrays."""
        ...

    def dataset(self, share: Share = ALONE) -> "Dataset":
        """Return a `tf.data.Dataset` of (images, labels, weights), with one element for each replica in turn."""
        ...
