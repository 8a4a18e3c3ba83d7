"""Networks as functions that return a `keras.Model`, in pure Keras, for every backend.

cifar            identity_resnet: the all-convolutional residual network of Hardt & Ma's Table 1
imagenet         identity_resnet34: its variant for ImageNet, section 4.2
identity         identity_network: the common builder, for any `layout.Layout`
layout           Layout: depth, widths and ablations of the networks above
all_cnn          all_cnn_c: the all-convolutional baseline
resnet           resnet, preresnet: residual baselines
densenet         densenet: the densely connected baseline
normalizer_free  normalizer_free_resnet: a network with trained gains in place of normalization
linear           linear_residual, plain, shortcut_network: deep linear networks, for fitting and for curvature
transfer         features, replace_head: fine-tuning of trained classifiers

The shapes of images are `(rows, cols, channels)`, or `(channels, rows, cols)` under
`keras.config.set_image_data_format("channels_first")`.
"""

from idmatters_tf._imports import lazy_attributes

if __name__ == "models":
    raise ImportError("This folder is the source of idmatters_tf.models. Import that package instead.", name=__name__)

__getattr__, __dir__, __all__ = lazy_attributes(__name__, __file__)
