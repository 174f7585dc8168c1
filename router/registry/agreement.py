"""Which servers may be one pool: what they say of themselves must agree. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Self

from router.engine.client import ServerInfo

NOT_CHECKED = "not checked"
"""Of a tokenizer, where the server has none to ask."""


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """What all servers of one pool have in common: a turn may move between them, and its prefix means the same."""

    model: str
    context_length: int
    page_size: int
    engine: str
    """SGLang's version."""

    @classmethod
    def of(cls, info: ServerInfo) -> Self:
        """The model by the last step of its name: one server may serve `/models/x` and another `org/x`."""
        model = PurePosixPath(info.served_model_name).name
        return cls(model, info.context_length, info.page_size, info.version)


def agreed(infos: Mapping[str, ServerInfo]) -> PoolFacts | None:
    """What most of a pool's servers say, by their names; None of no servers. The same on every front.

    Of sets of facts that as many servers share, that of the server whose name comes first.
    """
    facts = {name: PoolFacts.of(info) for name, info in sorted(infos.items())}
    if not facts:
        return None
    return Counter(facts.values()).most_common(1)[0][0]


def kept_out(info: ServerInfo, pool: PoolFacts | None) -> str | None:
    """Why a server cannot join a pool: "page size 64, the pool has 16". None when it can, or is the first."""
    if pool is None:
        return None
    its = PoolFacts.of(info)
    pairs = (
        ("model", its.model, pool.model),
        ("context length", its.context_length, pool.context_length),
        ("page size", its.page_size, pool.page_size),
        ("SGLang", its.engine, pool.engine),
    )
    wrong = [f"{what} {own}, the pool has {theirs}" for what, own, theirs in pairs if own != theirs]
    return "; ".join(wrong) or None


@dataclass(frozen=True, slots=True)
class TokenizerProbe:
    """A text with hard cases, and the ids that the front's own tokenizer gives it."""

    text: str
    ids: tuple[int, ...]

    def trouble(self, answered: Sequence[int]) -> str | None:
        """What is wrong with a server's ids of the text; None when they are ours."""
        if tuple(answered) == self.ids:
            return None
        for at, (its, ours) in enumerate(zip(answered, self.ids, strict=False)):
            if its != ours:
                return f"another tokenizer: token {at} of the probe is {its}, ours is {ours}"
        return f"another tokenizer: the probe has {len(answered)} tokens, ours {len(self.ids)}"
