"""Networks as functions that return a `keras.Model`. Pure Keras: they run on every backend.

models.cifar.identity_resnet         the all-convolutional residual network of Hardt & Ma's Table 1
models.imagenet.identity_resnet34    its variant for ImageNet, section 4.2
models.identity.identity_network     what the two have in common, built from a models.layout.Layout
models.cost.identity_network_cost    its parameters, operations and memory, without building it
models.all_cnn.all_cnn_c, models.resnet.resnet, preresnet, models.densenet.densenet
                                     what it is compared with
models.normalizer_free.normalizer_free_resnet    blocks with trained gains, for fast training without normalisation
models.linear.linear_residual, plain, shortcut_network    deep linear networks, for fitting and for curvature
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from models import all_cnn, cifar, cost, densenet, identity, imagenet, layout, linear, normalizer_free, resnet

__all__ = [
    "all_cnn",
    "cifar",
    "cost",
    "densenet",
    "identity",
    "imagenet",
    "layout",
    "linear",
    "normalizer_free",
    "resnet",
]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
