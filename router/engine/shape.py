"""A model's shape: its layers, heads, experts and states, read from config.json under the names families use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from router.errors import ModelError

# What a family's code assumes where its published config.json is silent.
_FAMILY_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma2": {"head_dim": 256, "vocab_size": 256000, "tie_word_embeddings": True},
    "gemma3_text": {
        "head_dim": 256,
        "vocab_size": 262208,
        "tie_word_embeddings": True,
        "max_position_embeddings": 131072,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
    },
    "llama4_text": {"max_position_embeddings": 131072, "interleave_moe_layer_step": 1},
    "qwen3_next": {"attn_output_gate": True},
    "qwen2": {"attention_bias": True},
    "qwen2_moe": {"attention_bias": True},
}
_KNOWN = (
    *("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next", "gemma2", "gemma3_text"),
    *("gpt_oss", "deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "glm4_moe", "llama4_text"),
)
# Of SGLang 0.5.23's `is_hybrid_swa_model` (srt/configs/model_config.py). Gemma 2 and 3 are none: it gives their sliding
# layers as many tokens as the others (arg_groups/model_overrides/gemma2_gemma3.py).
_SLIDING_POOLS = (
    *("Llama4ForConditionalGeneration", "GptOssForCausalLM", "Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"),
    *("LagunaForCausalLM", "MellumForCausalLM", "Step3p5ForCausalLM"),
)
_IMAGES_OFF = ("Gemma3ForConditionalGeneration", "Llama4ForConditionalGeneration", "Step3VLForConditionalGeneration")
"""Models that see, which SGLang 0.5.23 serves without images unless told `--enable-multimodal`."""
_MOST_LAYERS = 1000
_CONTEXT_KEYS = ("max_position_embeddings", "max_sequence_length", "seq_length", "n_positions", "model_max_length")
_EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention that keeps keys and values of every token."""

    heads: int
    kv_heads: int
    head_dim: int
    gated: bool = False
    """Queries are twice as wide: the other half gates the output."""
    biased: bool = False


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention: one compressed vector a token, the same for all heads."""

    heads: int
    query_rank: int | None
    rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    index_dim: int | None = None
    """Keys of the indexer that picks tokens (sparse attention)."""
    index_heads: int = 0

    @property
    def cached(self) -> int:
        """Numbers a token and layer."""
        return self.rank + self.rope_dim


@dataclass(frozen=True, slots=True)
class Linear:
    """Linear attention: a state of fixed size a sequence, whatever its length."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int

    @property
    def channels(self) -> int:
        """That pass through the convolution."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def state_bytes(self, tp: int) -> int:
        """Of one layer on one GPU: the convolution's in bf16, the recurrent one in float32.

        As `Mamba2StateShape.create` and `mamba_cache_per_req` have it (srt/configs/mamba_utils.py, 0.5.23).
        """
        convolution = self.channels // tp * (self.kernel - 1) * 2
        return convolution + self.value_heads // tp * self.value_dim * self.key_dim * 4


@dataclass(frozen=True, slots=True)
class Experts:
    """Routed experts of the layers that have them, and what all tokens pass through beside them."""

    count: int
    intermediate: int
    shared_intermediate: int
    layers: int
    biased: bool = False


@dataclass(frozen=True, slots=True)
class Vision:
    """A tower that turns images into embeddings."""

    layers: int
    hidden: int
    intermediate: int


@dataclass(frozen=True)
class Shape:
    """Sizes are numbers, not bytes. Layers add up: full + sliding + linear."""

    family: str
    known: bool
    layers: int
    hidden: int
    intermediate: int
    vocab: int
    tied: bool
    context_length: int
    float32: bool
    """Whether its config.json says that weights are stored in 32 bits."""
    attention: Attention | None
    latent: Latent | None
    linear: Linear | None
    experts: Experts | None
    vision: Vision | None
    multimodal: bool
    """Whether SGLang serves it with images."""
    full_layers: int
    sliding_layers: int
    linear_layers: int
    window: int | None
    sliding_pool: bool
    """Whether SGLang keeps sliding layers' tokens in a smaller pool of their own."""
    draft_layers: int
    """MTP layers that the checkpoint carries; loaded only for speculation."""

    @property
    def heads(self) -> int:
        one = self.latent or self.attention
        assert one is not None
        return one.heads

    @property
    def kv_heads(self) -> int:
        return 1 if self.attention is None else self.attention.kv_heads

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Shape:
        """Raises ModelError naming the key that is missing or makes no sense."""
        text = config.get("text_config") or config.get("llm_config") or config
        if not isinstance(text, dict):
            raise ModelError("text_config is not an object")
        family = str(text.get("model_type") or config.get("model_type") or "unknown")
        keys = _Keys({**_FAMILY_DEFAULTS.get(family, {}), **text})
        names = tuple(str(name) for name in config.get("architectures") or ())
        layers = keys.integer("num_hidden_layers")
        if layers > _MOST_LAYERS:
            raise ModelError(f"num_hidden_layers is {layers}, more than any model has")
        experts = _experts(keys, family, layers)
        dense = experts is None or experts.layers < layers
        kinds = _layer_kinds(keys, family, layers)
        latent = _latent(keys)
        return cls(
            family=family,
            known=family in _KNOWN,
            layers=layers,
            hidden=keys.integer("hidden_size"),
            intermediate=keys.optional("intermediate_size_mlp") or keys.integer("intermediate_size", "ffn_hidden_size")
            if dense
            else 0,
            vocab=keys.integer("vocab_size"),
            tied=bool(keys.values.get("tie_word_embeddings", config.get("tie_word_embeddings", False))),
            context_length=keys.integer(*_CONTEXT_KEYS),
            float32=_is_float32(config, text),
            attention=None if latent else _attention(keys),
            latent=latent,
            linear=_linear(keys) if "linear" in kinds else None,
            experts=experts,
            vision=_vision(config),
            multimodal=isinstance(config.get("vision_config"), dict) and not set(names) & set(_IMAGES_OFF),
            full_layers=kinds.count("full"),
            sliding_layers=kinds.count("sliding"),
            linear_layers=kinds.count("linear"),
            window=keys.optional("sliding_window", "attention_chunk_size"),
            sliding_pool="sliding" in kinds and any(name in _SLIDING_POOLS for name in names),
            draft_layers=keys.integer("num_nextn_predict_layers", default=0),
        )


class _Keys:
    """Positive integers out of a config, by any of several names."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def optional(self, *names: str) -> int | None:
        """The first that is there and not null."""
        for name in names:
            value = self.values.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ModelError(f"{name} is {value!r}, not a positive number")
            return value
        return None

    def integer(self, *names: str, default: int | None = None) -> int:
        value = self.optional(*names)
        if value is None:
            value = default
        if value is None or (value == 0 and default != 0):
            raise ModelError(f"{names[0]} is missing or 0")
        return value


def _attention(keys: _Keys) -> Attention:
    heads = keys.integer("num_attention_heads")
    return Attention(
        heads=heads,
        kv_heads=keys.integer(
            "num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num", default=heads
        ),
        head_dim=keys.integer("head_dim", "kv_channels", default=keys.integer("hidden_size") // heads),
        gated=bool(keys.values.get("attn_output_gate", False)),
        biased=bool(keys.values.get("attention_bias", False)),
    )


def _latent(keys: _Keys) -> Latent | None:
    rank = keys.optional("kv_lora_rank")
    if not rank:
        return None
    return Latent(
        heads=keys.integer("num_attention_heads"),
        query_rank=keys.optional("q_lora_rank"),
        rank=rank,
        nope_dim=keys.integer("qk_nope_head_dim"),
        rope_dim=keys.integer("qk_rope_head_dim"),
        value_dim=keys.integer("v_head_dim"),
        index_dim=keys.optional("index_head_dim"),
        index_heads=keys.integer("index_n_heads", default=0),
    )


def _linear(keys: _Keys) -> Linear:
    return Linear(
        key_heads=keys.integer("linear_num_key_heads"),
        value_heads=keys.integer("linear_num_value_heads"),
        key_dim=keys.integer("linear_key_head_dim"),
        value_dim=keys.integer("linear_value_head_dim"),
        kernel=keys.integer("linear_conv_kernel_dim"),
    )


def _experts(keys: _Keys, family: str, layers: int) -> Experts | None:
    count = keys.optional(*_EXPERT_KEYS)
    if not count:
        return None
    intermediate = keys.integer("moe_intermediate_size", "intermediate_size")
    if family == "llama4_text":
        shared = intermediate
    else:
        shared = keys.integer("n_shared_experts", default=0) * intermediate
        shared += keys.integer("shared_expert_intermediate_size", default=0)
    return Experts(count, intermediate, shared, _expert_layers(keys, layers), biased=family == "gpt_oss")


def _expert_layers(keys: _Keys, layers: int) -> int:
    step = keys.integer("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq", default=1)
    first = keys.integer("first_k_dense_replace", default=0)
    dense = set(keys.values.get("mlp_only_layers") or ())
    return sum(1 for layer in range(first, layers) if layer not in dense and (layer + 1) % step == 0)


def _vision(config: Mapping[str, Any]) -> Vision | None:
    vision = config.get("vision_config")
    if not isinstance(vision, dict):
        return None
    keys = _Keys(vision)
    hidden = keys.integer("hidden_size", "embed_dim", default=1024)
    return Vision(
        layers=keys.integer("num_hidden_layers", "depth", default=24),
        hidden=hidden,
        intermediate=keys.integer("intermediate_size", default=4 * hidden),
    )


_KINDS = {"full_attention": "full", "sliding_attention": "sliding", "chunked_attention": "sliding"}


def _layer_kinds(keys: _Keys, family: str, layers: int) -> Sequence[str]:
    """`full`, `sliding` or `linear`, layer by layer."""
    types = keys.values.get("layer_types")
    if isinstance(types, list) and len(types) == layers:
        return [_KINDS.get(str(kind), "linear") for kind in types]
    if family == "llama4_text":
        return ["full" if (layer + 1) % 4 == 0 else "sliding" for layer in range(layers)]
    if interval := keys.optional("full_attention_interval"):
        return ["full" if (layer + 1) % interval == 0 else "linear" for layer in range(layers)]
    if family == "gemma3_text":
        pattern = keys.integer("sliding_window_pattern", default=6)
        return ["full" if (layer + 1) % pattern == 0 else "sliding" for layer in range(layers)]
    if family == "gemma2":
        return ["full" if layer % 2 else "sliding" for layer in range(layers)]
    return ["full"] * layers


def _is_float32(config: Mapping[str, Any], text: Mapping[str, Any]) -> bool:
    found = (one.get(key) for one in (text, config) for key in ("dtype", "torch_dtype"))
    return next((value for value in found if value is not None), None) == "float32"
