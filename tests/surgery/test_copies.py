import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tests.support import surgery_state_cases as cases


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.__name__)
def test_copies_on_tensorflow(case):
    """`test_surgery_on_jax` runs the same cases."""
    keras.utils.set_random_seed(0)
    case()


def test_adapted_text():
    """Text can be processed with TensorFlow only."""
    keras.utils.set_random_seed(0)
    words = np.array(["a b", "b", "c d a", "a"])
    model = cases.adapted(layers.TextVectorization(output_mode="tf_idf"), words, "string")
    cases.check_adapted(model, tf.constant(words[:, None]))
