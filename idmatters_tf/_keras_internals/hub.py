"""Table of KerasHub's models: their repeated layers, by the class of the backbone.

Backbones have no functional constructor. A backbone that is not in the table, or not derived from one, is unknown here.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import keras

from idmatters_tf._keras_internals.graphs import is_addition, layers_within

Config: TypeAlias = Mapping[str, Any]
Layers: TypeAlias = Sequence[keras.layers.Layer]

# Names of layers of `keras_hub.layers` that compute x + f(x).
RESIDUAL_LAYERS = ("TransformerDecoder", "TransformerEncoder")


def _is_uniform(_: Config, __: int) -> int:
    return 0


@dataclasses.dataclass(frozen=True)
class RepeatedLayers:
    """Repeated layers of a class of backbones.

    Attributes:
        layers: function that returns the layers of a backbone: for each stage a list with the layers at each index,
            several for models with an encoder and a decoder, or for a stage that consists of several layers.
        count: entry of the configuration with the number of layers, or with one number for each stage.
        kind: function (configuration, index in the stage) -> kind. A layer keeps its kind.
        entries: entries of the configuration with one value for each layer.
    """

    layers: Callable[[Any], list[list[Layers]]]
    count: str = "num_layers"
    kind: Callable[[Config, int], Any] = _is_uniform
    entries: tuple[str, ...] = ()

    def names(self, stage: int, index: int, layers: Layers) -> tuple[str, ...]:
        """Return the names of the layers at an index, or of the block of a stage."""
        if self.layers is _stages:
            return (f"stack{stage}_block{index}",)
        return tuple(str(layer.path) for layer in layers)


def _attributes(*names: str) -> Callable[[Any], list[list[Layers]]]:
    """Return a function that reads the layers from lists of a backbone."""

    def layers(backbone: Any) -> list[list[Layers]]:
        return [list(zip(*(getattr(backbone, name) for name in names), strict=True))]

    return layers


def _encoder(name: str) -> Callable[[Any], list[list[Layers]]]:
    """Return a function that reads the layers from the encoder inside of a backbone."""
    return lambda backbone: [[(layer,) for layer in backbone.get_layer(name).encoder_layers]]


def _stages(backbone: Any) -> list[list[Layers]]:
    """Return the layers of the blocks of a `ResNetBackbone`, which are named after stage and block."""
    return [
        [
            [layer for layer in backbone.layers if layer.name.startswith(f"stack{stage}_block{index}_")]
            for index in range(count)
        ]
        for stage, count in enumerate(backbone.stackwise_num_blocks)
    ]


def _is_first(_: Config, index: int) -> bool:
    return index == 0


def _is_sparse(config: Config, index: int) -> bool:
    return index not in (config["mlp_only_layers"] or ()) and (index + 1) % config["decoder_sparse_step"] == 0


_DECODER = RepeatedLayers(_attributes("transformer_layers"))
_BOTH = _attributes("encoder_transformer_layers", "decoder_transformer_layers")
_UNIFORM = (
    "BertBackbone BloomBackbone DebertaV3Backbone DistilBertBackbone ElectraBackbone ESMBackbone FalconBackbone "
    "FNetBackbone GPT2Backbone GPTNeoXBackbone LlamaBackbone MistralBackbone MixtralBackbone OPTBackbone Phi3Backbone "
    "QwenBackbone Qwen3Backbone QwenMoeBackbone RobertaBackbone RoformerV2Backbone"
)
BACKBONES: dict[str, RepeatedLayers] = {
    **dict.fromkeys(_UNIFORM.split(), _DECODER),
    "BartBackbone": RepeatedLayers(_BOTH),
    "WhisperBackbone": RepeatedLayers(_BOTH),
    # The first layers contain the relative positions.
    "T5Backbone": RepeatedLayers(_BOTH, kind=_is_first),
    # Local and global attention alternate.
    "GemmaBackbone": RepeatedLayers(
        _DECODER.layers, kind=lambda config, index: index % 2 if config["use_sliding_window_attention"] else 0
    ),
    "Gemma3Backbone": RepeatedLayers(
        _DECODER.layers, kind=lambda config, index: index % 6 == 5 if config["use_sliding_window_attention"] else 0
    ),
    "GptOssBackbone": RepeatedLayers(_DECODER.layers, kind=lambda _, index: index % 2),
    "Qwen3MoeBackbone": RepeatedLayers(_DECODER.layers, kind=_is_sparse),
    "SmolLM3Backbone": RepeatedLayers(_DECODER.layers, entries=("layer_types", "rope_layer_enabled_list")),
    "ViTBackbone": RepeatedLayers(_encoder("vit_encoder")),
    "DeiTBackbone": RepeatedLayers(_encoder("deit_encoder")),
    # The first block of a stage changes the shape.
    "ResNetBackbone": RepeatedLayers(_stages, "stackwise_num_blocks", _is_first),
}


def backbone_of(model: Any) -> tuple[Any, RepeatedLayers] | None:
    """Return the backbone of a KerasHub task, or the model if it is a backbone, and its layers; None if unknown."""
    backbone = getattr(model, "backbone", None) or model
    kinds = [kind for kind in type(backbone).__mro__ if kind.__module__.startswith("keras_hub.")]
    known = next((BACKBONES[kind.__name__] for kind in kinds if kind.__name__ in BACKBONES), None)
    return None if known is None else (backbone, known)


def repeated_blocks(model: keras.Model) -> Iterator[tuple[str, Any]]:
    """Yield (name, layer or sum) of the residual blocks of KerasHub's backbones in a model."""
    for part in layers_within(model):
        if (found := backbone_of(part)) is None or found[0] is not part:
            continue
        backbone, known = found
        for stage, rows in enumerate(known.layers(backbone)):
            for index, layers in enumerate(rows):
                blocks = layers if known.layers is not _stages else [layer for layer in layers if is_addition(layer)]
                yield from zip(known.names(stage, index, blocks), blocks, strict=True)


def is_residual_layer(operation: Any) -> bool:
    """Return True for a layer of `keras_hub.layers` that computes x + f(x)."""
    kind = type(operation)
    return kind.__module__.startswith("keras_hub.") and kind.__name__ in RESIDUAL_LAYERS
