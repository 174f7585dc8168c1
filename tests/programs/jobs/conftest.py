"""What tests of jobs share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from programs.store import connect


@pytest.fixture
async def redis(store: str) -> AsyncIterator[Redis]:
    redis = connect(store)
    yield redis
    await redis.aclose()
