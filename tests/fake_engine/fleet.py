"""`python -m tests.fake_engine.fleet 8 --options '{"tokenizer": "DIR"}'`: many engines of one model in one process.

Prints the URL of each, one a line, when all of them answer; ends with the signal that ends it.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import uvloop

from tests.fake_engine.__main__ import read_options
from tests.fake_engine.model import FakeModel
from tests.fake_engine.options import FakeEngineOptions
from tests.fake_engine.publishing import with_events
from tests.fake_engine.running import FakeEngine, running_fake_engine


@asynccontextmanager
async def running_fleet(count: int, options: FakeEngineOptions) -> AsyncIterator[list[FakeEngine]]:
    """Replicas on free ports of this machine, with KV events."""
    model = FakeModel.load(options)
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(running_fake_engine(with_events(options), model=model))
            for _ in range(count)
        ]


async def serve(count: int, options: FakeEngineOptions) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with running_fleet(count, options) as fleet:
        print(*(engine.url for engine in fleet), sep="\n", flush=True)
        await stop.wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fake_engine.fleet", description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--options", type=read_options, required=True, help="JSON object of options")
    arguments = parser.parse_args()
    uvloop.run(serve(arguments.count, arguments.options))


if __name__ == "__main__":
    main()
