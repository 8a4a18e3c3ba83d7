"""Features of classifiers and new heads."""

import importlib.util

import keras
import numpy as np
import pytest

from idmatters_tf.models import features, replace_head
from tests.support.transfer_cases import (
    application,
    base_and_head,
    check_features,
    check_replaced,
    models,
)


@pytest.fixture(scope="module")
def cases():
    return models()


def test_features_of_a_classifier(cases):
    for case in cases.values():
        check_features(*case)


@pytest.mark.parametrize("name", ["exported", "exported with a random head", "nested sequential", "application"])
def test_new_heads(cases, name, tmp_path):
    check_replaced(cases[name][0], tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_transfer_on_jax(program, tmp_path):
    done = program("tests.support.transfer_cases", tmp_path, env={"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "checked on jax"


def test_frozen_nested_models_stay_frozen():
    new = replace_head(base_and_head(), 2)
    assert len(new.trainable_variables) == 2


def test_logits_are_float32_behind_a_trunk_of_16_bits():
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = application()
    keras.config.set_dtype_policy("float32")
    assert features(model).output.dtype == "bfloat16"
    assert replace_head(model, 4).output.dtype == "float32"


class Subclassed(keras.Model):
    def call(self, inputs):
        return inputs


def two_outputs():
    inputs = keras.Input((4,))
    return keras.Model(inputs, [keras.layers.Dense(2)(inputs), keras.layers.Dense(3)(inputs)], name="pair")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Subclassed(name="own"), r"must be a functional or a built Sequential .* Received: 'own' of class Sub"),
        (two_outputs, "must have one output. Received: 'pair' with 2. Pass"),
        (lambda: features(application()), r"must end in a Dense or .* which ends in 'global_average_\w+' \(Global"),
    ],
)
def test_models_without_a_last_layer_are_rejected(make, message):
    model = make()
    with pytest.raises(ValueError, match=f"Argument `model` .*{message}"):
        replace_head(model, 2)


def test_inputs_keep_their_structure():
    inputs = {"a": keras.Input((4,), name="a"), "b": keras.Input((4,), name="b")}
    x = keras.layers.Concatenate()([inputs["a"], inputs["b"]])
    new = replace_head(keras.Model(inputs, keras.layers.Dense(2)(x)), 3)
    assert new({"a": np.ones((1, 4)), "b": np.ones((1, 4))}).shape == (1, 3)
