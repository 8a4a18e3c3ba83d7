"""Internals of Keras (version 3.15) that this package relies on; those of losses are in `keras_losses`."""

import contextlib
import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras.src.backend.common import global_state, masking
from keras.src.models.functional import Functional, functional_like_constructor
from keras.src.ops import numpy as numpy_operations
from keras.src.random import seed_generator
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

from idmatters_tf._keras_types import Tensor


def seed_states(model: keras.Model) -> list[keras.Variable]:
    """The variables, (2,) each, that hold the state of the model's `keras.random.SeedGenerator`s, as in dropout.

    They are among `model.variables`, but neither weights nor saved with them.
    """
    return [variable for variable in model.variables if variable.path.endswith("seed_generator_state")]


def random_layers(model: keras.Model) -> list[str]:
    """The names of the layers that own a random generator, at any depth of nesting."""
    layers: Any = model._flatten_layers(include_self=False)
    return [layer.name for layer in layers if getattr(layer, "seed_generator", None) is not None]


def mask_of(tensor: Tensor) -> Tensor | None:
    """The mask that `keras.layers.Masking`, or an `Embedding` with `mask_zero`, has attached to a model's output."""
    return masking.get_keras_mask(tensor)


def set_mask(tensor: Tensor, mask: Tensor | None) -> None:
    """Attaches a mask to a tensor, as a layer does to its outputs; None takes it away."""
    masking.set_keras_mask(tensor, mask)


@dataclasses.dataclass(frozen=True)
class RunningFit:
    """The call of `model.fit` that is under way.

    Attributes:
        callbacks: the list that Keras goes through at each event, its own `History` and progress bar included.
        data: what was given as `x`; None where Keras has made it into something else.
        initial_epoch, epochs, steps_per_epoch, validation_data: as given to `fit`.
    """

    callbacks: list[keras.callbacks.Callback]
    data: Any
    initial_epoch: int
    epochs: int
    steps_per_epoch: int | None
    validation_data: Any
    _iterator: Any

    def keep_order(self) -> None:
        """Keeps Keras from shuffling the batches of a `PyDataset`, and from counting those of an earlier `fit`."""
        self._iterator.data_adapter.shuffle = False
        self._iterator._num_batches = self.data.num_batches

    def begin_epoch_at(self, batch: int) -> None:
        """Makes the next epoch begin with a later batch: the loop counts from there, and takes its data in order."""
        iterator = self._iterator
        whole_epoch = type(iterator)._enumerate_iterator

        def rest_of_epoch():
            del iterator._enumerate_iterator
            # Keras only counts here; the data are taken by the training function.
            return (each for each in whole_epoch(iterator) if each[0] >= batch)

        iterator._enumerate_iterator = rest_of_epoch


def running_fit(model: keras.Model) -> RunningFit | None:
    """The `fit` of the model further up in the call stack: Keras tells a callback of no other way.

    None where there is none, or where the model has a `fit` with a loop of its own.
    """
    frame = sys._getframe(1)
    while frame is not None:
        found = frame.f_locals
        if found.get("self") is model and frame.f_code.co_name == "fit" and "epoch_iterator" in found:
            adapter = found["epoch_iterator"].data_adapter
            return RunningFit(
                found["callbacks"].callbacks,
                adapter.py_dataset if isinstance(adapter, PyDatasetAdapter) else None,
                found["initial_epoch"],
                found["epochs"],
                found["steps_per_epoch"],
                found["validation_data"],
                found["epoch_iterator"],
            )
        frame = frame.f_back
    return None


def start_at_epoch(model: keras.Model, epoch: int | None) -> None:
    """Has `fit` begin with an epoch other than its `initial_epoch`; None takes that back. For `on_train_begin`."""
    model._initial_epoch = epoch


def build_for_training(model: keras.Model, batch: Any) -> None:
    """Creates the variables of the model, its metrics and optimizer that the first training step would create."""
    built: Any = model
    try:
        built._symbolic_build(data_batch=batch)
    except (RuntimeError, ValueError, TypeError, NotImplementedError):
        # A model with a training step of its own may have no `call`: its parts are what is trained.
        parts = [layer for layer in layers_within(model) if layer is not model]
        if type(model).train_step is keras.Model.train_step or not parts or not all(each.built for each in parts):
            raise


def outside_of_graphs() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which variables are made, read and assigned at once, also while TensorFlow traces."""
    if keras.backend.backend() != "tensorflow":
        return contextlib.nullcontext()
    import tensorflow as tf

    return tf.init_scope()


def global_seed_state() -> keras.Variable | None:
    """The state of the generator behind random operations without a seed; None where none has been asked for."""
    found = global_state.get_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR)
    return None if found is None else found.state


def make_global_seed_state() -> keras.Variable:
    """The same, made where there is none yet."""
    return seed_generator.global_seed_generator().state


def traced_training_steps(model: keras.Model) -> list[Any]:
    """TensorFlow's concrete functions of the training step, as far as they have been traced."""
    train_function: Any = getattr(model, "train_function", None)
    if not inspect.isfunction(train_function):
        return []
    parts = inspect.getclosurevars(train_function).nonlocals.values()
    found = [part._list_all_concrete_functions() for part in parts if hasattr(part, "_list_all_concrete_functions")]
    return [concrete for several in found for concrete in several]


def graph_of(operation: Any) -> Any:
    """The graph of a functional or a built Sequential model, a `Functional`; None for everything else."""
    if isinstance(operation, keras.Sequential):
        return operation._functional
    return operation if isinstance(operation, Functional) else None


def has_functional_constructor(model: keras.Model) -> bool:
    """Whether the class of a functional model is called with (inputs, outputs, name)."""
    return functional_like_constructor(type(model))


def run_graph(
    graph: Any, inputs: Any, call: Callable[..., Any], operation: Callable[[Any], Any] = lambda operation: operation
) -> Any:
    """The outputs of a functional model's graph where each node's operation is called by a function of ours.

    What `keras.models.clone_model(call_function=)` does inside, but without its serialisation of the loss and with
    nested Sequential models.

    Args:
        graph: a `Functional`, see `graph_of`.
        inputs: symbolic or concrete tensors, in the structure of the model's inputs.
        call: a function of (operation, *arguments of the call) that returns the operation's outputs.
        operation: what stands for each operation of the graph.
    """
    return graph._run_through_graph(inputs, operation_fn=operation, call_fn=call)


def standardized_inputs(graph: Any, inputs: Any) -> Any:
    """Concrete inputs as the flat list of tensors, in the declared dtypes, that a functional model works on."""
    return graph._standardize_inputs(inputs)


def input_operations(graph: Any) -> Any:
    """The `InputLayer`s of a functional model, in the structure of its inputs."""
    return keras.tree.map_structure(lambda tensor: tensor._keras_history.operation, graph.input)


def producer(tensor: Any) -> Any:
    """The node that computed a symbolic tensor, with `operation`, `input_tensors` and `is_input`."""
    operation, place, _ = tensor._keras_history
    return operation._inbound_nodes[place]


def nodes(graph: Any) -> list[Any]:
    """The nodes of a functional model: `operation`, `input_tensors`, `output_tensors`."""
    return [node for level in graph._nodes_by_depth.values() for node in level]


def is_addition(operation: Any) -> bool:
    """Whether an operation is `keras.layers.Add` or the `+` of two symbolic tensors."""
    return isinstance(operation, (keras.layers.Add, numpy_operations.Add))


def layers_within(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """The layer and all layers inside of it, outer ones first."""
    layers: Any = layer._flatten_layers()
    return layers


def copy_of(operation: Any) -> Any:
    """A new operation made from the configuration of another one, its name kept; a `Lambda` from its function."""
    if type(operation) is keras.layers.Lambda:
        # Its configuration holds byte code, which Keras rightly refuses to run, and which has lost its globals.
        return keras.layers.Lambda(
            operation.function,
            operation._output_shape,
            operation.mask,
            operation.arguments,
            **keras.layers.Layer.get_config(operation),
        )
    copied = type(operation).from_config(operation.get_config())
    copied.name = operation.name
    return copied


def set_path(variable: keras.Variable, path: str) -> None:
    """Names a variable as it would be named inside of other models."""
    variable._path = path


def compile_arguments(model: keras.Model) -> dict[str, Any] | None:
    """What `model.compile` was called with, as objects; None for a model that was not, or that overrides `compile`."""
    if not model.compiled or type(model).compile is not keras.Model.compile:
        return None
    return dict(model._compile_config.config)


def loss_arguments(loss: keras.losses.Loss) -> dict[str, Any]:
    """Return the arguments of a loss's function, which `Huber` and others leave out of their configuration."""
    return dict(getattr(loss, "_fn_kwargs", {}))


def variable_key(optimizer: keras.optimizers.Optimizer, variable: keras.Variable) -> Any:
    """What an optimizer knows a variable by."""
    return optimizer._var_key(variable)


def optimized_variables(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """The variables that an optimizer was built for; empty before."""
    return list(optimizer._trainable_variables) if optimizer.built else []


def value_outside_functions(variable: keras.Variable) -> np.ndarray:
    """Return the current value of a variable, also while TensorFlow traces a function."""
    with outside_of_graphs():
        return np.asarray(keras.ops.convert_to_numpy(variable.value))


def replicas(optimizer: keras.optimizers.Optimizer) -> int:
    """Return the number of replicas of the `tf.distribute` strategy that an optimizer was created under, 1 without."""
    return getattr(getattr(optimizer, "_distribution_strategy", None), "num_replicas_in_sync", 1)


def weight_averages(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """The moving averages of the variables that an optimizer was built for with `use_ema`; empty without it."""
    if not optimizer.built or not optimizer.use_ema:
        return []
    averages: Any = optimizer._model_variables_moving_average
    return list(averages)


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of a layer, or of an operation, in a model's graph.

    Attributes:
        name: of the operation; "nested/layer" inside of a nested model.
        operation: what is called.
        inputs, outputs: the symbolic tensors that it takes and returns.
        node: Keras' own record; None for the way out of a nested model.
        masks: the symbolic tensors, not of floating point, that it takes as arguments called "mask" or "..._mask". They
            are not among `inputs`.
        way: "in" and "out" for the two calls of a nested model's name; None for all others.
    """

    name: str
    operation: Any
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    node: Any
    masks: tuple[Any, ...] = ()
    way: str | None = None


def graph_calls(model: keras.Model) -> list[Call] | None:
    """The calls of a functional or Sequential model in the order of their execution; None for other models.

    Nested models are gone through call by call, but for those that are called several times or with more than one
    tensor.
    """
    graph = graph_of(model)
    return None if graph is None else list(_calls_of(graph, ""))


def _calls_of(graph: Any, prefix: str) -> Iterator[Call]:
    by_depth: Any = graph._nodes_by_depth
    nodes = [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth]]
    nodes = [node for node in nodes if node.operation is not None and not node.is_input]
    for node in nodes:
        name, outputs = prefix + node.operation.name, tuple(node.outputs)
        inputs, masks = _inputs_and_masks(node)
        nested = _nested_graph(node, nodes, inputs)
        if nested is None:
            yield Call(name, node.operation, inputs, outputs, node, masks)
            continue
        yield Call(name, node.operation, inputs, tuple(nested.inputs), node, masks, "in")
        yield from _calls_of(nested, f"{name}/")
        yield Call(name, node.operation, tuple(nested.outputs), outputs, None, (), "out")


def _inputs_and_masks(node: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The symbolic tensors that a node takes as inputs and as masks.

    Keras passes masks by the names of the arguments, and records them where it passes them itself, too.
    """
    args, kwargs = node.arguments.args, node.arguments.kwargs
    try:
        given = inspect.signature(node.operation.call).bind_partial(*args).arguments
    except (TypeError, ValueError):
        given = {"": args}
    inputs: list[Any] = []
    masks: list[Any] = []
    for name, value in [*given.items(), *kwargs.items()]:
        is_mask = name == "mask" or name.endswith("_mask")
        for tensor in keras.tree.flatten(value):
            if isinstance(tensor, keras.KerasTensor):
                (masks if is_mask and not keras.backend.is_float_dtype(tensor.dtype) else inputs).append(tensor)
    return tuple(inputs), tuple(masks)


def _nested_graph(node: Any, nodes: Sequence[Any], inputs: Sequence[Any]) -> Any:
    """The graph of the nested model that a node calls, where its calls can stand for the node; else None."""
    graph = graph_of(node.operation)
    if graph is None or type(node.operation).call not in (Functional.call, keras.Sequential.call):
        return None
    one_tensor = len(inputs) == len(graph.inputs) == 1
    # training=True.
    given = any(value is not None for name, value in node.arguments.kwargs.items() if name != "mask")
    once = sum(other.operation is node.operation for other in nodes) == 1
    return graph if one_tensor and once and not given else None


def graph_inputs(model: keras.Model, inputs: Any) -> dict[int, Tensor]:
    """The inputs of a functional or Sequential model as it takes them, by the identity of their symbolic tensors."""
    graph = graph_of(model)
    tensors = keras.tree.map_structure(keras.ops.convert_to_tensor, inputs)
    values = keras.tree.flatten(standardized_inputs(graph, tensors))
    return {id(symbolic): value for symbolic, value in zip(graph.inputs, values, strict=True)}


# By the identity of a call's first output and the place among its inputs: the mask attached to the input.
AttachedMasks = dict[tuple[int, int], Tensor]


def run_calls(
    calls: Iterable[Call], values: dict[int, Tensor], training: bool, attached: AttachedMasks | None = None
) -> AttachedMasks:
    """Execute calls one after the other.

    Keras attaches masks to tensors. Layers read them, hand them on and remove them again, so that they depend on the
    order of all calls of a model: each call of a part of the model gets those of the whole one.

    Args:
        calls: in the order of their execution.
        values: by the identity of their symbolic tensors, what has been computed; the calls' outputs are added.
        training: how layers are called that have such an argument.
        attached: the masks of the calls' inputs, from a run of the whole model; those that Keras attaches if None.

    Returns:
        The masks of the calls' inputs at the time of each call.
    """
    found: AttachedMasks = {}
    entered: dict[int, tuple[Tensor, Tensor | None]] = {}
    for call in calls:
        tensors = [values[id(tensor)] for tensor in call.inputs]
        for place, tensor in enumerate(tensors):
            key = id(call.outputs[0]), place
            if attached is not None:
                set_mask(tensor, attached.get(key))
            mask = mask_of(tensor)
            if mask is not None:
                found[key] = mask
        arguments, options = (tensors, {}) if call.node is None else call.node.arguments.fill_in(values)
        if call.way == "in":
            explicit = options.get("mask")
            mask = mask_of(tensors[0]) if explicit is None else explicit
            entered[id(call.operation)] = tensors[0], mask
            outputs = keras.tree.flatten(standardized_inputs(graph_of(call.operation), tensors[0]))
            if mask is not None:
                set_mask(outputs[0], mask)
        elif call.way == "out":
            outputs = tensors
            if id(call.operation) in entered and call.operation.supports_masking:
                first, mask = entered[id(call.operation)]
                call.operation._set_mask_metadata(first, outputs, mask)
        else:
            if "training" in getattr(call.operation, "_call_context_args", ()):
                options = {**options, "training": training}
            outputs = keras.tree.flatten(call.operation(*arguments, **options))
        values.update(zip(map(id, call.outputs), outputs, strict=True))
    return found
