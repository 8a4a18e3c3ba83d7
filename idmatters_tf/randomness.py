"""Where a Keras model keeps the state of its random generators. Nothing else here relies on how Keras does that."""

import keras


def seed_states(model: keras.Model) -> list[keras.Variable]:
    """The variables, (2,) each, that hold the state of the model's `keras.random.SeedGenerator`s, as in dropout.

    They are among `model.variables`, but neither weights nor saved with them (Keras 3.15).
    """
    return [variable for variable in model.variables if variable.path.endswith("seed_generator_state")]


def random_layers(model: keras.Model) -> list[str]:
    """The names of the layers that own a random generator, at any depth of nesting."""
    names = []
    for layer in model._flatten_layers(include_self=False):
        if getattr(layer, "seed_generator", None) is not None:
            names.append(layer.name)
    return names
