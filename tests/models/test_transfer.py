"""Features of classifiers and new heads. `test_backends` runs the tests on JAX."""

import keras
import numpy as np
import pytest

from idmatters_tf.layers import ClassNames, PerImageStandardization, ResidualConv2D
from idmatters_tf.models import features, replace_head
from idmatters_tf.models.cifar import identity_resnet
from idmatters_tf.models.normalizer_free import normalizer_free_resnet

IMAGES = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), np.uint8)


def exported(network):
    """Return a network between the layers that the exports of the programs add."""
    images = keras.Input((8, 8, 3), dtype="uint8", name="images")
    logits = network(PerImageStandardization(name="standardization")(images))
    outputs = ClassNames("abc", name="classes")(logits)
    return keras.Model(images, outputs, name="on_pixels")


def application():
    """Return a model built like those of keras.applications."""
    images = keras.Input((8, 8, 3), dtype="uint8")
    x = keras.layers.Rescaling(1 / 255)(images)
    x = keras.layers.BatchNormalization()(keras.layers.Conv2D(4, 3, activation="relu")(x))
    x = keras.layers.Dropout(0.5)(keras.layers.GlobalAveragePooling2D()(x))
    return keras.Model(images, keras.layers.Dense(3, activation="softmax", name="predictions")(x))


def base_and_head():
    """Return a frozen base called in inference mode, as in Keras' guide to transfer learning."""
    base = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.BatchNormalization(), keras.layers.Flatten()])
    base.trainable = False
    images = keras.Input((8, 8, 3), dtype="uint8")
    x = base(keras.ops.cast(images, "float32") / 255, training=False)
    return keras.Model(images, keras.layers.Softmax()(keras.layers.Dense(3, name="last")(x)))


def models():
    """Return (model, path of the last layer, activation behind it) by name."""
    keras.utils.set_random_seed(0)
    trained = normalizer_free_resnet((8, 8, 3), 3, blocks=1, widths=(4, 8), stem=4)
    random = identity_resnet((8, 8, 3), 3, blocks=1, widths=(4, 8), stem=4)
    sequential = keras.Sequential([keras.Input((8, 8, 3), dtype="uint8"), PerImageStandardization()])
    for layer in (ResidualConv2D(4), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(3)):
        sequential.add(layer)
    nested = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(3, name="last")])
    found = {
        "exported": (exported(trained), (trained.name, "head"), None),
        "exported with a random head": (exported(random), (random.name, "head"), None),
        "sequential": (sequential, (sequential.layers[-1].name,), None),
        "nested sequential": (exported(nested), (nested.name, "last"), None),
        "application": (application(), ("predictions",), keras.activations.softmax),
        "base and head": (base_and_head(), ("last",), keras.activations.softmax),
    }
    rng = np.random.default_rng(1)
    for model, _, _ in found.values():
        for variable in model.trainable_variables:
            variable.assign(rng.normal(size=variable.shape) / np.sqrt(np.prod(variable.shape[:-1])))
    return found


def last_layer(model, path):
    for name in path:
        model = model.get_layer(name)
    return model


def array(tensor):
    return np.array(keras.ops.convert_to_numpy(tensor))


def check_features(model, path, activation):
    """Compare the last layer's product in NumPy with the outputs of the model."""
    expected, layer = array(model(IMAGES, training=False)), last_layer(model, path)
    found = array(features(model)(IMAGES, training=False)) @ array(layer.kernel)
    bias = getattr(layer, "bias", None)
    found = found + (0 if bias is None else array(bias))
    found = found if activation is None else array(activation(keras.ops.convert_to_tensor(found)))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert not any(isinstance(layer, ClassNames) for layer in features(model).layers)


def check_replaced(model, folder):
    """Check the logits, names, weights, training and file of a model with a new head."""
    before = {id(variable) for variable in model.variables}
    pooled = array(features(model)(IMAGES, training=False))
    new = replace_head(model, 5, class_names=list("abcde"), seed=3)
    head = new.get_layer("head")
    assert head.kernel.shape == (pooled.shape[1], 5)
    assert array(head.kernel).std() > 0
    logits = array(new(IMAGES, training=False))
    np.testing.assert_allclose(logits, pooled @ array(head.kernel), rtol=1e-4, atol=1e-5)
    assert new.get_layer("classes").class_names == tuple("abcde")
    # The layers of the trunk are shared.
    assert {id(variable) for variable in new.variables} - {id(variable) for variable in head.variables} <= before
    np.testing.assert_array_equal(array(replace_head(model, 5, seed=3).get_layer("head").kernel), array(head.kernel))
    frozen = replace_head(model, 2, head="random")
    assert not frozen.get_layer("head").trainable_variables
    assert not array(replace_head(model, 2, head="zero").get_layer("head").kernel).any()

    trunk = features(new)
    trunk.trainable = False
    assert [id(variable) for variable in new.trainable_variables] == [id(head.kernel), id(head.bias)]
    old = [array(variable) for variable in trunk.variables]
    new.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
    new.fit(IMAGES, np.arange(3), verbose=0)
    for variable, value in zip(trunk.weights, old, strict=False):
        np.testing.assert_array_equal(array(variable), value)
    expected = array(new(IMAGES, training=False))
    assert np.abs(expected - logits).max() > 0
    path = folder / "model.keras"
    new.save(path)
    loaded = keras.saving.load_model(path)
    np.testing.assert_allclose(array(loaded(IMAGES, training=False)), expected, rtol=1e-5, atol=1e-6)
    check_features(loaded, ("head",), None)
    assert replace_head(loaded, 4).output_shape == (None, 4)


@pytest.fixture(scope="module")
def cases():
    return models()


def test_features_of_a_classifier(cases):
    for case in cases.values():
        check_features(*case)


@pytest.mark.parametrize("name", ["exported", "exported with a random head", "nested sequential", "application"])
def test_new_heads(cases, name, tmp_path):
    check_replaced(cases[name][0], tmp_path)


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
