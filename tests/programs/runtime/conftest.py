"""A place to run programs: a fake engine and a document."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from programs.model import ChatModel
from router.engine.client import EngineClient
from tests.fake_engine.running import FakeEngine
from tests.programs.runtime.given import Shelf, Stage

TEXT = "the quick brown fox jumps over a lazy dog " * 20


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
def stage(engine: FakeEngine, model_dir: Path, session: aiohttp.ClientSession) -> Stage:
    return Stage(ChatModel.load(model_dir), EngineClient("a", engine.url, session), Shelf(TEXT))
