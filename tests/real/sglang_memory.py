"""SGLang's own sums, for architectures and GPUs that are not here. Runs in the engine's environment, not in ours.

Reads cases as JSON from standard input, prints SGLang's answers as the last line. What of SGLang asks the hardware is
replaced by the case's figures; what computes is SGLang's.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.arg_groups import cuda_graph_hook, memory_hook
from sglang.srt.arg_groups.overrides import resolving_view
from sglang.srt.configs.hybrid_arch import mambaish_config
from sglang.srt.configs.model_config import AttentionArch, ModelConfig
from sglang.srt.layers.cp import utils as layer_split
from sglang.srt.model_executor import cuda_graph_config, pool_configurator
from sglang.srt.server_args import ServerArgs

PAGE = 16


def cell(model: Any, tp: int, dtype: torch.dtype) -> float:
    """Bytes of a token on one GPU, as the pool is sized by."""
    parallel = SimpleNamespace(attn_tp_size=tp, attn_dcp_size=1, tp_size=tp, launch_world_size=1)
    schedule = SimpleNamespace(max_total_tokens=None, swa_full_tokens_ratio=0.8, page_size=PAGE)
    pool_configurator.get_parallel = lambda: parallel
    pool_configurator.get_schedule = lambda: schedule
    pool_configurator.get_memory = lambda: SimpleNamespace(enable_unified_memory=False, enable_hisparse=False)
    layer_split.get_glm_dsa_layer_split_effective_num_layers = lambda _configurator, layers: layers
    pool_configurator.compute_page_shard_scratch_bytes = lambda *_args, **_kwargs: 0
    swa = model.is_hybrid_swa
    layers = SimpleNamespace(
        start_layer=0,
        end_layer=model.num_hidden_layers,
        num_effective_layers=model.num_hidden_layers,
        full_attention_layer_ids=model.full_attention_layer_ids if swa else None,
        swa_attention_layer_ids=model.swa_attention_layer_ids if swa else None,
    )
    no = SimpleNamespace(is_eagle=lambda: False, is_standalone=lambda: False, is_dflash_family=lambda: False)
    configurator = SimpleNamespace(
        model_config=model,
        kv_cache_dtype=dtype,
        kv_cache_dtype_str="auto",
        use_mla_backend=model.attention_arch == AttentionArch.MLA,
        is_draft_worker=False,
        server_args=SimpleNamespace(enable_hisparse=False, enable_dsa_cache_layer_split=False, attn_cp_size=1),
        page_size=PAGE,
        pp_size=1,
        sliding_window_size=getattr(model, "sliding_window_size", None),
        spec_algorithm=no,
        fused_entry_bytes=lambda _name: None,
        layer_info=layers,
    )
    kind = pool_configurator.HybridSWAPoolConfigurator if swa else pool_configurator.DefaultPoolConfigurator
    return float(kind(configurator)._cell_size)


def state(model: Any, tp: int) -> int:
    """Bytes of one sequence's linear-attention state on one GPU."""
    config = mambaish_config(model)
    if config is None:
        return 0
    module: Any = sys.modules[type(config).__module__]
    module.linear_attn_tp_size = lambda: tp
    module._is_cpu = False
    return int(config.mamba2_cache_params.mamba_cache_per_req)


def fraction(directory: str, memory_mib: int, tp: int) -> float:
    """`--mem-fraction-static` where none is given."""
    memory_hook.get_device_memory_capacity = lambda *_args: memory_mib
    args = ServerArgs(model_path=directory, device="cuda", tp_size=tp)
    cuda_graph_hook.handle_cuda_graph_config(args)
    memory_hook.handle_gpu_memory_settings(args)
    return float(resolving_view(args).mem_fraction_static)


def answer(case: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "config.json").write_text(json.dumps(case["config"]))
        model, tp = ModelConfig(model_path=directory), case["tp"]
        return {
            "bf16": cell(model, tp, torch.bfloat16),
            "fp8": cell(model, tp, torch.float8_e4m3fn),
            "state": state(model, tp),
            "fraction": fraction(directory, case["memory_mib"], tp),
        }


if __name__ == "__main__":
    # as on a machine with an NVIDIA GPU
    breakable = cuda_graph_config.Backend.BREAKABLE
    cuda_graph_config.default_prefill_backend = lambda: breakable
    answers = [answer(case) for case in json.load(sys.stdin)]
    print("\n" + json.dumps(answers))
