"""How many parameters a shape has, by how they are stored and spread over GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from router.engine.shape import Attention, Latent, Linear, Shape

_GEMMA = ("gemma2", "gemma3_text")
_PATCHES = 1_000_000
"""A vision tower's embeddings and its projector, roughly: little beside its layers."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """Counts over all layers."""

    embedding: int
    head: int
    """0 where it is the embedding again."""
    queries: int
    """Attention that tensor parallelism divides: queries, outputs, linear attention, what follows a low rank."""
    keys: int
    """Keys and values: divided by heads, of which each GPU has one at least."""
    low_rank: int
    """Latent attention's first projections, the same on every GPU."""
    absorbed: int
    """Latent attention's second key and value projection, which SGLang keeps a second time, transposed, in 16 bits."""
    mlp: int
    """Dense layers and shared experts."""
    experts: int
    small: int
    """Norms, routers and biases: never quantised, the same on every GPU."""
    vision: int

    @property
    def total(self) -> int:
        divided = self.embedding + self.head + self.queries + self.keys + self.low_rank + self.mlp + self.experts
        return divided + self.small + self.vision


def count_parameters(shape: Shape) -> Parameters:
    """As the families' published weights are, to within 1 %."""
    table = shape.vocab * shape.hidden
    queries, keys, low_rank, absorbed, attention_small = _attention(shape)
    linear, linear_small = _linear(shape.linear, shape) if shape.linear else (0, 0)
    mlp, experts, experts_small = _mlp(shape)
    norms = (4 if shape.family in _GEMMA else 2) * shape.hidden * shape.layers + shape.hidden
    return Parameters(
        embedding=table,
        head=0 if shape.tied else table,
        queries=queries + linear,
        keys=keys,
        low_rank=low_rank,
        absorbed=absorbed,
        mlp=mlp,
        experts=experts,
        small=norms + attention_small + linear_small + experts_small,
        vision=_vision(shape),
    )


def _attention(shape: Shape) -> tuple[int, int, int, int, int]:
    layers = shape.full_layers + shape.sliding_layers
    if shape.latent is not None:
        queries, low_rank, absorbed = _latent(shape.latent, shape.hidden)
        return queries * layers, 0, low_rank * layers, absorbed * layers, 0
    assert shape.attention is not None
    queries, keys, small = _softmax(shape.attention, shape.hidden, shape.family)
    return queries * layers, keys * layers, 0, 0, small * layers


def _softmax(attention: Attention, hidden: int, family: str) -> tuple[int, int, int]:
    width = attention.heads * attention.head_dim
    kv_width = 2 * attention.kv_heads * attention.head_dim
    queries = hidden * width * (3 if attention.gated else 2)
    small = 2 * attention.head_dim
    if attention.biased:
        small += width + kv_width
    if family == "gpt_oss":
        small += attention.heads + hidden
    return queries, hidden * kv_width, small


def _latent(latent: Latent, hidden: int) -> tuple[int, int, int]:
    query_width = latent.heads * (latent.nope_dim + latent.rope_dim)
    absorbed = latent.rank * latent.heads * (latent.nope_dim + latent.value_dim)
    divided = absorbed + latent.heads * latent.value_dim * hidden
    low_rank = hidden * latent.cached
    if latent.query_rank:
        divided += latent.query_rank * query_width
        low_rank += hidden * latent.query_rank
    else:
        divided += hidden * query_width
    if latent.index_dim and latent.query_rank:
        low_rank += latent.query_rank * latent.index_heads * latent.index_dim
        low_rank += hidden * (latent.index_dim + latent.index_heads)
    return divided, low_rank, absorbed


def _linear(linear: Linear, shape: Shape) -> tuple[int, int]:
    values = linear.value_heads * linear.value_dim
    projections = shape.hidden * (linear.channels + values + 2 * linear.value_heads) + values * shape.hidden
    small = linear.channels * linear.kernel + 2 * linear.value_heads + linear.value_dim
    return projections * shape.linear_layers, small * shape.linear_layers


def _mlp(shape: Shape) -> tuple[int, int, int]:
    experts = shape.experts
    dense_layers = shape.layers - (experts.layers if experts else 0)
    dense = 3 * shape.hidden * shape.intermediate * dense_layers
    if experts is None:
        return dense, 0, 0
    routed = 3 * shape.hidden * experts.intermediate * experts.count * experts.layers
    shared = 3 * shape.hidden * experts.shared_intermediate * experts.layers
    small = (shape.hidden + 1) * experts.count * experts.layers
    if experts.biased:
        small += experts.count * (2 * experts.intermediate + shape.hidden) * experts.layers
    return dense + shared, routed, small


def _vision(shape: Shape) -> int:
    vision = shape.vision
    if vision is None:
        return 0
    layer = 4 * vision.hidden**2 + 2 * vision.hidden * vision.intermediate
    return vision.layers * layer + vision.hidden * shape.hidden + _PATCHES
