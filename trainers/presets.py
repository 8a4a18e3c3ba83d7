"""Recipes of `trainers.cifar` and `trainers.imagenet`: the values of `--preset`, and the default recipes of `--model`.

Each table is complete: it contains all settings that differ from the defaults of the options, which are the recipe of
Hardt & Ma for CIFAR (`trainers.training.settings`, `trainers.networks`). `python -m trainers.cifar --help-all` lists
them. For a preset with its defaults as one dict, use `as_dict(trainers.cifar.PROGRAM.resolve("fast"))`.
"""

from collections.abc import Mapping
from typing import Any

from idmatters_tf.models.layout import IMAGENET

Table = Mapping[str, Any]

# Shared by both networks without normalization.
_NORMALIZER_FREE: Table = {
    "model": "normalizer-free",
    "stem": 48,
    "precision": "bfloat16",
    "optimizer": "muon",
    "nesterov": True,
    "learning_rate": 0.03,
    "other_rate": 1.5,
    "weight_decay": 0.0,
    "schedule": "linear",
    "label_smoothing": 0.1,
}

CIFAR_FAST: Table = {
    # Normalizer-free network in 50 minutes on two CPU cores, 6.37 %: docs/explanation/fast.md.
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

CIFAR_SHORT: Table = {
    # The network of Table 1 in 13 epochs, about two hours on two CPU cores with bfloat16: 6.34 % on CIFAR-10, seed 0.
    "precision": "bfloat16",
    "optimizer": "muon-free",
    "nesterov": True,
    "learning_rate": 0.036,
    "weight_decay": 0.0,
    "schedule": "linear",
    "final_rate": 0.07,
    "lookahead": 0.95,
    "batch_size": 256,
    "steps": 2535,
    "warm_up_steps": 253,
    "label_smoothing": 0.1,
    "augment": "alternating",
    "cutout": 8,
    "train_sizes": (20, 24),
    "size_steps": (975, 1755),
    "evaluate_every": 507,
}

CIFAR_QUICK: Table = {
    # A small network on the built-in data, two minutes on two CPU cores.
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

CIFAR_RESNET: Table = {
    # He et al. (2015, 2016), section 4.2: 64,000 steps, at depth 110 the first 400 of them at a tenth of the rate.
    "depth": 110,
    "steps": 64_000,
    "learning_rate": 0.1,
    "drop_steps": (32_000, 48_000),
    "warm_up_steps": 400,
    "augment": "standard",
    "preprocess": "pixels",
}

CIFAR_DENSENET: Table = {
    # Huang et al. (2016), section 4.2: 300 epochs with batches of 64.
    "depth": 100,
    "growth": 24,
    "steps": 234_375,
    "batch_size": 64,
    "learning_rate": 0.1,
    "drop_steps": (117_188, 175_782),
    "nesterov": True,
    "augment": "standard",
    "preprocess": "channels",
}

CIFAR_ALL_CNN: Table = {
    # Springenberg et al. (2014), section 3.2: 350 epochs with batches of 128, the rate divided at 200, 250 and 300.
    "steps": 136_719,
    "learning_rate": 0.05,
    "drop_steps": (78_125, 97_657, 117_188),
    "weight_decay": 1e-3,
    "augment": "all-cnn",
    "preprocess": "zca",
}

IMAGENET_PAPER: Table = {
    # Hardt & Ma, section 4.2.
    "dataset": "folder",
    "size": 224,
    "blocks": IMAGENET.blocks,
    "widths": IMAGENET.widths,
    "stem": IMAGENET.stem,
    "stem_size": IMAGENET.stem_size,
    "stem_strides": IMAGENET.stem_strides,
    "first_stride": IMAGENET.strides[0],
    "steps": 700_000,
    "batch_size": 256,
    "learning_rate": 0.1,
    "schedule": "decay",
    "drop_steps": (),
    "evaluate_every": 5000,
    "checkpoint_every": 1000,
}

IMAGENET_RESNET34: Table = {
    # Baseline with the widths, normalization and head of He et al., and standard crops.
    **IMAGENET_PAPER,
    "widths": (64, 128, 256, 512),
    "norm": "batch",
    "head": "trained",
    "augment": "standard",
}

IMAGENET_FAST: Table = {
    # Normalizer-free network for ten classes at 64x64 pixels (Imagenette) on two CPU cores: 60 epochs.
    **_NORMALIZER_FREE,
    "dataset": "folder",
    "size": 64,
    "smallest_crop": 0.35,
    "blocks": (2, 2, 3, 2),
    "widths": (64, 128, 256, 512),
    "stem_size": 3,
    "stem_strides": 1,
    "batch_size": 128,
    "steps": 4440,
    "warm_up_steps": 444,
    "augment": "standard",
    "evaluate_every": 370,
    "checkpoint_every": 185,
}

IMAGENET_RESNET: Table = {
    # The published Torch code (fb.resnet.torch): 90 epochs with batches of 256, the rate divided at 30 and 60.
    "depth": 34,
    "shortcut": "projection",
    "steps": 450_000,
    "schedule": "drops",
    "drop_steps": (150_000, 300_000),
    "augment": "standard",
}

IMAGENET_DENSENET: Table = {
    # Huang et al. (2016), section 4.2: 90 epochs with batches of 256, the rate divided at 30 and 60.
    "depth": 121,
    "growth": 32,
    "bottleneck": True,
    "steps": 450_000,
    "schedule": "drops",
    "drop_steps": (150_000, 300_000),
    "nesterov": True,
    "augment": "standard",
}

IMAGENET_ALL_CNN: Table = {
    # Springenberg et al. (2014), section 3.4: 450,000 steps with batches of 64, the rate divided every 200,000.
    "stem_strides": 4,
    "steps": 450_000,
    "batch_size": 64,
    "learning_rate": 0.01,
    "schedule": "drops",
    "drop_steps": (200_000, 400_000),
    "weight_decay": 5e-4,
    "augment": "standard",
}

# Values of `--preset`. The default "paper" of `trainers.cifar` is the recipe of the options' defaults.
CIFAR_PRESETS: Mapping[str, Table] = {
    "paper": {},
    "fast": CIFAR_FAST,
    "short": CIFAR_SHORT,
    "quick": CIFAR_QUICK,
}
IMAGENET_PRESETS: Mapping[str, Table] = {
    "paper": IMAGENET_PAPER,
    "fast": IMAGENET_FAST,
    "resnet34": IMAGENET_RESNET34,
}
# Default recipes of `--model`.
CIFAR_RECIPES: Mapping[str, Table] = {
    "normalizer-free": CIFAR_FAST,
    "resnet": CIFAR_RESNET,
    "preresnet": CIFAR_RESNET,
    "densenet": CIFAR_DENSENET,
    "all-cnn": CIFAR_ALL_CNN,
}
IMAGENET_RECIPES: Mapping[str, Table] = {
    "normalizer-free": IMAGENET_FAST,
    "resnet": IMAGENET_RESNET,
    "preresnet": IMAGENET_RESNET,
    "densenet": IMAGENET_DENSENET,
    "all-cnn": IMAGENET_ALL_CNN,
}
