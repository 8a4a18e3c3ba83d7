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


@pytest.mark.parametrize("mode", ["int", "multi_hot", "tf_idf"])
def test_adapted_text(mode):
    """Text can be processed with TensorFlow only."""
    keras.utils.set_random_seed(0)
    words = np.array(["a b", "b", "c d a", "a"])
    options = {"output_sequence_length": 3} if mode == "int" else {}
    model = cases.adapted(layers.TextVectorization(output_mode=mode, **options), words, "string")
    cases.check_adapted(model, tf.constant(words[:, None]))


def test_vocabulary_with_a_line_break_raises():
    characters = layers.TextVectorization(split="character", standardize=None, output_sequence_length=2)
    model = cases.adapted(characters, np.array(["a\n", "b", "a"]), "string")
    with pytest.raises(ValueError, match="cannot be copied: Keras cannot save its vocabulary.*Pass `vocabulary`"):
        cases.check_adapted(model, tf.constant([["a"]]))
