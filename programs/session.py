"""Sessions: each turn finds its ledger, becomes a prompt, is generated, and is appended."""

from __future__ import annotations

import asyncio
import secrets
import time
from array import array
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import blake2b

import orjson

from programs.answer import Answer, AnswerDelta, ThinkTokens
from programs.anticipation import Anticipator
from programs.errors import ContextLengthError, TurnConflictError
from programs.explain import MissReason, Reuse
from programs.finder import Found, LedgerFinder, tag_of
from programs.ids import common_prefix, pack
from programs.ledger import History, Turn, new_name
from programs.message import DIGEST_BYTES, Message, ToolCall
from programs.model import ChatModel
from programs.prompt import Prompt, Spelling
from programs.store import NewTurn, Place, SessionStore
from programs.turn import FinishedTurn, InConversation, StartedTurn, TurnCalls, TurnEvent, TurnRequest, TurnText
from router.errors import EngineBrokeError
from router.request import Delta, Finish, GenerateRequest, Sampling
from router.router import Router

_THREAD_CHARS = 100_000
"""New text longer than this is encoded in a thread, so that other turns go on."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """A turn ready to be generated. `history` is where it will be appended, `common` ids of it are the prompt's."""

    request: TurnRequest
    found: Found
    prompt: Prompt
    history: History
    common: int
    sampling: Sampling
    reuse: Reuse
    think: ThinkTokens | None
    anticipated: int


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What the engine made of a plan."""

    answer: Answer
    calls: tuple[ToolCall, ...]
    last: Delta
    finish: Finish


class Sessions:
    """Runs turns for one model."""

    def __init__(self, model: ChatModel, store: SessionStore, router: Router, anticipator: Anticipator) -> None:
        self.model = model
        self.finder = LedgerFinder(store, model.name)
        self._store = store
        self._router = router
        self._anticipator = anticipator

    async def run(self, request: TurnRequest) -> AsyncGenerator[TurnEvent]:
        """StartedTurn, any number of TurnText, TurnCalls if tools are called, FinishedTurn once all is in the ledger.

        Leaving early aborts the generation and stores nothing. Everything that can go wrong before the engine answers
        is raised before the first event: UnknownResponseError, UnknownConversationError, TurnConflictError,
        ContextLengthError, TemplateError, StoreUnavailableError and the router's errors. After it, only the router's
        errors, StoreUnavailableError and, in a conversation, TurnConflictError remain.
        """
        async with AsyncExitStack() as stack:
            if isinstance(request.origin, InConversation):
                conversation_id = request.origin.conversation_id
                await self.finder.require_conversation(conversation_id)
                claim = self._store.claimed(tag_of(conversation_id), conversation_id, secrets.token_hex(8))
                await stack.enter_async_context(claim)
            plan = await self._plan(request)
            async with aclosing(self._generate(plan)) as events:
                async for event in events:
                    yield event

    async def _plan(self, request: TurnRequest) -> _Plan:
        found = await self.finder.find(request)
        prompt = await self._prompt(request, found)
        sampling = self._fitted(request, len(prompt.ids))
        history, common = _continued(found.history, prompt)
        last = found.history.last
        anticipated = await self._anticipator.claim(last.uid if last else None, prompt.ids)
        reuse = self._reuse(request, found, prompt, common)
        return _Plan(request, found, prompt, history, common, sampling, reuse, self._think(prompt), anticipated)

    async def _prompt(self, request: TurnRequest, found: Found) -> Prompt:
        if sum(len(message.content) for message in found.fresh) > _THREAD_CHARS:
            return await asyncio.to_thread(self._build, request, found)
        return self._build(request, found)

    def _build(self, request: TurnRequest, found: Found) -> Prompt:
        history, prompts = found.history, self.model.prompts
        now = datetime.fromtimestamp(history.branch.started, UTC)
        if request.history == "append" and history.last is not None and _changed(request, found) is None:
            answer = len(found.head) + len(history.messages) - 1
            appended = prompts.append(
                found.messages, answer, history.ids, now=now, tools=request.tools, arguments=request.arguments
            )
            if appended is not None:
                return appended
        return prompts.build(
            found.messages,
            _spellings(found.head, history),
            now=now,
            known=history.known,
            tools=request.tools,
            arguments=request.arguments,
        )

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

    def _reuse(self, request: TurnRequest, found: Found, prompt: Prompt, common: int) -> Reuse:
        history, info = found.history, self._router.info
        held = history.cached_length
        changed, foreseen = _changed(request, found), common
        if common < held:
            foreseen = held if changed else len(self._foresee(request, found.head, history))
            changed = changed or "template_rewrite"
        return Reuse(
            held=held,
            common=common,
            foreseen=foreseen,
            prompt=len(prompt.ids),
            page=info.page_size if info else 1,
            previous_replica=history.last.replica if history.last else None,
            changed=changed,
        )

    def _foresee(self, request: TurnRequest, head: tuple[Message, ...], history: History) -> array[int]:
        return self.model.prompts.foresee(
            head + history.messages,
            _spellings(head, history),
            now=datetime.fromtimestamp(history.branch.started, UTC),
            tools=request.tools,
            arguments=request.arguments,
        )

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
        yield await self._append(plan, _Outcome(answer, calls, last, last.finish))

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

    async def _append(self, plan: _Plan, outcome: _Outcome) -> FinishedTurn:
        turn = self._turn(plan, outcome)
        try:
            return await self._store_turn(plan, plan.history, turn, outcome)
        except TurnConflictError:
            if plan.found.conversation is not None:
                raise
        history, turn = await self._beside(plan, turn)
        return await self._store_turn(plan, history, turn, outcome)

    async def _beside(self, plan: _Plan, turn: Turn) -> tuple[History, Turn]:
        """A fork for a turn whose place was taken, and the turn without what the one that took it holds already."""
        history = plan.history
        sibling = await self._store.read(history.branch.tag, Place(history.branch.id, history.own + 1))
        if sibling is None:  # what this history stands on has expired: begin again, with all of it
            root = self.finder.restarted(history)
            messages = plan.found.history.messages + turn.messages
            return root, replace(turn, messages=messages, prompt_ids=pack(plan.prompt.ids))
        shared = _common_messages(sibling.turns[-1].messages[:-1], turn.messages[:-1])
        length = common_prefix(sibling.ids, plan.prompt.ids)
        rest = pack(plan.prompt.ids[length:])
        fork = history.forked_beside(sibling, shared, length)
        return fork, replace(turn, messages=turn.messages[shared:], prompt_ids=rest)

    async def _store_turn(self, plan: _Plan, history: History, turn: Turn, outcome: _Outcome) -> FinishedTurn:
        request = plan.request
        finished = _finished(plan, outcome, history)
        response = None
        if request.response_id is not None and request.record is not None:
            response = (request.response_id, request.record(finished))
        appended = await self._store.append(NewTurn(history, turn, response, plan.found.conversation))
        self._anticipate(request, appended, turn)
        return finished

    def _turn(self, plan: _Plan, outcome: _Outcome) -> Turn:
        found, answer = plan.found, outcome.answer
        reply = Message("assistant", answer.content, answer.reasoning, tool_calls=outcome.calls)
        messages = (*found.fresh, reply)
        spelling = answer.spelling(outcome.finish.matched)
        return Turn(
            uid=new_name(),
            head=found.head,
            messages=messages,
            context=_context(plan.request),
            prompt_ids=pack(plan.prompt.ids[plan.common :]),
            output_ids=pack(answer.ids),
            kept=spelling.kept,
            tail=spelling.tail,
            answer=spelling.answer,
            rendered=plan.prompt.rendered,
            chain=self.finder.digest(plan.request, found, messages),
            replica=outcome.last.replica,
            created=time.time(),
        )

    def _anticipate(self, request: TurnRequest, history: History, turn: Turn) -> None:
        """Have the next prompt's beginning prefilled, if the template will not go on from what the engine holds."""
        if request.history == "append" or not self.model.rewrites:
            return
        foreseen = self._foresee(request, turn.head, history)
        held = common_prefix(foreseen, history.ids)
        if held >= history.cached_length:
            return  # nothing was rewritten
        cost = len(foreseen) - held
        info = self._router.info
        if info is not None and len(foreseen) // info.page_size > held // info.page_size:
            self._anticipator.begin(turn.uid, foreseen, cost, turn.replica)


def _spellings(head: tuple[Message, ...], history: History) -> dict[int, Spelling]:
    return {len(head) + index: spelling for index, spelling in history.spellings.items()}


def _context(request: TurnRequest) -> bytes:
    """A digest of what stands in the prompt besides messages."""
    tools = [tool.definition for tool in request.tools]
    return blake2b(orjson.dumps([tools, dict(request.arguments)]), digest_size=DIGEST_BYTES).digest()


def _changed(request: TurnRequest, found: Found) -> MissReason | None:
    """What the client changed in front of the history since the last turn."""
    last = found.history.last
    if last is None:
        return None
    if last.head != found.head:
        return "client_edit"
    return "tools_changed" if last.context != _context(request) else None


def _continued(history: History, prompt: Prompt) -> tuple[History, int]:
    """Where a prompt's turn is appended: after `history` when it extends it, else on a fork where it leaves it."""
    common = common_prefix(history.ids, prompt.ids)
    if common == len(history.ids):
        return history, common
    return history.forked(common), common


def _common_messages(left: Sequence[Message], right: Sequence[Message]) -> int:
    """How many messages the two begin with in common."""
    pairs = zip(left, right, strict=False)
    return next((index for index, (one, other) in enumerate(pairs) if one != other), min(len(left), len(right)))


def _finished(plan: _Plan, outcome: _Outcome, history: History) -> FinishedTurn:
    answer, last = outcome.answer, outcome.last
    place = Place(history.branch.id, history.own + 1)
    return FinishedTurn(
        session_id=history.branch.session_id,
        turn_id=f"turn_{history.branch.tag}_{place.branch}_{place.own}",
        replica=last.replica,
        content=answer.content,
        reasoning=answer.reasoning,
        calls=outcome.calls,
        finish=outcome.finish.type,
        prompt_ids=plan.prompt.ids,
        output_ids=answer.ids,
        reasoning_tokens=answer.reasoning_tokens,
        cached_tokens=last.cached_tokens,
        reusable_tokens=plan.reuse.reusable_tokens,
        anticipated_tokens=plan.anticipated,
        miss_reason=plan.reuse.miss_reason(last.cached_tokens, last.replica),
    )
