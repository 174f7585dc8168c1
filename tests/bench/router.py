"""`python -m tests.bench.router --replicas 8 -- --workload thinking`: `antiphon bench router` over fake replicas.

They have a real radix cache, SGLang's scheduling and the prefill and decode rates given here, and write words that
encode back to their ids but for a few, as models do (`tests/fake_engine/writer.py`). What stands after `--` goes to
the command.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from tests.packages import TEMPLATE_OF, chat_template, tokenizer_config_file, tokenizer_file

CONTEXT = 40_960
_END_OF_QWEN3 = 151_645
_VOCABULARY_OF_QWEN3 = 151_936
_STOP_S = 10


def qwen3_directory(path: Path) -> Path:
    """A model directory without weights: Qwen3's own tokenizer and chat template."""
    path.mkdir(parents=True, exist_ok=True)
    for source in (tokenizer_file("qwen3"), tokenizer_config_file("qwen3")):
        link = path / source.name
        if not link.exists():
            link.symlink_to(source)
    (path / "chat_template.jinja").write_text(chat_template(TEMPLATE_OF["qwen3"]), encoding="utf-8")
    config = {"max_position_embeddings": CONTEXT, "vocab_size": _VOCABULARY_OF_QWEN3, "eos_token_id": _END_OF_QWEN3}
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": _END_OF_QWEN3}), encoding="utf-8")
    return path


@contextmanager
def running_fleets(model: Path, arguments: argparse.Namespace) -> Iterator[list[str]]:
    """The URLs of `arguments.replicas` fake engines in `arguments.processes` processes."""
    options = json.dumps(
        {
            "tokenizer": str(model),
            "model_path": model.name,
            "eos_token_id": _END_OF_QWEN3,
            "context_length": CONTEXT,
            "max_total_tokens": arguments.kv_tokens,
            "chunked_prefill_size": arguments.chunk,
            "max_running_requests": 64,
            "prefill_tokens_per_s": arguments.prefill,
            "decode_tokens_per_s": arguments.decode,
            "stream_interval": arguments.stream_interval,
            "incremental_streaming": True,
            "reasoning_parser": "qwen3",
            "tool_call_parser": "qwen25",
            "writes": "agent",
            "record": 0,
        }
    )
    with ExitStack() as stack:
        counts = [len(range(first, arguments.replicas, arguments.processes)) for first in range(arguments.processes)]
        fleets = [stack.enter_context(_fleet(count, options)) for count in counts if count]
        yield [fleet.readline().strip() for fleet, count in zip(fleets, counts, strict=False) for _ in range(count)]


@contextmanager
def _fleet(count: int, options: str) -> Iterator[IO[str]]:
    command = [sys.executable, "-m", "tests.fake_engine.fleet", str(count), "--options", options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.router", description=__doc__)
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--prefill", type=float, default=2_000, help="tokens a second that a replica prefills")
    parser.add_argument("--decode", type=float, default=30, help="tokens a second of each stream")
    parser.add_argument("--kv-tokens", type=int, default=49_152, help="that a replica's cache holds")
    parser.add_argument("--chunk", type=int, default=2_048, help="tokens that one step of a prefill takes")
    parser.add_argument("--stream-interval", type=int, default=8, help="tokens in a chunk of a stream")
    parser.add_argument("bench", nargs="*", help="options of antiphon bench router")
    arguments = parser.parse_args()
    with TemporaryDirectory() as scratch:
        model = qwen3_directory(Path(scratch, "qwen3"))
        with running_fleets(model, arguments) as urls:
            command = [sys.executable, "-m", "service.cli", "bench", "router", "--model", str(model)]
            command += [part for url in urls for part in ("--engine", url)]
            return _supervised([*command, *arguments.bench])


def _supervised(command: list[str]) -> int:
    """Its exit code. What would end us ends it first: it has processes of its own to end."""
    with subprocess.Popen(command) as process:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to both
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        return process.wait()


if __name__ == "__main__":
    sys.exit(main())
