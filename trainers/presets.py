"""Recipes of `trainers.cifar` and `trainers.imagenet`: the values of `--preset`, and the default recipes of `--model`.

A recipe is the options of a command line that differ from the defaults, which are the recipe of Hardt & Ma for CIFAR
(`trainers.training.settings`, `trainers.networks`). `python -m trainers.cifar --help-all` lists them. For a preset with
its defaults as one dict, use `as_dict(trainers.cifar.PROGRAM.resolve("fast"))`.
"""

# Shared by both networks without normalization.
_NORMALIZER_FREE = """
    --model normalizer-free --stem 48 --precision bfloat16 --label-smoothing 0.1 --weight-decay 0
    --optimizer muon --nesterov --learning-rate 0.03 --other-rate 1.5 --schedule linear
"""
# Normalizer-free network in 50 minutes on two CPU cores, 6.37 %: docs/explanation/fast.md.
_CIFAR_FAST = f"""{_NORMALIZER_FREE}
    --blocks 3 --widths 96 192 384 --batch-size 256 --steps 4300 --warm-up-steps 430
    --augment alternating --cutout 12 --evaluate-every 500 --checkpoint-every 250
"""
# The network of Table 1 in 13 epochs, about two hours on two CPU cores with bfloat16: 6.34 % on CIFAR-10, seed 0.
_CIFAR_SHORT = """
    --precision bfloat16 --optimizer muon-free --nesterov --learning-rate 0.036 --weight-decay 0 --label-smoothing 0.1
    --schedule linear --final-rate 0.07 --lookahead 0.95 --batch-size 256 --steps 2535 --warm-up-steps 253
    --augment alternating --cutout 8 --train-sizes 20 24 --size-steps 975 1755
    --evaluate-every 507 --checkpoint-every 507
"""
# A small network on the built-in data, in float32: 0.7 minutes on two idle cores of an AMD EPYC (Zen 5).
_CIFAR_QUICK = """
    --dataset shapes --blocks 1 --widths 16 32 64 --stem 16 --steps 1000 --learning-rate 0.1 --drop-steps 700 900
    --clip-norm 1 --evaluate-every 200 --checkpoint-every 200
"""
# He et al. (2015, 2016), section 4.2: 64,000 steps, at depth 110 the first 400 of them at a tenth of the rate.
_CIFAR_RESNET = """
    --depth 110 --steps 64000 --learning-rate 0.1 --drop-steps 32000 48000 --warm-up-steps 400
    --augment standard --preprocess pixels
"""
# Huang et al. (2016), section 4.2: 300 epochs with batches of 64.
_CIFAR_DENSENET = """
    --depth 100 --steps 234375 --batch-size 64 --learning-rate 0.1 --drop-steps 117188 175782 --nesterov
    --augment standard --preprocess channels
"""
# Springenberg et al. (2014), section 3.2: 350 epochs with batches of 128, the rate divided at 200, 250 and 300. The
# paper whitens the images (ZCA); here the mean image is subtracted.
_CIFAR_ALL_CNN = """
    --steps 136720 --learning-rate 0.05 --drop-steps 78125 97657 117188 --weight-decay 0.001
    --augment all-cnn --preprocess pixels
"""
# Hardt & Ma, section 4.2, with the layout of `idmatters_tf.models.layout.IMAGENET`.
_IMAGENET_PAPER = """
    --dataset folder --size 224
    --blocks 3 4 6 3 --widths 80 168 328 672 --stem 64 --stem-size 7 --stem-strides 2 --strides 2
    --steps 700000 --batch-size 256 --learning-rate 0.1 --schedule decay --drop-steps
    --evaluate-every 5000 --checkpoint-every 1000
"""
# Baseline with the widths, normalization and head of He et al., and standard crops.
_IMAGENET_RESNET34 = f"{_IMAGENET_PAPER} --widths 64 128 256 512 --norm batch --head trained --augment standard"
# Normalizer-free network for ten classes at 64x64 pixels (Imagenette) on two CPU cores: 60 epochs.
_IMAGENET_FAST = f"""{_NORMALIZER_FREE}
    --dataset folder --size 64 --smallest-crop 0.35 --augment standard
    --blocks 2 2 3 2 --widths 64 128 256 512 --stem-size 3 --stem-strides 1
    --batch-size 128 --steps 4440 --warm-up-steps 444 --evaluate-every 370 --checkpoint-every 185
"""
# The published Torch code (fb.resnet.torch): 90 epochs with batches of 256, the rate divided at 30 and 60.
_IMAGENET_RESNET = """
    --depth 34 --shortcut projection --steps 450000 --schedule drops --drop-steps 150000 300000 --augment standard
"""
# Huang et al. (2016), section 4.2: 90 epochs with batches of 256, the rate divided at 30 and 60.
_IMAGENET_DENSENET = """
    --depth 121 --nesterov --steps 450000 --schedule drops --drop-steps 150000 300000
    --augment standard
"""
# Springenberg et al. (2014), section 3.4: 450,000 steps with batches of 64, the rate divided every 200,000.
_IMAGENET_ALL_CNN = """
    --stem-strides 4 --steps 450000 --batch-size 64 --learning-rate 0.01 --schedule drops --drop-steps 200000 400000
    --weight-decay 0.0005 --augment standard
"""

# Values of `--preset`, and default recipes of `--model`.
CIFAR_PRESETS = {"paper": "", "fast": _CIFAR_FAST, "short": _CIFAR_SHORT, "quick": _CIFAR_QUICK}
CIFAR_RECIPES = {
    "normalizer-free": _CIFAR_FAST,
    "resnet": _CIFAR_RESNET,
    "preresnet": _CIFAR_RESNET,
    "densenet": _CIFAR_DENSENET,
    "all-cnn": _CIFAR_ALL_CNN,
}
IMAGENET_PRESETS = {"paper": _IMAGENET_PAPER, "fast": _IMAGENET_FAST, "resnet34": _IMAGENET_RESNET34}
IMAGENET_RECIPES = {
    "normalizer-free": _IMAGENET_FAST,
    "resnet": _IMAGENET_RESNET,
    "preresnet": _IMAGENET_RESNET,
    "densenet": _IMAGENET_DENSENET,
    "all-cnn": _IMAGENET_ALL_CNN,
}
