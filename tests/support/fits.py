"""Models, and fits whose logs are recorded, for comparisons of several replicas with one device."""

import keras
import numpy as np


def build(shape, *layers, kind=keras.Model, policy="float32", **compiled):
    """Return a compiled model.

    Layers may be given by functions without arguments, and so may the optimizer: they are called with the dtype policy,
    which remains set.
    """
    keras.config.set_dtype_policy(policy)
    output = inputs = keras.Input(shape)
    for layer in layers:
        output = (layer if isinstance(layer, keras.Layer) else layer())(output)
    model = kind(inputs, output)
    optimizer = compiled.pop("optimizer", "sgd")
    model.compile(optimizer() if callable(optimizer) else optimizer, **{"loss": "mse", **compiled})
    return model


class Logs(keras.callbacks.Callback):
    """Callback that records the logs of batches."""

    def __init__(self):
        super().__init__()
        self.found = {}

    def on_train_batch_end(self, batch, logs=None):
        for name, value in logs.items():
            self.found.setdefault(f"batch {name}", []).append(np.array(value))

    def on_test_batch_end(self, batch, logs=None):
        self.on_train_batch_end(batch, {f"evaluated {name}": value for name, value in logs.items()})


def fit(model, x, y=None, **arguments):
    """Return the history of a fit, by default of one epoch without shuffling, and the logs of its batches."""
    logs, callbacks = Logs(), arguments.pop("callbacks", ())
    size = 12 if hasattr(keras.tree.flatten(x)[0], "shape") else None
    arguments = {"batch_size": size, "verbose": 0, "shuffle": False, **arguments}
    return {**model.fit(x, y, callbacks=[logs, *callbacks], **arguments).history, **logs.found}


def evaluate(model, x, y, sample_weight=None):
    """Return an evaluation of batches of four examples and of one, of which other replicas receive none."""
    logs = Logs()
    weights = None if sample_weight is None else sample_weight[:5]
    found = model.evaluate(x[:5], y[:5], 4, sample_weight=weights, verbose=0, return_dict=True, callbacks=[logs])
    return {**{f"evaluated {name}": [value] for name, value in found.items()}, **logs.found}


def case(make, x, y=None, evaluates=False, **arguments):
    """Return functions that build a model and that run it."""

    def run(model):
        found = fit(model, x() if callable(x) else x, y, **arguments)
        return {**found, **evaluate(model, x, y, arguments.get("sample_weight"))} if evaluates else found

    return make, run


def compare(one, several):
    """Check that the results in a folder are those of one device."""
    paths = sorted(one.glob("*.npz"))
    assert paths
    assert {path.name for path in paths} == {path.name for path in several.glob("*.npz")}
    for path in paths:
        name, expected, found = path.stem, np.load(path), np.load(several / path.name)
        assert set(expected) == set(found), name
        # float16 rounds the gradients of parts of a batch.
        tolerance = 2e-3 if "mixed" in name or "scale" in name else 2e-2 if "bfloat16" in name else 3e-6
        for key, value in expected.items():
            # The loss of a step whose gradients overflow is not finite.
            assert np.isfinite(value).all() or ("overflow" in name and "loss" in key), f"{name}: {key}"
            size = np.abs(value[np.isfinite(value)]).max(initial=0.3)
            np.testing.assert_allclose(found[key], value, 0, tolerance * size, err_msg=f"{name}: {key}")
