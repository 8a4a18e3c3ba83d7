"""Networks of the training programs, by the names of `--model`.

base             base classes: options, title, construction
identity         networks of Hardt & Ma and their ablations
normalizer_free  blocks with trained gains, for fast training without normalization
baselines        baselines of the paper's Table 2
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
