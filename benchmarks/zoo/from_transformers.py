"""Small configurations of transformers: model types by a rule, and modules with their inputs.

The rule: of each task's mapping from model types to classes, so many in a seeded order. A type's
default configuration is reduced in depth, width and vocabulary; one that cannot be made with the
reduced width is made with its own, as long as it stays small.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import transformers
from torch import nn
from transformers.models.auto import modeling_auto

GROUP = "transformers"
LENGTH = 64
VOCABULARY = 2000
MOST_PARAMETERS = 50e6

# Task -> the mappings that list its model types, the class that makes a model, how many types.
_TASKS: dict[str, tuple[tuple[str, ...], str, int]] = {
    "encoder": (("MODEL_FOR_MASKED_LM_MAPPING_NAMES",), "AutoModelForMaskedLM", 24),
    "decoder": (("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",), "AutoModelForCausalLM", 24),
    "vision": (
        ("MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",),
        "AutoModelForImageClassification",
        24,
    ),
    "speech": (
        ("MODEL_FOR_CTC_MAPPING_NAMES", "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES"),
        "AutoModel",
        16,
    ),
    "segmentation": (
        ("MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES",),
        "AutoModelForSemanticSegmentation",
        8,
    ),
}
_DEPTH = (
    "num_hidden_layers num_layers n_layer n_layers encoder_layers decoder_layers"
    " num_encoder_layers num_decoder_layers"
)
_WIDTHS = {
    256: "hidden_size d_model n_embd n_embed embed_dim dim emb_dim",
    1024: "intermediate_size encoder_ffn_dim decoder_ffn_dim ffn_dim d_ff n_inner ffn_hidden_size",
    4: "num_attention_heads n_head n_heads encoder_attention_heads decoder_attention_heads",
    2: "num_key_value_heads num_experts_per_tok",
    8: "num_experts num_local_experts n_routed_experts moe_num_experts",
    64: "head_dim d_kv",
    128: "embedding_size moe_intermediate_size",
}
_LAYERS = 4


def names() -> Iterator[str]:
    """Task and model type, as `decoder-llama`."""
    for task, (mappings, _, count) in _TASKS.items():
        types = sorted({one for name in mappings for one in getattr(modeling_auto, name)})
        for kind in random.Random(task).sample(types, min(count, len(types))):
            yield f"{task}-{kind}"


def build(name: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A model of a type with random weights, and one sequence, image or recording."""
    task, _, kind = name.partition("-")
    factory = getattr(transformers, _TASKS[task][1])
    model = _small_model(factory, kind)
    return _FirstOutputs(model), _inputs(model, task)


def _small_model(factory: Any, kind: str) -> Any:
    problem = ""
    for widths in (_WIDTHS, {}):
        try:
            default = transformers.AutoConfig.for_model(kind)
            config = transformers.AutoConfig.for_model(kind, **_reduced(default, widths))
            with torch.device("meta"):
                parameters = sum(one.numel() for one in factory.from_config(config).parameters())
            if parameters <= MOST_PARAMETERS:
                return factory.from_config(config)
            problem = problem or f"{parameters / 1e6:.0f} million parameters"
        except Exception as error:  # noqa: BLE001 - the other configuration may do
            problem = problem or f"{type(error).__name__}: {error}"
    raise ValueError(f"no small configuration: {problem}")


def _reduced(config: Any, widths: Mapping[int, str]) -> dict[str, Any]:
    """The fields that make a configuration and those nested in it small.

    What a configuration derives from them (the kind of each layer, say) is left to it."""
    fields: dict[str, Any] = {}
    limits = [(_LAYERS, _DEPTH), (VOCABULARY, "vocab_size"), *widths.items()]
    for limit, names_of_fields in limits:
        for field in names_of_fields.split():
            value = getattr(config, field, None)
            if isinstance(value, int) and value > limit:
                fields[field] = limit
    for field in ("pad_token_id", "bos_token_id", "eos_token_id"):
        value = getattr(config, field, None)
        if isinstance(value, int) and value >= VOCABULARY:
            fields[field] = 1
    if hasattr(config, "use_cache"):
        fields["use_cache"] = False
    for name, nested in vars(config).items():
        if isinstance(nested, transformers.PreTrainedConfig):
            fields[name] = type(nested)(**_reduced(nested, widths)).to_dict()
    return fields


def _inputs(model: Any, task: str) -> dict[str, torch.Tensor]:
    main = model.main_input_name
    config = model.config
    if main == "input_ids":
        return {main: torch.randint(2, 256, (1, LENGTH))}
    if task != "speech":
        size = getattr(config, "image_size", None) or 224
        height, width = size if isinstance(size, list | tuple) else (size, size)
        channels = getattr(config, "num_channels", 3)
        return {main: torch.randn(1, channels, height, width)}
    if main == "input_values" and not hasattr(config, "num_mel_bins"):
        return {main: torch.randn(1, 16000)}
    bins = getattr(config, "num_mel_bins", 80)
    frames = getattr(config, "max_length", None) or 2 * getattr(
        config, "max_source_positions", LENGTH
    )
    frames = min(frames, 3000)
    shape = (1, frames, bins) if main == "input_values" else (1, bins, frames)
    return {main: torch.randn(*shape)}


class _FirstOutputs(nn.Module):
    """A model whose first output is its only one; it keeps no cache."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        first: torch.Tensor = self.model(**inputs, return_dict=True)[0]
        return first
