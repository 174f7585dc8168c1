"""How many tokens of KV cache fit into some memory, counted as SGLang counts them.

The source is SGLang 0.5.23, srt/model_executor/pool_configurator.py (`DefaultPoolConfigurator._compute_cell_size`,
`HybridSWAPoolConfigurator`) and srt/mem_cache/kv_cache_configurator.py (`_handle_max_mamba_cache`,
`calculate_mla_kv_cache_dim`); 0.5.17 counts alike.
"""

from __future__ import annotations

from dataclasses import dataclass

from router.engine.shape import Attention, Latent, Shape

SLIDING_SHARE = 0.8
"""Tokens that sliding layers hold, of those the others hold (`--swa-full-tokens-ratio`)."""
_STATE_SHARE = 0.9
"""Memory for linear attention's states, to that for KV (`--mamba-full-memory-ratio`)."""
_STATES_A_REQUEST = 5
"""Slots of a request that runs, its radix checkpoints included (`_calculate_mamba_ratio`, extra buffer, overlapped)."""
_INDEX_BLOCK = 128


@dataclass(frozen=True, slots=True)
class Cell:
    """What one token takes on one GPU, in bytes: over all layers that keep every token, and over those that slide.
    `state` is one sequence's in all linear layers."""

    full: int
    sliding: int
    state: int

    @property
    def token(self) -> float:
        """Of the pool's size: a sliding layer holds `SLIDING_SHARE` of the tokens."""
        return self.full + SLIDING_SHARE * self.sliding


@dataclass(frozen=True, slots=True)
class Pool:
    """`tokens` is what SGLang reports as `max_total_num_tokens`."""

    tokens: int
    sliding_tokens: int | None = None
    states: int | None = None

    @property
    def requests(self) -> int | None:
        """How many may run at once, where states bound it."""
        return None if self.states is None else self.states // _STATES_A_REQUEST


def cell_of(shape: Shape, *, kv_bytes: int, tp: int, draft_layers: int = 0) -> Cell:
    """`kv_bytes` is one number's size, 1 or 2; `tp` the GPUs that attention is divided over.

    A draft's layers are taken to be as large as the model's, which is how SGLang counts them.
    """
    if shape.latent is not None:
        layer = _latent_bytes(shape.latent, kv_bytes)
    else:
        assert shape.attention is not None
        layer = _attention_bytes(shape.attention, kv_bytes, tp)
    sliding_layers = shape.sliding_layers if shape.sliding_pool else 0
    full_layers = shape.full_layers + shape.sliding_layers - sliding_layers
    state = shape.linear.state_bytes(tp) * shape.linear_layers if shape.linear else 0
    return Cell(layer * (full_layers + draft_layers), layer * sliding_layers, state)


def _attention_bytes(attention: Attention, kv_bytes: int, tp: int) -> int:
    """Keys and values; a GPU has one head at least."""
    return max(1, attention.kv_heads // tp) * 2 * attention.head_dim * kv_bytes


def _latent_bytes(latent: Latent, kv_bytes: int) -> int:
    """The same on every GPU. With an indexer, 8-bit rows carry their scales and an unquantised rope part."""
    if latent.index_dim is None:
        return latent.cached * kv_bytes
    index = latent.index_dim + latent.index_dim // _INDEX_BLOCK * 4
    if kv_bytes == 1:
        return latent.rank + latent.rank // _INDEX_BLOCK * 4 + latent.rope_dim * 2 + index
    return latent.cached * kv_bytes + index


def fill(cell: Cell, budget: int, *, page_size: int, limit: int | None = None) -> Pool:
    """What fits into `budget` bytes, in whole pages and no more than `limit` tokens; 0 tokens where nothing does."""
    states = _states(cell, budget)
    if states is not None:
        budget -= (states + 1) * cell.state
    tokens = max(0, int(budget // cell.token)) if states is None or states > 0 else 0
    tokens = _whole_pages(tokens if limit is None else min(tokens, limit), page_size)
    sliding = _whole_pages(int(tokens * SLIDING_SHARE), page_size) if cell.sliding else None
    return Pool(tokens, sliding, states)


def _states(cell: Cell, budget: int) -> int | None:
    """Linear attention's share comes first; one slot more than is used pads it."""
    if not cell.state:
        return None
    share = budget * _STATE_SHARE / (1 + _STATE_SHARE)
    return max(0, int((share - cell.state) // cell.state))


def _whole_pages(tokens: int, page_size: int) -> int:
    return tokens // page_size * page_size
