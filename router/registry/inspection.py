"""A server asked what it is, and whether its tokenizer is ours."""

from __future__ import annotations

from dataclasses import dataclass

from router.engine.client import EngineClient, ServerInfo
from router.errors import EngineError
from router.registry.agreement import NOT_CHECKED, PoolFacts, TokenizerProbe, kept_out


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a server said. `tokenizer` is "" when it is ours, "not checked", or what is wrong with it."""

    info: ServerInfo
    tokenizer: str

    def trouble(self, pool: PoolFacts | None) -> str | None:
        """Why it is kept out of a pool that agreed on `pool`; None when it is not."""
        if self.tokenizer and self.tokenizer != NOT_CHECKED:
            return self.tokenizer
        return kept_out(self.info, pool)


async def inspect(client: EngineClient, probe: TokenizerProbe | None) -> Inspection:
    """Raises EngineUnavailableError when nothing there describes itself as SGLang does."""
    info = await client.server_info()
    return Inspection(info, await _tokenizer(client, info, probe))


async def _tokenizer(client: EngineClient, info: ServerInfo, probe: TokenizerProbe | None) -> str:
    if probe is None or not info.tokenizes:
        return NOT_CHECKED
    try:
        return probe.trouble(await client.tokenize(probe.text)) or ""
    except EngineError:  # a proxy in between that has no such route, or an SGLang from before there was one
        return NOT_CHECKED
