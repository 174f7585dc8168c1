"""Sessions: each turn finds its ledger, becomes a prompt, is generated, and is appended."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace

from programs.answer import Answer, AnswerDelta
from programs.anticipation import Anticipator
from programs.errors import TurnConflictError
from programs.explain import Reuse
from programs.finder import LedgerFinder, tag_of
from programs.hygiene import DEFAULT_RULES, HygieneRule
from programs.ledger import History, HistoryMode, Turn, new_name
from programs.message import Message, ToolCall
from programs.model import ChatModel
from programs.planner import TurnPlan, TurnPlanner, context_of
from programs.stops import stopped
from programs.store import NewTurn, Place, SessionStore
from programs.turn import FinishedTurn, InConversation, StartedTurn, TurnCalls, TurnEvent, TurnRequest, TurnText
from programs.window import WindowState, staying
from router.errors import EngineBrokeError
from router.ids import common_prefix, pack
from router.request import Delta, Finish, GenerateRequest
from router.router import Router

_THREAD_CHARS = 100_000
"""New text longer than this is encoded in a thread, so that other turns go on."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What the engine made of a plan."""

    answer: Answer
    calls: tuple[ToolCall, ...]
    began: str
    """The replica that had the first token: what it had cached is what the turn reused."""
    last: Delta
    finish: Finish
    anticipated: int


class Sessions:
    """Runs turns for one model."""

    def __init__(
        self,
        model: ChatModel,
        store: SessionStore,
        router: Router,
        anticipator: Anticipator,
        *,
        rules: Sequence[HygieneRule] = DEFAULT_RULES,
        default_history: HistoryMode = "template",
    ) -> None:
        """`rules` keep volatile lines from breaking prefixes; `default_history` is for sessions that choose no mode."""
        self.model = model
        self.finder = LedgerFinder(store, model.identity, rules)
        self._planner = TurnPlanner(model, router, default_history)
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
            last = plan.found.history.last
            anticipated = await self._anticipator.claim(last.uid if last else None, plan.prompt.ids)
            async with aclosing(self._generate(plan, anticipated)) as events:
                async for event in events:
                    yield event

    async def _plan(self, request: TurnRequest) -> TurnPlan:
        found = await self.finder.find(request)
        if sum(len(message.content) for message in found.fresh) > _THREAD_CHARS:
            return await asyncio.to_thread(self._planner.plan, request, found)
        return self._planner.plan(request, found)

    async def _generate(self, plan: TurnPlan, anticipated: int) -> AsyncGenerator[TurnEvent]:
        prompt_ids, stop = plan.prompt.ids, plan.sampling.stop
        may_call = bool(plan.request.tools) and plan.request.calls_allowed
        answer = Answer(self.model.tokenizer, prompt_ids, think=plan.think, stop=stop, calls=may_call)
        request = GenerateRequest(
            rid=secrets.token_hex(16),
            prompt_ids=prompt_ids,
            sampling=plan.sampling,
            home=plan.previous_replica,
            session=plan.history.branch.session_id,
            version=plan.previous_version,
            urgency=plan.request.urgency,
            cache_salt=plan.request.cache_salt,
            top_logprobs=plan.request.top_logprobs,
            shown=plan.request.streamed,
        )
        began, last = "", None
        async with aclosing(self._router.generate(request)) as deltas:
            async for delta in deltas:
                if last is None:
                    began = delta.replica
                    yield StartedTurn(plan.history.branch.session_id, began)
                # until it is resumed, the engine sees all of it
                last = stopped(self.model.tokenizer, answer.ids, delta, stop) if delta.resumes else delta
                yield TurnText(answer.push(last.token_ids), last.logprobs)
                if last.finish is not None and delta.finish is None:
                    break
        if last is None or last.finish is None:
            raise EngineBrokeError("the engine ended its stream before the generation ended")
        yield TurnText(answer.finish(last.finish.matched))
        calls, rest = await self._calls(plan, answer, last, last.finish)
        yield TurnText(rest)
        if calls:
            yield TurnCalls(calls)
        yield await self._append(plan, _Outcome(answer, calls, began, last, last.finish, anticipated))

    async def _calls(
        self, plan: TurnPlan, answer: Answer, last: Delta, finish: Finish
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

    async def _append(self, plan: TurnPlan, outcome: _Outcome) -> FinishedTurn:
        if plan.request.compacts:
            history, turn = self._compacted(plan, self._turn(plan, outcome))
            return await self._store_turn(plan, history, turn, outcome)
        turn = self._turn(plan, outcome)
        try:
            return await self._store_turn(plan, plan.history, turn, outcome)
        except TurnConflictError:
            # another turn follows the same one; whether a conversation's head has moved is judged again below
            history, turn = await self._beside(plan, turn)
        return await self._store_turn(plan, history, turn, outcome)

    def _compacted(self, plan: TurnPlan, turn: Turn) -> tuple[History, Turn]:
        """A new branch on which a summary stands for all before it, after the messages that no window drops."""
        found = plan.found
        *before, question = found.conversed
        kept = (before[index] for index in staying(before, [index for index in found.pinned if index < len(before)]))
        begun = self.finder.restarted(found.history)
        messages = (*kept, question, turn.messages[-1])
        digest = self.finder.digest(plan.request, replace(found, history=begun), messages)
        ids = pack(plan.prompt.ids)
        return begun, replace(turn, messages=messages, prompt_ids=ids, chain=digest, window=WindowState())

    async def _beside(self, plan: TurnPlan, turn: Turn) -> tuple[History, Turn]:
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

    async def _store_turn(self, plan: TurnPlan, history: History, turn: Turn, outcome: _Outcome) -> FinishedTurn:
        request = plan.request
        finished = _finished(plan, outcome, history, turn.messages, self._planner.reuse(plan))
        if request.one_off:
            return finished
        response = None
        if request.response_id is not None and request.record is not None:
            response = (request.response_id, request.record(finished))
        answer = self.finder.answer_digest(request.tenant, turn.messages[-1])
        appended = await self._store.append(NewTurn(history, turn, response, plan.found.conversation, answer))
        self._anticipate(request, appended, turn)
        return finished

    def _turn(self, plan: TurnPlan, outcome: _Outcome) -> Turn:
        found, answer = plan.found, outcome.answer
        reply = Message("assistant", answer.content, answer.reasoning, tool_calls=outcome.calls)
        messages = (*found.fresh, reply)
        spelling = answer.spelling(outcome.finish.matched)
        return Turn(
            uid=new_name(),
            head=found.head,
            messages=messages,
            context=context_of(plan.request),
            prompt_ids=pack(plan.prompt.ids[plan.common :]),
            output_ids=pack(answer.ids),
            kept=spelling.kept,
            tail=spelling.tail,
            answer=spelling.answer,
            rendered=plan.prompt.rendered,
            chain=self.finder.digest(plan.request, found, messages),
            replica=outcome.last.replica,
            created=time.time(),
            version=self._router.version_of(outcome.last.replica) or plan.previous_version,
            pins=dict(found.pins),
            mode=plan.request.history or "template",
            cache_salt=plan.request.cache_salt,
            window=plan.window,
        )

    def _anticipate(self, request: TurnRequest, history: History, turn: Turn) -> None:
        """Have the next prompt's beginning prefilled, if it will not go on from what the engine holds."""
        foreseen = self._planner.foresee_rewrite(request, turn.head, history)
        held = 0 if foreseen is None else common_prefix(foreseen, history.ids)
        if foreseen is None or held >= history.cached_length:
            return  # nothing will be rewritten
        cost = len(foreseen) - held
        info = self._router.info
        if info is not None and len(foreseen) // info.page_size > held // info.page_size:
            self._anticipator.begin(turn, foreseen, cost)


def _common_messages(left: Sequence[Message], right: Sequence[Message]) -> int:
    """How many messages the two begin with in common."""
    pairs = zip(left, right, strict=False)
    return next((index for index, (one, other) in enumerate(pairs) if one != other), min(len(left), len(right)))


def _finished(
    plan: TurnPlan, outcome: _Outcome, history: History, messages: tuple[Message, ...], reuse: Reuse
) -> FinishedTurn:
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
        reusable_tokens=reuse.reusable_tokens,
        anticipated_tokens=outcome.anticipated,
        miss_reason=reuse.miss_reason(last.cached_tokens, outcome.began),
        difference=plan.found.difference,
        changes=plan.changes,
        dropped=plan.dropped,
        messages=messages,
        resumes=last.resumes,
    )
