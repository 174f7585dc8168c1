"""What the chat and the responses API have in common: running a turn, and reporting on it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import Any

from programs.errors import ProgramsError
from programs.explain import TO_OPENAI
from programs.session import Sessions
from programs.turn import FinishedTurn, TurnEvent, TurnText
from router.errors import RouterError
from router.request import TokenLogprob
from service.errors import ErrorBody, ServiceError, error_body

DEFAULT_TENANT = "default"


@dataclass(frozen=True, slots=True)
class BegunTurn:
    """A turn whose first event is there: from here on the status line says 200."""

    first: TurnEvent
    rest: AsyncGenerator[TurnEvent]

    async def events(self) -> AsyncGenerator[TurnEvent | ErrorBody]:
        """All events; an error that comes too late for the status line ends them as an ErrorBody."""
        yield self.first
        try:
            async with aclosing(self.rest) as rest:
                async for event in rest:
                    yield event
        except (ProgramsError, RouterError) as error:
            yield error_body(error)


async def begin(events: AsyncGenerator[TurnEvent]) -> BegunTurn:
    """Wait for the engine's first sign of life, so that whatever fails before it gets a status of its own."""
    return BegunTurn(await anext(events), events)


async def finished_turn(events: AsyncGenerator[TurnEvent], logprobs: list[TokenLogprob] | None = None) -> FinishedTurn:
    """Run a turn to its end; its tokens' log-probabilities are added to `logprobs`."""
    async with aclosing(events):
        async for event in events:
            if isinstance(event, FinishedTurn):
                return event
            if isinstance(event, TurnText) and logprobs is not None:
                logprobs.extend(event.logprobs)
    raise AssertionError("a turn ended without its last event")


def check_model(name: str, sessions: Sessions) -> None:
    """Raises ServiceError (404) when `name` is not the model that is served."""
    if name != sessions.model.name:
        raise ServiceError(
            f"The model '{name}' does not exist; this server has '{sessions.model.name}'.",
            status=404,
            code="model_not_found",
            param="model",
        )


def antiphon_fields(turn: FinishedTurn, *, with_ids: bool) -> dict[str, Any]:
    """The top-level object `antiphon` of an answer."""
    fields: dict[str, Any] = {
        "session_id": turn.session_id,
        "turn_id": turn.turn_id,
        "replica": turn.replica,
        "resumes": turn.resumes,
        "reusable_tokens": turn.reusable_tokens,
        "cached_tokens": turn.cached_tokens,
        "anticipated_tokens": turn.anticipated_tokens,
        "miss_reason": turn.miss_reason,
        "openai_miss_reason": None if turn.miss_reason is None else TO_OPENAI[turn.miss_reason],
        "difference": None if turn.difference is None else asdict(turn.difference),
        "changes": [asdict(change) for change in turn.changes],
        "dropped": {"messages": len(turn.dropped), "ranges": _ranges(turn.dropped)} if turn.dropped else None,
    }
    if with_ids:
        fields["prompt_token_ids"] = list(turn.prompt_ids)
        fields["output_token_ids"] = list(turn.output_ids)
    return fields


def _ranges(indices: Sequence[int]) -> list[list[int]]:
    """Ascending indices as first and last of each run."""
    ranges: list[list[int]] = []
    for index in indices:
        if ranges and ranges[-1][1] == index - 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    return ranges
