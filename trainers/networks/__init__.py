"""The networks that the training programs train, by the names of `--model`.

base             what all of them have: options, a title, a recipe for each program, `build`
identity         the networks of Hardt & Ma and their ablations
normalizer_free  blocks with trained gains, for fast training without normalisation
baselines        the networks of Table 2 that the paper compares with
"""

from collections.abc import Mapping

from trainers.networks.base import Network
from trainers.networks.baselines import AllCNN, DenseNet, ResNet
from trainers.networks.identity import Identity
from trainers.networks.normalizer_free import NormalizerFree

NETWORKS: Mapping[str, type[Network]] = {
    "identity": Identity,
    "normalizer-free": NormalizerFree,
    "resnet": ResNet,
    "preresnet": ResNet,
    "densenet": DenseNet,
    "all-cnn": AllCNN,
}
