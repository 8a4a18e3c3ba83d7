"""Modules and classes of Keras that are not public, imported in one place."""

# ruff: noqa: F401 - used by the other modules of this folder

import keras
from keras.src import backend
from keras.src.backend.common import global_state, masking, tensor_attributes
from keras.src.backend.common.stateless_scope import get_stateless_scope
from keras.src.losses import loss as loss_functions
from keras.src.losses.losses import LossFunctionWrapper
from keras.src.models.functional import Functional, functional_like_constructor
from keras.src.ops import numpy as numpy_operations
from keras.src.ops.node import Node
from keras.src.random import seed_generator
from keras.src.trainers import data_adapters
from keras.src.trainers.compile_utils import CompileLoss, CompileMetrics, MetricsList
from keras.src.trainers.data_adapters import array_slicing, data_adapter_utils
from keras.src.trainers.epoch_iterator import EpochIterator
from keras.src.utils import module_utils, rng_utils

if keras.backend.backend() == "tensorflow":
    from keras.src.backend.tensorflow import trainer as tf_trainer
