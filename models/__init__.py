"""Networks as functions that return a `keras.Model`. Pure Keras: they run on every backend.

models.cifar.identity_resnet         the all-convolutional residual network of Hardt & Ma's Table 1
models.imagenet.identity_resnet34    its variant for ImageNet, section 4.2
models.identity.identity_network     what the two have in common, built from a models.layout.Layout
models.cost.identity_network_cost    its parameters, operations and memory, without building it
models.all_cnn.all_cnn_c, models.resnet.resnet, preresnet, models.densenet.densenet
                                     what it is compared with
models.linear.linear_residual, plain, shortcut_network    deep linear networks, for fitting and for curvature
"""

import importlib

_SUBMODULES = ("all_cnn", "cifar", "cost", "densenet", "identity", "imagenet", "layout", "linear", "resnet")

__all__ = list(_SUBMODULES)


def __getattr__(name):
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
