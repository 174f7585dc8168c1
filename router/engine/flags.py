"""SGLang's flags that a profile has fields for. Names are those of SGLang 0.5.23, aliases included."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

_FLAGS: dict[str, str] = {
    "model": "--model-path --model",
    "served_name": "--served-model-name",
    "device": "--device",
    "dtype": "--dtype",
    "attention_backend": "--attention-backend",
    "page_size": "--page-size",
    "context_length": "--context-length",
    "max_total_tokens": "--max-total-tokens",
    "mem_fraction_static": "--mem-fraction-static",
    "max_running_requests": "--max-running-requests",
    "max_prefill_tokens": "--max-prefill-tokens",
    "chunked_prefill_size": "--chunked-prefill-size",
    "schedule_policy": "--schedule-policy",
    "kv_cache_dtype": "--kv-cache-dtype",
    "quantization": "--quantization",
    "tp": "--tp-size --tensor-parallel-size",
    "dp": "--dp-size --data-parallel-size",
    "dp_attention": "--enable-dp-attention --attn-dp-size --attention-data-parallel-size",
    "ep": "--ep-size --expert-parallel-size --ep",
    "nodes": "--nnodes --node-rank --dist-init-addr --nccl-init-addr",
    "speculation": (
        "--speculative-algorithm --speculative-draft-model-path --speculative-draft-model --speculative-num-steps "
        "--speculative-eagle-topk --speculative-num-draft-tokens"
    ),
    "hierarchical_cache": (
        "--enable-hierarchical-cache --enable-hicache --hicache-ratio --hicache-size --hicache-write-policy "
        "--hicache-io-backend --hicache-mem-layout --hicache-storage-backend --hicache-storage-prefetch-policy"
    ),
    "session_radix_cache": "--enable-session-radix-cache",
    "kv_events_port": "--kv-events-config",
    "lora": (
        "--enable-lora --lora-paths --max-lora-rank --lora-target-modules --max-loras-per-batch --max-loaded-loras"
    ),
    "sleep_after_s": "--enable-memory-saver --enable-weights-cpu-backup",
    "metrics": "--enable-metrics",
    "incremental_streaming": "--incremental-streaming-output",
}
_OURS = (
    *("--host", "--port", "--enable-cache-report", "--sleep-on-idle"),
    "--constrained-json-disable-any-whitespace",
)

FIELD_OF = {flag: field for field, flags in _FLAGS.items() for flag in flags.split()}
"""From a flag to the field that says it."""

_KNOWN = (*FIELD_OF, *_OURS)


def meant(extra_args: Iterable[str]) -> Iterator[tuple[str, str | None]]:
    """The flags among `extra_args` that a field could say, each with that field; None: the launcher always gives it.

    argparse takes any unambiguous beginning of a flag, so `--tp` is `--tp-size`.
    """
    for part in extra_args:
        flag = part.partition("=")[0]
        if not flag.startswith("--") or len(flag) < len("--ep"):
            continue
        if found := next((known for known in _KNOWN if known.startswith(flag)), None):
            yield flag, FIELD_OF.get(found)
