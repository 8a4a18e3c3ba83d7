"""Recipes of `trainers.cifar` and `trainers.imagenet`: the values of `--preset`, and the default recipes of `--model`.

A recipe is a dict of the settings that differ from the defaults, which are the recipe of Hardt & Ma for CIFAR
(`trainers.training.settings`, `trainers.networks`). `python -m trainers.cifar --help-all` lists them. For a preset with
its defaults as one dict, use `as_dict(trainers.cifar.PROGRAM.resolve("fast"))`.
"""

from collections.abc import Mapping
from typing import TypeAlias

Settings: TypeAlias = Mapping[str, object]

# Shared by both networks without normalization.
_NORMALIZER_FREE: Settings = {
    "model": "normalizer-free",
    "stem": 48,
    "precision": "bfloat16",
    "label_smoothing": 0.1,
    "weight_decay": 0.0,
    "optimizer": "muon",
    "learning_rate": 0.03,
    "schedule": "linear",
}
# Normalizer-free network in 50 minutes on two CPU cores, 6.37 %: docs/explanation/fast.md.
_CIFAR_FAST: Settings = {
    **_NORMALIZER_FREE,
    "blocks": (3,),
    "widths": (96, 192, 384),
    "batch_size": 256,
    "steps": 4300,
    "warm_up_steps": 430,
    "augment": "alternating",
    "cutout": 12,
    "evaluate_every": 500,
    "checkpoint_every": 250,
}
# The network of Table 1 in 13 epochs, about two hours on two CPU cores with bfloat16: 6.34 % on CIFAR-10, seed 0.
_CIFAR_SHORT: Settings = {
    "precision": "bfloat16",
    "optimizer": "muon-free",
    "learning_rate": 0.036,
    "weight_decay": 0.0,
    "label_smoothing": 0.1,
    "schedule": "airbench",
    "batch_size": 256,
    "steps": 2535,
    "warm_up_steps": 253,
    "augment": "alternating",
    "cutout": 8,
    "train_sizes": ("20:975", "24:1755"),
    "evaluate_every": 507,
    "checkpoint_every": 507,
}
# A small network on the built-in data, in float32: 0.7 minutes on two idle cores of an AMD EPYC (Zen 5).
_CIFAR_QUICK: Settings = {
    "dataset": "shapes",
    "blocks": (1,),
    "widths": (16, 32, 64),
    "stem": 16,
    "steps": 1000,
    "learning_rate": 0.1,
    "drop_steps": (700, 900),
    "clip_norm": 1.0,
    "evaluate_every": 200,
    "checkpoint_every": 200,
}
# He et al. (2015, 2016), section 4.2: 64,000 steps. Theirs have a warm-up of 400 steps at depth 110 only.
_CIFAR_RESNET: Settings = {
    "depth": 110,
    "steps": 64_000,
    "learning_rate": 0.1,
    "drop_steps": (32_000, 48_000),
    "warm_up_steps": 400,
    "augment": "standard",
    "preprocess": "pixels",
}
# Huang et al. (2016), section 4.2: 300 epochs with batches of 64.
_CIFAR_DENSENET: Settings = {
    "depth": 100,
    "steps": 234_375,
    "batch_size": 64,
    "learning_rate": 0.1,
    "drop_steps": (117_188, 175_782),
    "optimizer": "nesterov",
    "augment": "standard",
    "preprocess": "channels",
}
# Springenberg et al. (2014), section 3.2: 350 epochs with batches of 128, the rate divided at 200, 250 and 300. The
# paper whitens the images (ZCA); here the mean image is subtracted.
_CIFAR_ALL_CNN: Settings = {
    "steps": 136_720,
    "learning_rate": 0.05,
    "drop_steps": (78_125, 97_657, 117_188),
    "weight_decay": 0.001,
    "augment": "all-cnn",
    "preprocess": "pixels",
}
# Hardt & Ma, section 4.2, with the layout of `idmatters_tf.models.layout.IMAGENET`.
_IMAGENET_PAPER: Settings = {
    "dataset": "folder",
    "size": 224,
    "blocks": (3, 4, 6, 3),
    "widths": (80, 168, 328, 672),
    "stem": 64,
    "stem_size": 7,
    "strides": (2,),
    "steps": 700_000,
    "batch_size": 256,
    "learning_rate": 0.1,
    "schedule": "decay",
    "drop_steps": (),
    "evaluate_every": 5000,
    "checkpoint_every": 1000,
}
# Baseline with the widths, normalization and head of He et al., and standard crops.
_IMAGENET_RESNET34: Settings = {
    **_IMAGENET_PAPER,
    "widths": (64, 128, 256, 512),
    "norm": "batch",
    "head": "trained",
    "augment": "standard",
}
# Normalizer-free network for ten classes at 64x64 pixels (Imagenette) on two CPU cores: 60 epochs.
_IMAGENET_FAST: Settings = {
    **_NORMALIZER_FREE,
    "dataset": "folder",
    "size": 64,
    "augment": "large-crops",
    "blocks": (2, 2, 3, 2),
    "widths": (64, 128, 256, 512),
    "stem_size": 3,
    "batch_size": 128,
    "steps": 4440,
    "warm_up_steps": 444,
    "evaluate_every": 370,
    "checkpoint_every": 185,
}
# The published Torch code (fb.resnet.torch): 90 epochs with batches of 256, the rate divided at 30 and 60.
_IMAGENET_RESNET: Settings = {
    "depth": 34,
    "shortcut": "projection",
    "steps": 450_000,
    "schedule": "drops",
    "drop_steps": (150_000, 300_000),
    "augment": "standard",
}

# Values of `--preset`, and default recipes of `--model`.
CIFAR_PRESETS: Mapping[str, Settings] = {"paper": {}, "fast": _CIFAR_FAST, "short": _CIFAR_SHORT, "quick": _CIFAR_QUICK}
CIFAR_RECIPES: Mapping[str, Settings] = {
    "normalizer-free": _CIFAR_FAST,
    "resnet": _CIFAR_RESNET,
    "preresnet": _CIFAR_RESNET,
    "densenet": _CIFAR_DENSENET,
    "all-cnn": _CIFAR_ALL_CNN,
}
IMAGENET_PRESETS: Mapping[str, Settings] = {
    "paper": _IMAGENET_PAPER,
    "fast": _IMAGENET_FAST,
    "resnet34": _IMAGENET_RESNET34,
}
IMAGENET_RECIPES: Mapping[str, Settings] = {
    "normalizer-free": _IMAGENET_FAST,
    "resnet": _IMAGENET_RESNET,
    "preresnet": _IMAGENET_RESNET,
}
