"""Features of a trained classifier, and classifiers with a new head on them, for transfer learning."""

from collections.abc import Sequence
from typing import get_args

import keras

from idmatters_tf._arguments import check_choice, positive_integer, seed_number
from idmatters_tf._keras_internals import Functional, Node, get_graph, node_arguments, overrides_call, producer
from idmatters_tf._keras_types import Structure, Tensor
from idmatters_tf.layers import ClassNames, RandomProjection
from idmatters_tf.models._parts import build_head
from idmatters_tf.models.layout import Head


def features(model: keras.Model) -> keras.Model:
    """Return the model from the same inputs to the features in front of the last layer of a classifier.

    The last layer is a `keras.layers.Dense` or `RandomProjection`. Layers without weights that follow it and keep the
    shape, such as `ClassNames`, `Activation` and `Softmax`, are omitted. The last layer may be part of a nested model,
    as in exported models. Preprocessing layers stay.

    Args:
        model: a functional or built Sequential model with one output.

    Returns:
        A `keras.Model`, not compiled, that shares its layers and weights with `model`: training or freezing one trains
        or freezes the other.

    Raises:
        ValueError: the model is subclassed or not built, has several outputs, or does not end in such a layer.

    Example:

    >>> from idmatters_tf.models.cifar import identity_resnet
    >>> model = identity_resnet(blocks=1, widths=(8, 16), stem=8)
    >>> features(model).output_shape
    (None, 16)
    """
    return _make_model(_get_graph(model).input, _cut_last_layer(model), f"{model.name}_features")


def replace_head(
    model: keras.Model,
    classes: int,
    class_names: Sequence[str] | None = None,
    head: Head = "trained",
    seed: int = 0,
) -> keras.Model:
    """Return a classifier with the preprocessing and trunk of a model and a new last layer.

    The two models share the layers of the trunk, as usual with functional models in Keras: training the new model
    changes `model`. Load the file again for the old weights. `features(new_model).trainable = False` freezes everything
    but the new head.

    Args:
        model: a classifier as in `features`.
        classes: number of classes.
        class_names: one string per class, for a `ClassNames` layer named "classes"; None for no such layer.
        head: kind of the last layer, which is named "head": "trained" for a `Dense` layer with a bias and a uniform
            kernel of variance 1 / fan_in, "zero" for one with a kernel of zeros, or "random" for a frozen
            `RandomProjection`.
        seed: non-negative integer that determines the kernel of the head.

    Returns:
        A functional `keras.Model`, not compiled, from the same inputs to logits, float32 also behind a trunk of 16
        bits.

    Raises:
        ValueError: `features` does not accept the model, or another argument is invalid.
    """
    classes = positive_integer("classes", classes)
    check_choice("head", head, get_args(Head))
    seed_number(seed)
    if class_names is not None and len(class_names) != classes:
        raise ValueError(
            f"Argument `class_names` must have one name for each of the {classes} classes. Received: "
            f"{len(class_names)} names"
        )
    trunk = features(model)
    pooled: Tensor = trunk.output
    # Class scores need more than bfloat16's 8 bits.
    wide = "float64" if pooled.dtype == "float64" else "float32"
    logits = build_head(head, classes, seed, dtype=wide, name="head")(pooled)
    if class_names is not None:
        logits = ClassNames(class_names, dtype=wide, name="classes")(logits)
    return keras.Model(trunk.input, logits, name=model.name)


def _cut_last_layer(model: keras.Model) -> Tensor:
    """Return the symbolic input of the last layer, from new calls of nested models without that layer."""
    outputs = keras.tree.flatten(_get_graph(model).output)
    if len(outputs) != 1:
        raise ValueError(
            f"Argument `model` must have one output. Received: {model.name!r} with {len(outputs)}. Pass "
            f"keras.Model(model.input, output) for one of them."
        )
    tensor = outputs[0]
    while True:
        node = producer(tensor)
        operation = node.operation
        if (graph := get_graph(operation)) is not None:
            inner = _cut_last_layer(operation)
            trunk = _make_model(graph.input, inner, operation.name)
            arguments, options = node_arguments(node)
            return trunk(*arguments, **options)
        if isinstance(operation, (keras.layers.Dense, RandomProjection)):
            return node.input_tensors[0]
        if node.is_input or not _keeps_logits(node):
            raise ValueError(
                f"Argument `model` must end in a Dense or RandomProjection layer. Received: {model.name!r}, which ends "
                f"in {operation.name!r} ({type(operation).__name__}). Pass keras.Model(model.input, "
                f"model.get_layer(NAME).output) where NAME is its last Dense layer, or attach a head to its features."
            )
        tensor = node.input_tensors[0]


def _make_model(inputs: Structure, outputs: Tensor, name: str) -> keras.Model:
    """Return a functional model, frozen if all its layers are."""
    model = keras.Model(inputs, outputs, name=name)
    weighted = [layer for layer in model.layers if layer.weights]
    if weighted and not any(layer.trainable for layer in weighted):
        # Keras on TensorFlow ignores `model.trainable = True` where the model's own value is True already.
        model.trainable = False
    return model


def _get_graph(model: keras.Model) -> Functional:
    """Return the graph of a model.

    Raises:
        ValueError: the model has no graph, or overrides `call`.
    """
    graph = get_graph(model)
    if graph is None or overrides_call(model):
        name = f"{model.name!r} of class " if isinstance(model, keras.Model) else ""
        raise ValueError(
            f"Argument `model` must be a functional or a built Sequential keras.Model. Received: {name}"
            f"{type(model).__name__}. Build a Sequential model with model.build(input_shape), and others with "
            f"keras.Model(inputs, outputs)."
        )
    return graph


def _keeps_logits(node: Node) -> bool:
    """Return True if a call maps one tensor to one of the same shape and its operation has no weights."""
    operation, inputs, outputs = node.operation, node.input_tensors, node.output_tensors
    if len(inputs) != 1 or len(outputs) != 1 or tuple(inputs[0].shape) != tuple(outputs[0].shape):
        return False
    return isinstance(operation, keras.layers.Dropout) or not getattr(operation, "variables", ())
