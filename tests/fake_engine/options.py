"""What a fake engine is: the launch flags it stands for, and the speed it pretends to have."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

EngineVersion = Literal["0.5.17", "0.5.23"]
Writes = Literal["hash", "prose", "agent"]


@dataclass(frozen=True, slots=True)
class FakeEngineOptions:
    """Rates are tokens a second; 0 means instantly. Times are seconds."""

    version: EngineVersion = "0.5.23"
    model_path: str = "fake/model"
    tokenizer: Path | None = None
    """A `tokenizer.json`, or a directory that holds one. None: `--skip-tokenizer-init`, answers have no text."""

    # The model: the next token is a hash of every token before it, so equal prefixes continue alike on every replica.
    vocabulary: tuple[int, ...] = ()
    """The ids it may write. Empty: every id that is text on its own (without a tokenizer: 3 to 31,999)."""
    vocab_size: int | None = None
    """A prompt with an id from here on kills the engine, as it does the real one. None: the tokenizer's, or none."""
    eos_token_id: int = 2
    end_probability: float = 0.0
    """Chance of each token to be the end; by the same hash, so a resumed generation ends where the whole one does."""
    output_tokens: int | None = None
    """Write the end as this output token, counted within one request: a resumed request counts again."""
    deterministic: bool = True
    """False: a temperature above 0 without a `sampling_seed` writes something else each time."""
    seed: int = 0
    """Stands for the weights: engines with one seed are replicas of one model."""
    writes: Writes = "hash"
    """`prose`: words, as today's models write them, half to all of the tokens asked for. `agent`: the same with
    reasoning before it, and calls instead of it, if the prompt has tools (`writer.py`)."""
    odd_spelling: float = 0.001
    """Of prose, the share of words whose ids are not those that encoding their text would give."""

    # Memory and scheduling.
    page_size: int = 16
    context_length: int = 32_768
    max_total_tokens: int = 65_536
    max_running_requests: int = 256
    dp_size: int = 1
    """Ranks: each has a cache, a queue and KV events of its own, and everything else is alike."""
    chunked_prefill_size: int = 8_192
    overlap_schedule: bool = True
    """SGLang's default. An answer that a stop ended then leaves P+N tokens in the cache; others always P+N-1."""
    prefill_tokens_per_s: float = 0.0
    decode_tokens_per_s: float = 0.0
    """Of each stream, however many run."""

    memory_saver: bool = False
    """`--enable-memory-saver --enable-weights-cpu-backup`. Without, being told to sleep kills it, as it does a real one
    on the CPU; asleep, a generation does, and so does a health probe, which is one.
    """

    # The wire.
    stream_interval: int = 1
    incremental_streaming: bool = False
    enable_metrics: bool = True
    kv_events_config: str | None = None
    """SGLang's flag, as JSON. None: nothing is published."""
    cache_report: bool = True
    """`--enable-cache-report`: chat completions say what was cached."""
    reasoning_parser: str | None = None
    """Any but None splits at `<think>` and `</think>`, as "qwen3" does."""
    tool_call_parser: str | None = None
    """Any but None reads JSON between `<tool_call>` and `</tool_call>`, as "qwen25" does."""
    startup_s: float = 0.0
    """Until then /health answers 503, and /generate waits."""
    health_timeout_s: float = 20.0
    disconnect_abort_s: float | None = None
    """From a client going away to its request's abort. None: what SGLang does."""
    record: int = 256
    """How many finished requests `EngineState.finished` remembers."""

    def __post_init__(self) -> None:
        counts = ("dp_size", "page_size", "context_length", "max_total_tokens", "max_running_requests")
        for name in (*counts, "stream_interval"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.max_total_tokens % self.page_size:
            raise ValueError(f"max_total_tokens {self.max_total_tokens} is not whole pages of {self.page_size}")

    def abort_delay_s(self, stream: bool) -> float:
        """The server notices at once that a stream lost its reader, but only looks now and then after the others."""
        if self.disconnect_abort_s is not None:
            return self.disconnect_abort_s
        return 0.0 if stream else 2.0

    @property
    def max_request_tokens(self) -> int:
        return min(self.context_length, self.max_total_tokens) - 1

    @property
    def max_input_tokens(self) -> int:
        """The scheduler's own bound, which lies a little under the context length."""
        return self.max_request_tokens - 5

    @property
    def salts(self) -> bool:
        """0.5.17 silently ignores `cache_salt` on /generate; there only `extra_key` keeps tenants apart."""
        return self.version != "0.5.17"
