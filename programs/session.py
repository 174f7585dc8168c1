"""Sessions: each turn finds its ledger, becomes a prompt, is generated, and is appended."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from programs.answer import Answer, AnswerDelta, ThinkTokens
from programs.errors import (
    ContextLengthError,
    TurnConflictError,
    UnknownConversationError,
    UnknownResponseError,
)
from programs.explain import MissReason, Reuse
from programs.ledger import Branch, History, Turn, common_prefix, new_name, pack
from programs.message import Message, Tool, ToolCall, canonical, chain, chain_seed
from programs.model import ChatModel
from programs.prompt import Prompt
from programs.store import NewTurn, Place, SessionStore
from router.errors import EngineBrokeError
from router.request import Delta, Finish, FinishType, GenerateRequest, Sampling, TokenLogprob
from router.router import Router

_TAG_CHARS = 16
_THREAD_CHARS = 100_000
"""New text longer than this is encoded in a thread, so that other turns go on."""


@dataclass(frozen=True, slots=True)
class Resend:
    """The messages are the whole history; the ledger is found by their hash chain."""


@dataclass(frozen=True, slots=True)
class AfterResponse:
    """The messages follow a stored response."""

    response_id: str


@dataclass(frozen=True, slots=True)
class InConversation:
    """The messages follow the head of a conversation, and move it."""

    conversation_id: str


Origin = Resend | AfterResponse | InConversation


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """One turn to make.

    `head` are messages for this turn alone that stand in front of the history. `max_tokens` None means as many as fit.
    With `response_id`, what `record` makes of the finished turn is stored under it, in the same step as the turn.
    """

    tenant: str
    origin: Origin
    messages: tuple[Message, ...]
    sampling: Sampling
    max_tokens: int | None = None
    head: tuple[Message, ...] = ()
    tools: tuple[Tool, ...] = ()
    calls_allowed: bool = True
    """With False, the tools stay in the prompt (and its prefix in the cache), but calls of them are text."""
    top_logprobs: int | None = None
    response_id: str | None = None
    record: Callable[[FinishedTurn], bytes] | None = None


@dataclass(frozen=True, slots=True)
class StartedTurn:
    """The engine has begun to answer."""

    session_id: str
    replica: str


@dataclass(frozen=True, slots=True)
class TurnText:
    """New text of the answer, with the log-probabilities of the tokens that brought it."""

    delta: AnswerDelta
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class TurnCalls:
    """The tools that the answer calls."""

    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class FinishedTurn:
    """A turn that is in the ledger."""

    session_id: str
    turn_id: str
    replica: str
    content: str
    reasoning: str
    calls: tuple[ToolCall, ...]
    finish: FinishType
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    reasoning_tokens: int
    cached_tokens: int
    reusable_tokens: int
    miss_reason: MissReason | None


TurnEvent = StartedTurn | TurnText | TurnCalls | FinishedTurn


@dataclass(frozen=True, slots=True)
class _Found:
    """A history to continue, and the messages that come after it."""

    history: History
    fresh: tuple[Message, ...]
    head: tuple[Message, ...]
    conversation: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class _Plan:
    """A turn ready to be generated. `history` is where it will be appended, `common` ids of it are the prompt's."""

    request: TurnRequest
    found: _Found
    prompt: Prompt
    history: History
    common: int
    sampling: Sampling
    reuse: Reuse
    think: ThinkTokens | None


class Sessions:
    """Runs turns for one model."""

    def __init__(self, model: ChatModel, store: SessionStore, router: Router) -> None:
        self.model = model
        self._store = store
        self._router = router

    async def run(self, request: TurnRequest) -> AsyncGenerator[TurnEvent]:
        """StartedTurn, any number of TurnText, TurnCalls if tools are called, FinishedTurn once all is in the ledger.

        Leaving early aborts the generation and stores nothing. Everything that can go wrong before the engine answers
        is raised before the first event: UnknownResponseError, UnknownConversationError, TurnConflictError,
        ContextLengthError, TemplateError, StoreUnavailableError and the router's errors. After it, only
        EngineBrokeError, StoreUnavailableError and, in a conversation, TurnConflictError remain.
        """
        async with AsyncExitStack() as stack:
            if isinstance(request.origin, InConversation):
                conversation_id = request.origin.conversation_id
                await self._require_conversation(conversation_id)
                claim = self._store.claimed(tag_of(conversation_id), conversation_id, secrets.token_hex(8))
                await stack.enter_async_context(claim)
            plan = await self._plan(request)
            async with aclosing(self._generate(plan)) as events:
                async for event in events:
                    yield event

    async def _plan(self, request: TurnRequest) -> _Plan:
        found = await self._find(request)
        prompt = await self._prompt(found, request.tools)
        sampling = self._fitted(request, len(prompt.ids))
        history, common = _continued(found.history, prompt)
        last, info = found.history.last, self._router.info
        reuse = Reuse(
            held=found.history.cached_length,
            common=common,
            prompt=len(prompt.ids),
            page=info.page_size if info else 1,
            previous_replica=last.replica if last else None,
            rewritten=found.head == found.history.head,
        )
        return _Plan(request, found, prompt, history, common, sampling, reuse, self._think(prompt))

    async def _find(self, request: TurnRequest) -> _Found:
        match request.origin:
            case Resend():
                return await self._find_resent(request)
            case AfterResponse(response_id):
                return await self._find_response(request, response_id)
            case InConversation(conversation_id):
                return await self._find_conversation(request, conversation_id)

    async def _find_resent(self, request: TurnRequest) -> _Found:
        messages = request.messages
        digests = list(chain(self._seed(request), messages))
        answers = _answers(messages)
        tag = _root_tag(digests, answers)
        match = await self._store.find(tag, [digests[index] for index in answers])
        if match is not None:
            number, place = match
            history = await self._store.read(tag, place)
            if history is not None:
                return _Found(history, messages[answers[number] + 1 :], request.head)
        return _Found(self._new_history(request, tag), messages, request.head)

    async def _find_response(self, request: TurnRequest, response_id: str) -> _Found:
        tag = tag_of(response_id)
        stored = await self._store.response(tag, response_id)
        history = await self._store.read(tag, Place.parse(stored.place)) if stored else None
        if history is None or history.branch.tenant != request.tenant:
            raise UnknownResponseError(f"Previous response with id '{response_id}' not found.")
        return _Found(history, request.messages, request.head)

    async def _find_conversation(self, request: TurnRequest, conversation_id: str) -> _Found:
        tag = tag_of(conversation_id)
        place = await self._require_conversation(conversation_id)
        history = await self._store.read(tag, Place.parse(place)) if place else self._new_history(request, tag)
        if history is None or history.branch.tenant != request.tenant:
            raise UnknownConversationError(f"Conversation with id '{conversation_id}' not found.")
        return _Found(history, request.messages, request.head, (conversation_id, place))

    async def _require_conversation(self, conversation_id: str) -> str:
        stored = await self._store.conversation(tag_of(conversation_id), conversation_id)
        if stored is None:
            raise UnknownConversationError(f"Conversation with id '{conversation_id}' not found.")
        return stored.place

    def _new_history(self, request: TurnRequest, tag: str) -> History:
        return History.empty(
            Branch(
                tag=tag,
                id=new_name(),
                session_id=f"sess_{tag}{new_name()}",
                tenant=request.tenant,
                model=self.model.name,
                started=time.time(),
            )
        )

    def tag(self, request: TurnRequest) -> str:
        """The hash tag of the session that `request` belongs to, or would begin."""
        match request.origin:
            case Resend():
                return _root_tag(list(chain(self._seed(request), request.messages)), _answers(request.messages))
            case AfterResponse(name) | InConversation(name):
                return tag_of(name)

    def _seed(self, request: TurnRequest) -> bytes:
        head = (canonical(message).decode() for message in request.head)
        return chain_seed(request.tenant, self.model.name, *head)

    async def _prompt(self, found: _Found, tools: tuple[Tool, ...]) -> Prompt:
        history = found.history
        messages = found.head + history.messages + found.fresh
        offset = len(found.head)
        spellings = {offset + index: spelling for index, spelling in history.spellings.items()}
        now = datetime.fromtimestamp(history.branch.started, UTC)

        def build() -> Prompt:
            return self.model.prompts.build(messages, spellings, now=now, known=history.known, tools=tools)

        if sum(len(message.content) for message in found.fresh) > _THREAD_CHARS:
            return await asyncio.to_thread(build)
        return build()

    def _fitted(self, request: TurnRequest, prompt_tokens: int) -> Sampling:
        """The sampling with the tokens that may be made. Raises ContextLengthError when none, or not enough, may."""
        info = self._router.info
        context = info.context_length if info else self.model.context_length
        longest = info.max_prompt_tokens if info else context - 1
        asked = request.max_tokens
        if prompt_tokens > longest or prompt_tokens + (asked or 1) > context:
            answer = f" and {asked} tokens were asked for after it" if asked else ""
            raise ContextLengthError(
                f"This model's maximum context length is {context} tokens, of which a prompt may take {longest}; "
                f"your prompt has {prompt_tokens} tokens{answer}. Shorten the messages or lower max_tokens."
            )
        sampling = replace(request.sampling, max_new_tokens=asked or context - prompt_tokens)
        return self.model.with_defaults(sampling)

    def _think(self, prompt: Prompt) -> ThinkTokens | None:
        think = self.model.think
        if think is None:
            return None
        tail = prompt.ids[-4:]
        opened = think.open in tail and think.close not in tail
        return replace(think, opened_by_prompt=opened)

    async def _generate(self, plan: _Plan) -> AsyncGenerator[TurnEvent]:
        prompt_ids, stop = plan.prompt.ids, plan.sampling.stop
        may_call = bool(plan.request.tools) and plan.request.calls_allowed
        answer = Answer(self.model.tokenizer, prompt_ids, think=plan.think, stop=stop, calls=may_call)
        request = GenerateRequest(
            rid=secrets.token_hex(16),
            prompt_ids=prompt_ids,
            sampling=plan.sampling,
            home=plan.reuse.previous_replica,
            top_logprobs=plan.request.top_logprobs,
        )
        last: Delta | None = None
        async with aclosing(self._router.generate(request)) as deltas:
            async for delta in deltas:
                if last is None:
                    yield StartedTurn(plan.history.branch.session_id, delta.replica)
                last = delta
                yield TurnText(answer.push(delta.token_ids), delta.logprobs)
        if last is None or last.finish is None or last.finish.type == "abort":
            reason = last.finish.message if last and last.finish else None
            raise EngineBrokeError(f"the engine aborted this generation{f': {reason}' if reason else ''}")
        yield TurnText(answer.finish(last.finish.matched))
        calls, rest = await self._calls(plan, answer, last, last.finish)
        yield TurnText(rest)
        if calls:
            yield TurnCalls(calls)
        yield await self._append(plan, answer, calls, last, last.finish)

    async def _calls(
        self, plan: _Plan, answer: Answer, last: Delta, finish: Finish
    ) -> tuple[tuple[ToolCall, ...], AnswerDelta]:
        """The tool calls of a finished answer, and the text beside them."""
        text = answer.call_text(finish.matched)
        if not text:
            return (), AnswerDelta()
        tools = [tool.definition for tool in plan.request.tools]
        parsed = await self._router.parse_calls(last.replica, text, tools)
        if not parsed.calls:
            return (), answer.release_calls()
        calls = tuple(ToolCall(f"call_{new_name()}", call.name, call.arguments) for call in parsed.calls)
        return calls, answer.accept_calls(parsed.normal_text)

    async def _append(
        self, plan: _Plan, answer: Answer, calls: tuple[ToolCall, ...], last: Delta, finish: Finish
    ) -> FinishedTurn:
        turn = self._turn(plan, answer, calls, last, finish)
        finished = _finished(plan, answer, calls, last, finish)
        try:
            return await self._store_turn(plan, plan.history, turn, finished)
        except TurnConflictError:
            if plan.found.conversation is not None:
                raise
        fork = plan.history.forked(len(plan.history.ids))
        beside = replace(plan.history, branch=fork, own=0)
        return await self._store_turn(plan, beside, turn, finished)

    async def _store_turn(self, plan: _Plan, history: History, turn: Turn, finished: FinishedTurn) -> FinishedTurn:
        request = plan.request
        place = Place(history.branch.id, history.own + 1)
        finished = replace(finished, turn_id=f"turn_{history.branch.tag}_{place.branch}_{place.own}")
        response = None
        if request.response_id is not None and request.record is not None:
            response = (request.response_id, request.record(finished))
        await self._store.append(NewTurn(history, turn, response, plan.found.conversation))
        return finished

    def _turn(self, plan: _Plan, answer: Answer, calls: tuple[ToolCall, ...], last: Delta, finish: Finish) -> Turn:
        found = plan.found
        reply = Message("assistant", answer.content, answer.reasoning, tool_calls=calls)
        messages = (*found.fresh, reply)
        spelling = answer.spelling(finish.matched)
        return Turn(
            uid=new_name(),
            head=found.head,
            messages=messages,
            prompt_ids=pack(plan.prompt.ids[plan.common :]),
            output_ids=pack(answer.ids),
            kept=spelling.kept,
            tail=spelling.tail,
            answer=spelling.answer,
            rendered=plan.prompt.rendered,
            chain=self._digest(plan, messages),
            replica=last.replica,
            created=time.time(),
        )

    def _digest(self, plan: _Plan, messages: Sequence[Message]) -> bytes:
        """The digest of the history with these messages added; from the last turn's own, where the chain goes on."""
        history, last = plan.found.history, plan.found.history.last
        if last is not None and last.head == plan.found.head:
            *_, digest = chain(last.chain, messages)
        else:
            *_, digest = chain(self._seed(plan.request), (*history.messages, *messages))
        return digest


def _answers(messages: Sequence[Message]) -> list[int]:
    """Where a stored history may end: at each answer that something follows."""
    return [index for index, message in enumerate(messages[:-1]) if message.role == "assistant"]


def _root_tag(digests: Sequence[bytes], answers: Sequence[int]) -> str:
    """The session's hash tag: the digest of all before the first answer, which every later turn resends too."""
    root = max(0, answers[0] - 1) if answers else len(digests) - 1
    return digests[root].hex()[:_TAG_CHARS]


def tag_of(name: str) -> str:
    """The hash tag inside a response's or conversation's id; empty for an id that we did not make."""
    _, _, rest = name.partition("_")
    return rest[:_TAG_CHARS]


def response_id(tag: str) -> str:
    return f"resp_{tag}{new_name()}"


def conversation_id() -> str:
    return f"conv_{new_name()}{new_name()}"


def _continued(history: History, prompt: Prompt) -> tuple[History, int]:
    """Where a prompt's turn is appended: after `history` when it extends it, else on a fork where it leaves it."""
    common = common_prefix(history.ids, prompt.ids)
    if common == len(history.ids):
        return history, common
    fork = replace(history, branch=history.forked(common), own=0, ids=history.ids[:common])
    return fork, common


def _finished(plan: _Plan, answer: Answer, calls: tuple[ToolCall, ...], last: Delta, finish: Finish) -> FinishedTurn:
    return FinishedTurn(
        session_id=plan.history.branch.session_id,
        turn_id="",
        replica=last.replica,
        content=answer.content,
        reasoning=answer.reasoning,
        calls=calls,
        finish=finish.type,
        prompt_ids=plan.prompt.ids,
        output_ids=answer.ids,
        reasoning_tokens=answer.reasoning_tokens,
        cached_tokens=last.cached_tokens,
        reusable_tokens=plan.reuse.reusable_tokens,
        miss_reason=plan.reuse.miss_reason(last.cached_tokens, last.replica),
    )
