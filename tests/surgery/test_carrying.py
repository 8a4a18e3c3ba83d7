import keras
import numpy as np
import pytest
from keras import layers, ops

from idmatters_tf.optimizers import Muon
from idmatters_tf.surgery import deepen, remove_identities

OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(0.01, amsgrad=True, clipvalue=1.0),
    "adafactor": lambda: keras.optimizers.Adafactor(0.01),
    "accumulated": lambda: keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2),
    "averaged": lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), dynamic_growth_steps=4),
    "muon": lambda: Muon(0.1, norm="free"),
    "schedule": lambda: keras.optimizers.SGD(
        keras.optimizers.schedules.PiecewiseConstantDecay([1, 3], [0.1, 0.01, 0.001]), momentum=0.9, nesterov=True
    ),
}


def network():
    return keras.Sequential([keras.Input((3,)), layers.Dense(4, name="hidden"), layers.Dense(2, name="head")])


def steps(model, optimizer, first, count):
    """Apply gradients that depend only on the variable's path and the step."""
    for step in range(first, first + count):
        gradients = []
        for variable in model.trainable_variables:
            rng = np.random.default_rng([step, *variable.path.encode()])
            gradients.append(ops.convert_to_tensor(rng.normal(size=variable.shape).astype("float32")))
        optimizer.apply(gradients, model.trainable_variables)


def values(model):
    return {variable.path: ops.convert_to_numpy(variable) for variable in model.trainable_variables}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_state_of_old_variables_is_kept(name):
    keras.utils.set_random_seed(0)
    model = network()
    optimizer = OPTIMIZERS[name]()
    optimizer.exclude_from_weight_decay([model.get_layer("head").kernel], ["bias"])
    optimizer.build(model.trainable_variables)
    steps(model, optimizer, 0, 3)
    state = [ops.convert_to_numpy(variable) for variable in optimizer.variables]

    deeper = deepen(model, "hidden", optimizer=optimizer)
    shallower = remove_identities(deeper, 0.0, np.ones((2, 3), "float32"), optimizer=deeper.optimizer).model

    assert all(np.array_equal(old, new) for old, new in zip(state, optimizer.variables, strict=True))
    assert int(deeper.optimizer.iterations) == int(optimizer.iterations)
    pairs = ((model, optimizer), (deeper, deeper.optimizer), (shallower, shallower.optimizer))
    for network_now, own in pairs:
        steps(network_now, own, 3, 2)
        # Replaces the weights by their averages, if there are any.
        own.finalize_variable_values(network_now.trainable_variables)
    for path, value in values(model).items():
        np.testing.assert_array_equal(values(deeper)[path], value, err_msg=path)
        np.testing.assert_array_equal(values(shallower)[path], value, err_msg=path)


def test_slots_of_new_variables_start_at_zero_and_averages_at_the_weights():
    model = network()
    optimizer = keras.optimizers.Adam(0.01, use_ema=True)
    optimizer.build(model.trainable_variables)
    steps(model, optimizer, 0, 2)
    deeper = deepen(model, "hidden", optimizer=optimizer)
    # Two slots and an average for each of U, s and V.
    slots = [variable for variable in deeper.optimizer.variables if "_deeper1_" in variable.path]
    assert len(slots) == 9
    assert not any(np.any(slot) for slot in slots if "average" not in slot.path)
    block = deeper.get_layer("hidden_deeper1")
    start = np.array(block.U)
    deeper.optimizer.finalize_variable_values(deeper.trainable_variables)
    np.testing.assert_array_equal(block.U, start)


@pytest.mark.parametrize("carried", [True, False])
def test_weight_decay_exclusions_are_kept(carried):
    model = network()
    optimizer = keras.optimizers.SGD(0.1, weight_decay=0.1)
    optimizer.exclude_from_weight_decay([model.get_layer("head").kernel], ["bias"])
    model.compile(optimizer, "mse")
    deeper = deepen(model, "hidden", optimizer=optimizer if carried else None)
    deeper.optimizer.build(deeper.trainable_variables)
    before = values(deeper)
    zeros = [ops.zeros(variable.shape) for variable in deeper.trainable_variables]
    deeper.optimizer.apply(zeros, deeper.trainable_variables)
    moved = {path for path, value in values(deeper).items() if not np.array_equal(value, before[path])}
    names = {path.split("/", 1)[1] if path.startswith("sequential") else path for path in moved}
    assert names == {"hidden/kernel", "hidden_deeper1/U"}


def test_compile_arguments_and_frozen_layers_are_kept():
    """Loss, metrics and optimizer are kept, frozen layers stay frozen, and only the block is trained."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(16, 3)).astype("float32"), rng.integers(0, 2, 16)

    def loss(y, logits):
        return keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)

    model = network()
    model.compile("adam", loss, metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")], run_eagerly=True)
    model.fit(x, y, verbose=0)
    expected = model.evaluate(x, y, verbose=0)
    model.trainable = False

    deeper = deepen(model, "hidden", optimizer=model.optimizer)
    assert deeper.evaluate(x, y, verbose=0) == expected
    assert [metric.name for metric in deeper.metrics] == ["loss", "compile_metrics"]
    assert deeper.metrics[1] is not model.metrics[1]
    before = values(deeper)
    assert {path.partition("/")[0] for path in before} == {"hidden_deeper1"}
    deeper.fit(x, y, batch_size=8, epochs=3, verbose=0)
    assert int(deeper.optimizer.iterations) == 7
    assert not np.array_equal(values(deeper)["hidden_deeper1/U"], before["hidden_deeper1/U"])
    assert model.evaluate(x, y, verbose=0) == expected
    # Without `optimizer` the copy has a new optimizer with the same settings.
    again = deepen(model, "hidden")
    assert type(again.optimizer) is type(model.optimizer)
    assert int(again.optimizer.iterations) == 0


def test_optimizers_with_unknown_state_or_variables_raise():
    class Remembering(keras.optimizers.SGD):
        def build(self, variables):
            super().build(variables)
            self.memory = {
                variable.path: self.add_variable_from_reference(variable, "memory") for variable in variables
            }

    model = network()
    cases = [
        (keras.optimizers.SGD(0.1, momentum=0.9), network(), "must be the optimizer of `model`"),
        (Remembering(0.1), model, "The state of Remembering cannot be transferred: .*memory"),
    ]
    # Keras before 3.15 has one optimizer for all variables.
    if hasattr(keras.optimizers, "MultiOptimizer"):
        choices = keras.optimizers.OptimizerMap(keras.optimizers.Adam(0.1), {".*bias": keras.optimizers.SGD(0.1)})
        cases.append((keras.optimizers.MultiOptimizer(choices), model, "The state of MultiOptimizer cannot be"))
    for optimizer, built_for, message in cases:
        optimizer.build(built_for.trainable_variables)
        with pytest.raises(ValueError, match=message):
            deepen(model, "hidden", optimizer=optimizer)
