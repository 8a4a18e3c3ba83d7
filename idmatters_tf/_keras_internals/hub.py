"""Tables of KerasHub: the repeated layers of its backbones, and the last weights of its blocks, by class.

Backbones have no functional constructor. A backbone that is not in the table, or not derived from one, is unknown here.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import keras

from idmatters_tf._keras_internals.graphs import is_addition, is_position_embedding, layers_within
from idmatters_tf._keras_types import Config

Layers: TypeAlias = Sequence[keras.layers.Layer]
# Function that returns the layers of a backbone, see `RepeatedLayers`.
FindLayers: TypeAlias = Callable[[keras.Model], list[list[Layers]]]


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

    layers: FindLayers
    count: str = "num_layers"
    kind: Callable[[Config, int], int] = _is_uniform
    entries: tuple[str, ...] = ()

    def names(self, stage: int, index: int, layers: Layers) -> tuple[str, ...]:
        """Return the names of the layers at an index, or of the block of a stage."""
        if self.layers is _stages:
            return (f"stack{stage}_block{index}",)
        return tuple(str(layer.path) for layer in layers)


def _attributes(*names: str) -> FindLayers:
    """Return a function that reads the layers from lists of a backbone."""

    def layers(backbone: keras.Model) -> list[list[Layers]]:
        return [list(zip(*(getattr(backbone, name) for name in names), strict=True))]

    return layers


def _encoder(name: str) -> FindLayers:
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


def is_task(model: object) -> bool:
    """Return True for a task of KerasHub, also for one of a derived class."""
    # Without an import of KerasHub, which takes seconds.
    hub = sys.modules.get("keras_hub")
    return hub is not None and isinstance(model, hub.models.Task)


def backbone_of(model: keras.layers.Layer) -> tuple[keras.Model, RepeatedLayers] | None:
    """Return the backbone of a KerasHub task, or the model if it is a backbone, and its layers; None if unknown."""
    backbone: keras.Model = getattr(model, "backbone", None) or model
    kinds = [kind for kind in type(backbone).__mro__ if kind.__module__.startswith("keras_hub.")]
    known = next((BACKBONES[kind.__name__] for kind in kinds if kind.__name__ in BACKBONES), None)
    return None if known is None else (backbone, known)


def lora_rank(backbone: keras.Model) -> int | None:
    """Return the rank of the LoRA matrices of a backbone; None without any."""
    return getattr(backbone, "_lora_rank", None)


def repeated_blocks(model: keras.Model) -> Iterator[tuple[str, keras.layers.Layer]]:
    """Yield (name, layer or sum) of the residual blocks of KerasHub's backbones in a model."""
    for part in layers_within(model):
        if (found := backbone_of(part)) is None or found[0] is not part:
            continue
        backbone, known = found
        for stage, rows in enumerate(known.layers(backbone)):
            for index, layers in enumerate(rows):
                blocks = layers if known.layers is not _stages else [layer for layer in layers if is_addition(layer)]
                yield from zip(known.names(stage, index, blocks), blocks, strict=True)


@dataclasses.dataclass(frozen=True)
class HubBlock:
    """A layer of KerasHub that computes residual sums.

    Attributes:
        sums: for each sum, the attributes of the layer with the last weights of its branches. Those that are None,
            such as the cross-attention of a decoder without it, have no sum.
        required: values of attributes without which the layer normalizes its sums, or its branches by (1 + weight).
    """

    sums: tuple[tuple[str, ...], ...]
    required: tuple[tuple[str, object], ...] = ()


_PRE_NORM = (("normalize_first", True),)
_LLAMA = HubBlock((("_self_attention_layer._output_dense",), ("_feedforward_output_dense",)))
_GEMMA = HubBlock(
    (("attention.output_dense",), ("ffw_linear",)),
    (("use_post_attention_norm", False), ("use_post_ffw_norm", False)),
)
# KerasHub 0.29 to 0.32.
_HUB_BLOCKS = {
    "TransformerEncoder": HubBlock((("_self_attention_layer",), ("_feedforward_output_dense",)), _PRE_NORM),
    "TransformerDecoder": HubBlock(
        (("_self_attention_layer",), ("_cross_attention_layer",), ("_feedforward_output_dense",)), _PRE_NORM
    ),
    "LlamaTransformerDecoder": _LLAMA,
    "MistralTransformerDecoder": _LLAMA,
    "QwenTransformerDecoder": _LLAMA,
    "Qwen3TransformerDecoder": _LLAMA,
    "Phi3Decoder": HubBlock((("attention.output_dense",), ("feedforward_output_dense",))),
    "GemmaDecoderBlock": _GEMMA,
    "Gemma3DecoderBlock": _GEMMA,
    "BloomDecoder": HubBlock((("_self_attention_layer._output_dense",), ("_mlp_output_dense",))),
    "FalconTransformerDecoder": HubBlock((("attention_layer.output_dense",), ("dense_4h_to_h",))),
    # x + attention(x) + mlp(x) is one sum of two branches.
    "GPTNeoXDecoder": HubBlock((("_self_attention_layer._output_dense", "_feedforward_output_dense"),)),
    "T5TransformerLayer": HubBlock(
        (("self_attention.output_projector",), ("cross_attention.output_projector",), ("output_projector",))
    ),
    "SmolLM3DecoderLayer": HubBlock((("self_attn.o_proj",), ("mlp.down_proj",))),
    "ViTEncoderBlock": HubBlock((("mha",), ("mlp.dense_2",))),
    "CLIPEncoderLayer": HubBlock((("attention",), ("dense_2",))),
    "SigLIPEncoderLayer": HubBlock((("self_attn",), ("mlp.fc2",))),
    "DINOV2Layer": HubBlock((("layer_scale1.lambda1",), ("layer_scale2.lambda1",))),
}
# Layers that apply some of the blocks above one after the other.
_HUB_STACKS = ("ViTEncoder", "DINOV2Encoder")
# Layers without residual sums.
_HUB_EMBEDDINGS = (
    "CLIPVisionEmbedding",
    "DINOV2Embedding",
    "ReversibleEmbedding",
    "SigLIPVisionEmbedding",
    "TokenAndPositionEmbedding",
    "ViTPatchingAndEmbedding",
)


def is_from_hub(operation: object) -> bool:
    """Return True if a layer is one of KerasHub."""
    return type(operation).__module__.startswith("keras_hub.")


def derives_from_hub(operation: object) -> bool:
    """Return True if a layer is one of KerasHub, or of a class derived from one."""
    return any(kind.__module__.startswith("keras_hub.") for kind in type(operation).__mro__)


def hub_block(layer: object) -> HubBlock | None:
    """Return the table's entry for a layer of KerasHub; None for other layers."""
    return _HUB_BLOCKS.get(type(layer).__name__) if is_from_hub(layer) else None


def hub_blocks_within(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Return the blocks of a layer of KerasHub that is a stack of known blocks; an empty list for other layers."""
    if not is_from_hub(layer) or type(layer).__name__ not in _HUB_STACKS:
        return []
    return [part for part in layers_within(layer) if hub_block(part) is not None]


def is_unlisted(layer: keras.layers.Layer) -> bool:
    """Return True for a layer of KerasHub that contains other layers and is in no table."""
    name = type(layer).__name__
    is_listed = name in _HUB_BLOCKS or name in (*_HUB_STACKS, *_HUB_EMBEDDINGS)
    is_listed = is_listed or is_position_embedding(layer)
    return is_from_hub(layer) and not is_listed and len(layers_within(layer)) > 1
