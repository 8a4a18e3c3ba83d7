"""What training code uses of a data set and of its batches, in memory or streamed.

DataSet                 `images.ImageData`, `imagenet.StreamedImageData`
BatchSource             `TrainBatchSource`, and `idmatters_tf.callbacks.Batches`, the training data of a `fit`
TrainBatchSource        `batches.TrainBatches`, `streams.StreamTrainBatches`
EvaluationBatchSource   `batches.EvaluationBatches`, `streams.StreamEvaluationBatches`

Any object with these methods can be trained on. Importing this module needs no TensorFlow.
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, Union

if TYPE_CHECKING:
    import tensorflow as tf

# An integer, or an int64 scalar.
Int: TypeAlias = Union[int, "tf.Tensor"]


@dataclasses.dataclass(frozen=True)
class Share:
    """The part of each global batch that one input pipeline computes.

    Attributes:
        replicas: all replicas together; the global batch is divided evenly among them.
        first: the first replica fed by this pipeline.
        count: how many replicas it feeds.
    """

    replicas: int = 1
    first: int = 0
    count: int = 1


ALONE = Share()


class DataSet(Protocol):
    """Labelled images for training and for testing."""

    @property
    def name(self) -> str: ...

    @property
    def origin(self) -> str:
        """Where the data came from, in words."""
        ...

    @property
    def classes(self) -> int:
        """The number of classes."""
        ...

    @property
    def class_names(self) -> Sequence[str]:
        """One for each class; fewer where a network is to have more outputs."""
        ...

    @property
    def image_shape(self) -> tuple[int, ...]:
        """`(rows, cols, channels)`."""
        ...

    def digest(self) -> str:
        """A checksum that tells data sets apart."""
        ...


class BatchSource(Protocol):
    """Batches that are a function of the step.

    A step has the same batch in any order of calls and in any process: training can go on at any step. Random numbers
    are drawn from the step, as in `numpy.random.default_rng((seed, step))`.
    """

    def batch(self, step: int) -> Any:
        """The batch of a step, which is the number of batches before it since the beginning of training."""
        ...


class TrainBatchSource(BatchSource, Protocol):
    """Batches of images, of which replicas and workers take their parts."""

    def indices(self, positions: "tf.Tensor") -> "tf.Tensor":
        """The image at each position of the endless sequence."""
        ...

    def batch(self, step: Int, start: int = 0, stop: int | None = None) -> "tuple[tf.Tensor, tf.Tensor]":
        """The images and labels from `start` to `stop` of a step's global batch."""
        ...

    def dataset(self, first_step: Int, steps: int, share: Share = ALONE, stride: int = 1) -> "tf.data.Dataset":
        """The batches of `steps` steps, one element for each replica in turn."""
        ...


class EvaluationBatchSource(Protocol):
    """Every image once, without augmentation."""

    @property
    def steps(self) -> int:
        """How many global batches hold all images."""
        ...

    def dataset(self, share: Share = ALONE, first: Int = 0, steps: int | None = None) -> "tf.data.Dataset":
        """(images, labels, weights), one element for each replica in turn."""
        ...
