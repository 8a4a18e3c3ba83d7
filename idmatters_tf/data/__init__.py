"""Data sets, and batches that are a pure function of (seed, step).

images    ImageData: the arrays, their labels, names and origin
cifar     CIFAR-10 and CIFAR-100, from the official binary files or through TensorFlow Datasets
mnist     MNIST, from the official idx files or through TensorFlow Datasets
shapes    a built-in, generated data set: works offline
augment   crop, flip and standardise a batch at once
mixup     convex combinations of the images of a batch
protocols what training code uses of a data set and its batches
batches   which images, in which order, with which augmentation, at which step, on which replica
imagenet  ImageNet and other folders of images, read while training
streams   the batches of images that are not in memory
"""

from typing import TYPE_CHECKING

from idmatters_tf._lazy import lazy_attributes

if TYPE_CHECKING:
    from idmatters_tf.data import (
        augment,
        batches,
        cifar,
        imagenet,
        images,
        mixup,
        mnist,
        protocols,
        shapes,
        streams,
    )

__all__ = [
    "augment",
    "batches",
    "cifar",
    "imagenet",
    "images",
    "mixup",
    "mnist",
    "protocols",
    "shapes",
    "streams",
]

__getattr__, __dir__ = lazy_attributes(__name__, __all__)
