"""Data sets of the training programs, by the names of `--dataset`.

source         base classes: options, and batches of the loaded images
memory         images in memory: CIFAR-10, CIFAR-100, the built-in shapes
folder         folders of images and ImageNet, decoded during training or once
preprocessing  layers fitted to the training images
"""

from collections.abc import Mapping

from trainers.datasets.folder import Folder, FolderInMemory
from trainers.datasets.memory import Cifar, Shapes
from trainers.datasets.source import DataOptions

DATA_SETS: Mapping[str, type[DataOptions]] = {
    "cifar10": Cifar,
    "cifar100": Cifar,
    "shapes": Shapes,
    "folder": Folder,
    "folder-in-memory": FolderInMemory,
}
