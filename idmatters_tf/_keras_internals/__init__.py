"""Internals of Keras 3.13 to 3.16. No other module of the package uses any.

graphs      graphs of functional models, their calls, copies and masks
hub         tables of KerasHub's models: repeated layers, and last weights of their blocks
structure   operations of models in order, with those of nested models in their place
variables   variables of random generators, recurrent layers and optimizers
fit         the running `model.fit`, its callbacks, the arguments of `model.compile`
losses      compiled losses, their labels and weights
scope       evaluation and training of models without changing them
versions    differences between the versions
replicas    training on several replicas of tf.distribute
"""

# ruff: noqa: F401 - the modules above under one name

from idmatters_tf._keras_internals.fit import (
    CALLBACK_INTERNALS,
    OBSERVERS,
    RunningFit,
    build_for_training,
    compile_arguments,
    copy_metric,
    flush_events,
    loss_arguments,
    running_fit,
)
from idmatters_tf._keras_internals.graphs import (
    Call,
    ModelGraph,
    attention_handlers,
    call_arguments,
    copy_operation,
    get_graph,
    get_mask,
    graph_inputs,
    has_functional_constructor,
    input_operations,
    intercepted,
    is_addition,
    is_position_embedding,
    kept_mask,
    layers_within,
    overrides_call,
    producer,
    read_graph,
    run_calls,
    run_graph,
    set_mask,
    skip_index,
    transforms_features,
)
from idmatters_tf._keras_internals.hub import (
    HubBlock,
    RepeatedLayers,
    backbone_of,
    hub_block,
    hub_blocks_within,
    is_from_hub,
    is_unlisted,
    repeated_blocks,
)
from idmatters_tf._keras_internals.losses import (
    CompiledLosses,
    checked_arrays,
    compute_loss,
    couples_examples,
    has_compiled_loss,
    overrides_compute_loss,
    plain_function,
    weighted,
)
from idmatters_tf._keras_internals.scope import kept_training_state, substitute_values
from idmatters_tf._keras_internals.variables import (
    DERIVED,
    dense_gradient,
    distribution_layouts,
    global_seed_state,
    has_global_seed,
    learning_rate_schedule,
    local_value,
    make_global_seed_state,
    optimized_variables,
    optimizer_attributes,
    optimizer_variables,
    own_trainable_variables,
    read_adapted,
    recurrent_states,
    replicas,
    restore_adapted,
    seed_states,
    set_path,
    state_attributes,
    strategy_scope,
    value_outside_functions,
    variable_key,
    variable_owners,
    weight_averages,
    weight_decay_exclusions,
)
from idmatters_tf._keras_internals.versions import OPTIMIZER_MAPS_SINCE_3_15, ORBAX_CHECKPOINTS_SINCE_3_14
