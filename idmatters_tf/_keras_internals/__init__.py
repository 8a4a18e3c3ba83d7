"""Internals of Keras 3.13 to 3.16. No other module of the package uses any.

The modules, with the private names that they need. All versions have these names, unless a version is given.

callbacks     attributes of Keras' callbacks that are not state
fit           the running `model.fit`: the `EpochIterator` and `CallbackList` that it creates, `_initial_epoch`,
              `_symbolic_build`, `_compile_config`, `_should_eval`, and `_enumerate_iterator` of its iterator
graphs        graphs of functional models, their calls, copies and masks: `Functional`, `_functional`, `_inbound_nodes`,
              `_nodes_by_depth`, `_keras_history`, `_run_through_graph`, `_standardize_inputs`, `_flatten_layers`,
              `_call_context_args`, `_set_mask_metadata`
hub           tables of KerasHub's models: repeated layers, last weights of their blocks, and `_lora_rank`; names of
              KerasHub 0.29.1 (Keras 3.13 and 3.14) to 0.32
keras_source  all modules and classes below `keras.src` that the others use
losses        compiled losses, their labels and weights: `CompileLoss`, `_compile_loss`, `_flat_losses`,
              `_user_loss_weights`, `_compute_loss`
observation   batches, outputs and gradients that `fit` computes: `get_data_adapter`
optimizers    points within an update: `_clip_gradients`, `_get_variable_index`
random_state  generators behind random operations without a seed: `global_state`, `seed_generator`
replicas      training on several replicas of tf.distribute; functions that it replaces, see `replicas.changes`
scope         evaluation and training of models without changing them: `get_stateless_scope`, `_compile_metrics`,
              `_clear_losses`, `_losses`, `_loss_ids`, `_metrics`, `_value`
structure     operations of models in order, with those of nested models in their place: `_nodes_by_depth`
variables     variables of random generators, recurrent layers and optimizers: `_trainable_variables`, `_path`,
              `_seed_generators`, `_var_key`, `_model_variables_moving_average`, `_exclude_from_weight_decay`,
              `_learning_rate`, `_layout_map`
versions      `OrbaxCheckpoint`, `ScheduleFreeAdamW` and the division of activity losses (since 3.14), `OptimizerMap`
              (since 3.15), and `_epoch` of data adapters (since 3.16)
"""

# ruff: noqa: F401 - the modules above under one name

from idmatters_tf._keras_internals.callbacks import (
    CALLBACK_INTERNALS,
    OBSERVERS,
    flush_events,
    model_of,
    read_log,
    restore_log,
)
from idmatters_tf._keras_internals.fit import (
    RunningFit,
    build_for_training,
    compile_arguments,
    copy_metric,
    loss_arguments,
    record_fits,
    running_fit,
)
from idmatters_tf._keras_internals.graphs import (
    Call,
    CallFunction,
    Functional,
    ModelGraph,
    Node,
    attention_handlers,
    call_arguments,
    copy_operation,
    get_graph,
    get_mask,
    graph_inputs,
    graph_of,
    has_functional_constructor,
    input_operations,
    intercepted,
    is_addition,
    is_position_embedding,
    kept_mask,
    layers_within,
    node_arguments,
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
    derives_from_hub,
    hub_block,
    hub_blocks_within,
    is_from_hub,
    is_task,
    is_unlisted,
    lora_rank,
    repeated_blocks,
)
from idmatters_tf._keras_internals.losses import (
    CompiledLosses,
    checked_arrays,
    compute_loss,
    couples_examples,
    for_one_replica,
    has_compiled_loss,
    loss_function,
    overrides_compute_loss,
)
from idmatters_tf._keras_internals.optimizers import GradientObserver, inner_optimizer, variable_index
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
