"""Whether a model fits on some GPUs, and how much it can then hold: computed from its config.json alone.

The memory of one GPU is what is free at start × the static fraction = weights + KV cache; the rest is for activations
and CUDA graphs. That is SGLang's own sum (`_profile_available_bytes`, srt/mem_cache/kv_cache_configurator.py, 0.5.17
to 0.5.23), so `Plan.pool.tokens` is what an engine will report as `max_total_num_tokens`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from router.engine.architecture import Architecture
from router.engine.device import GIB
from router.engine.kv_pool import Cell, Pool, cell_of, fill
from router.engine.plan_request import PlanRequest
from router.engine.reserve import Reserve, multimodal_bytes, reserve, static_fraction
from router.engine.shape import Shape
from router.engine.weights import COMPARED, Division, Storage, bytes_per_gpu, storage_of, total_bytes

LEAST_CONTEXT = 4096
"""Tokens of one session that must fit where no context is asked for."""
_RANK_HOST_BYTES = 3 * GIB
_SERVER_HOST_BYTES = 2 * GIB
_READ_BYTES_S = 2 * 10**9
_START_S = {"cuda": 70.0, "cpu": 60.0}
_RANKS_START_S = 20.0
"""Connecting several ranks."""


@dataclass(frozen=True)
class Plan:
    """The answer. Sizes are bytes of one GPU unless said otherwise."""

    architecture: Architecture
    request: PlanRequest

    @property
    def shape(self) -> Shape:
        return self.architecture.shape

    @cached_property
    def storage(self) -> Storage:
        wanted, own = self.request.quantization, self.architecture.quantization
        return storage_of(wanted, own, float32=self.request.keep_float32 and self.shape.float32)

    @property
    def weights_compared(self) -> dict[str, int]:
        """One copy of the weights, by how they could be stored."""
        return {name: total_bytes(self.architecture.parameters, storage) for name, storage in COMPARED.items()}

    @property
    def all_weights(self) -> int:
        """One copy of the weights, as on disk."""
        return total_bytes(self.architecture.parameters, self.storage)

    @cached_property
    def weights(self) -> int:
        division = Division(self.request.tp, self.request.attention_tp)
        return bytes_per_gpu(self.shape, self.architecture.parameters, self.storage, division) + self._draft_weights

    @property
    def _draft_weights(self) -> int:
        """A draft of one layer, with embeddings and head of its own; NEXTN's shares them."""
        parameters, speculation = self.architecture.parameters, self.request.speculation
        if speculation is None or speculation.algorithm in ("NGRAM", "STANDALONE"):
            return 0
        layers = parameters.queries + parameters.keys + parameters.low_rank + parameters.mlp + parameters.experts
        tables = 0 if speculation.algorithm == "NEXTN" else 2 * parameters.embedding
        return (layers // self.shape.layers + tables) * 2 // self.request.tp

    @cached_property
    def cell(self) -> Cell:
        return self._cell(self.request.attention_tp)

    @property
    def kv_bytes_per_token(self) -> int:
        """Over all layers, undivided: what one token of one session takes."""
        cell = replace(self, request=replace(self.request, speculation=None))._cell(1)
        return cell.full + cell.sliding

    def _cell(self, tp: int) -> Cell:
        return cell_of(self.shape, kv_bytes=self.request.kv_bytes, tp=tp, draft_layers=self._draft_layers)

    @property
    def _draft_layers(self) -> int:
        speculation = self.request.speculation
        if speculation is None or speculation.algorithm == "NGRAM":
            return 0
        return max(1, self.shape.draft_layers) if speculation.algorithm == "NEXTN" else 1

    @property
    def free(self) -> int:
        """What an engine finds free before it loads anything."""
        return self.request.devices.device.free_in(self.request.world)

    @cached_property
    def mem_fraction(self) -> float:
        given = self.request.mem_fraction
        return static_fraction(self.request.devices.device, self.shape, self.request.load) if given is None else given

    @property
    def kept_free(self) -> int:
        """Of weights and KV cache: what activations and CUDA graphs must do with."""
        return int(self.free * (1 - self.mem_fraction))

    @property
    def wanted_free(self) -> Reserve:
        """What SGLang would keep free for them."""
        return reserve(self.request.devices.device, self.shape, self.request.load)

    @property
    def budget(self) -> int:
        """For the KV cache; below 0 where the weights do not even fit."""
        return int(self.free * self.mem_fraction) - self.weights - multimodal_bytes(self.shape)

    @cached_property
    def pool(self) -> Pool:
        """Of one replica."""
        limit = self.request.max_total_tokens
        return fill(self.cell, max(0, self.budget), page_size=self.request.page_size, limit=limit)

    @property
    def context(self) -> int:
        """What sessions are counted at: what was asked for, else the model's own."""
        return self.request.context or self.shape.context_length

    @property
    def sessions(self) -> int:
        """Of `context` tokens, held at once by all replicas."""
        each = self.pool.tokens // self.context
        if self.pool.sliding_tokens is not None and self.shape.window:
            each = min(each, self.pool.sliding_tokens // min(self.context, self.shape.window))
        if self.pool.requests is not None:
            each = min(each, self.pool.requests)
        return each * self.request.dp

    @property
    def host_memory(self) -> int:
        """Of each node, the page cache that weights pass through aside."""
        ranks = self.request.world // self.request.nodes
        kv = int(self.pool.tokens * self.cell.token)
        cache = self.request.host_cache_bytes or int(kv * self.request.host_cache_ratio)
        own = self.weights + kv if self.request.devices.device.kind == "cpu" else 0
        return _SERVER_HOST_BYTES + ranks * (_RANK_HOST_BYTES + cache + own)

    @property
    def cold_start_s(self) -> float:
        """A rough figure: starting, reading the weights at 2 GB/s, capturing graphs."""
        ranks = _RANKS_START_S if self.request.world > 1 else 0.0
        return _START_S[self.request.devices.device.kind] + ranks + self.all_weights / _READ_BYTES_S

    @property
    def problems(self) -> tuple[str, ...]:
        """Why it cannot run; empty when it can."""
        return (*self._divisions(), *self._memory())

    @property
    def fits(self) -> bool:
        return not self.problems

    def _divisions(self) -> list[str]:
        request, shape, found = self.request, self.shape, []
        tp = request.attention_tp
        if (needed := request.world // request.nodes) > (there := request.devices.count):
            where = " on each node" if request.nodes > 1 else ""
            found.append(f"it needs {needed} GPUs{where}, there {'is' if there == 1 else 'are'} {there}")
        if request.dp_attention and request.tp % request.dp:
            found.append(f"tp {request.tp} does not divide by dp {request.dp}")
        if shape.heads % tp:
            found.append(f"{shape.heads} attention heads do not divide over {tp} GPUs")
        elif shape.kv_heads % tp and tp % shape.kv_heads:
            found.append(f"{shape.kv_heads} key-value heads neither divide over {tp} GPUs nor repeat evenly on them")
        if shape.linear and shape.linear.key_heads % tp:
            found.append(f"{shape.linear.key_heads} heads of linear attention do not divide over {tp} GPUs")
        return found + self._expert_division()

    def _expert_division(self) -> list[str]:
        """Quantised in blocks, an expert divides only into whole blocks."""
        experts, own = self.shape.experts, self.architecture.quantization or {}
        blocks = own.get("weight_block_size")
        block = blocks[0] if isinstance(blocks, list) and blocks else None
        if not experts or not isinstance(block, int) or block < 1 or self.request.ep == self.request.tp:
            return []
        if experts.intermediate % (self.request.tp * block) == 0:
            return []
        undivided = f"experts of {experts.intermediate} do not divide over {self.request.tp} GPUs"
        return [f"{undivided} in blocks of {block}; spread whole experts with ep {self.request.tp}"]

    def _memory(self) -> list[str]:
        needed = self.request.context or min(self.shape.context_length, LEAST_CONTEXT)
        if self.request.context and self.request.context > self.shape.context_length:
            return [f"a context of {needed:,} tokens is more than the model's own {self.shape.context_length:,}"]
        if self.budget <= 0:
            usable = self.free * self.mem_fraction
            return [f"weights take {_gib(self.weights)} of each GPU, and no more than {_gib(usable)} may be used"]
        if self.pool.tokens < needed:
            return [f"the KV cache holds {self.pool.tokens:,} tokens, a session of {needed:,} does not fit"]
        window, sliding = self.shape.window, self.pool.sliding_tokens
        if sliding is not None and window is not None and sliding <= window + self.request.page_size:
            return [f"the sliding layers' cache holds {sliding:,} tokens, less than their window of {window:,}"]
        if self.pool.requests == 0:
            return ["no request's state fits beside the weights"]
        return []


def _gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB"
