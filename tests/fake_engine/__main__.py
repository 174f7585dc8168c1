"""`python -m tests.fake_engine --port 30000 --options '{"page_size": 16}'`: one fake engine as a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import uvloop

from tests.fake_engine.options import FakeEngineOptions
from tests.fake_engine.running import running_fake_engine


def read_options(text: str) -> FakeEngineOptions:
    """A JSON object of `FakeEngineOptions` fields. Raises TypeError for a field there is not."""
    values: dict[str, Any] = json.loads(text)
    if values.get("tokenizer") is not None:
        values["tokenizer"] = Path(values["tokenizer"])
    if "vocabulary" in values:
        values["vocabulary"] = tuple(values["vocabulary"])
    return FakeEngineOptions(**values)


async def serve(options: FakeEngineOptions, host: str, port: int) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with running_fake_engine(options, host, port) as engine:
        print(engine.url, flush=True)
        await stop.wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fake_engine", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--options", type=read_options, default=FakeEngineOptions(), help="JSON object of options")
    arguments = parser.parse_args()
    uvloop.run(serve(arguments.options, arguments.host, arguments.port))


if __name__ == "__main__":
    main()
