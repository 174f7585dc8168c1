"""From a request and its ledger to a turn ready to be generated: what is shown, within which window, and why so."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from hashlib import blake2b

import orjson

from programs.answer import ThinkTokens
from programs.errors import ContextLengthError
from programs.explain import MissReason, Reuse
from programs.finder import Found
from programs.hygiene import HygieneChange, ordered_tools
from programs.ledger import History, HistoryMode
from programs.message import DIGEST_BYTES, Message
from programs.model import ChatModel
from programs.prompt import Prompt, Spelling
from programs.sizes import MessageSizes
from programs.turn import TurnRequest
from programs.window import Window, WindowPolicy, WindowState, anticipate, fit
from router.ids import common_prefix
from router.request import Sampling
from router.router import Router

_RESERVED_SHARE = 8
"""Without a `max_tokens`, a window leaves this fraction of the context for the answer."""
_REFITS = 4


@dataclass(frozen=True, slots=True)
class TurnPlan:
    """A turn ready to be generated. `history` is where it will be appended, `common` ids of it are the prompt's.

    `slid` says that the window dropped more than before, `changes` are all that hygiene did, `dropped` the indices of
    messages, the head included, that are not shown.
    """

    request: TurnRequest
    found: Found
    prompt: Prompt
    history: History
    common: int
    sampling: Sampling
    think: ThinkTokens | None
    window: WindowState
    slid: bool
    changes: tuple[HygieneChange, ...]
    dropped: tuple[int, ...]

    @property
    def compared(self) -> History:
        """The history that this turn could have reused: the one it goes on from, or the one that the client changed."""
        return self.found.edited or self.found.history

    @property
    def previous_replica(self) -> str | None:
        last = self.compared.last
        return last.replica if last else None

    @property
    def previous_version(self) -> str | None:
        last = self.compared.last
        return last.version if last else None


@dataclass(frozen=True, slots=True)
class _View:
    """The messages a prompt shows, and how the answers among them are spelled."""

    messages: tuple[Message, ...]
    spellings: dict[int, Spelling]


@dataclass(frozen=True, slots=True)
class _Built:
    prompt: Prompt
    window: WindowState = field(default_factory=WindowState)
    moved: bool = False
    dropped: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Limits:
    """In tokens: what prompt and answer may take together, and how much of it is the answer's."""

    context: int
    reserve: int

    @property
    def room(self) -> int:
        return self.context - self.reserve


class TurnPlanner:
    """Plans turns of one model. `default_history` is the mode of sessions that choose none."""

    def __init__(self, model: ChatModel, router: Router, default_history: HistoryMode = "template") -> None:
        self._model = model
        self._router = router
        self._default_history = default_history

    def plan(self, request: TurnRequest, found: Found) -> TurnPlan:
        """Raises ContextLengthError, TemplateError and TemplateRefusedError."""
        tools = ordered_tools(request.tools)
        changes = found.changes + _reordered(request, [tool.name for tool in tools])
        request = replace(request, tools=tools, history=self._mode(request, found.history))
        built = self._build(request, found)
        prompt = built.prompt
        sampling = self._fitted(request, len(prompt.ids))
        history, common = _continued(found.history, prompt)
        return TurnPlan(
            request=request,
            found=found,
            prompt=prompt,
            history=history,
            common=common,
            sampling=sampling,
            think=self._think(prompt),
            window=built.window,
            slid=built.moved,
            changes=changes,
            dropped=built.dropped,
        )

    def reuse(self, plan: TurnPlan) -> Reuse:
        """Takes as long as two prompts where the template rewrote: not to be done before the engine is asked."""
        request, found, prompt = plan.request, plan.found, plan.prompt.ids
        history, info = plan.compared, self._router.info
        held = history.cached_length
        common = common_prefix(history.ids, prompt)
        changed, foreseen = _changed(request, found), common
        if common < held:
            foreseen = held if changed else self._foreseen(plan)
            changed = changed or ("window" if plan.slid else "template_rewrite")
        return Reuse(
            held=held,
            common=common,
            foreseen=foreseen,
            prompt=len(prompt),
            page=info.page_size if info else 1,
            previous_replica=plan.previous_replica,
            changed=changed,
        )

    def _foreseen(self, plan: TurnPlan) -> int:
        """How much of a prompt was certain when the turn before ended; all that was held, where a window slid that
        nobody could tell would.
        """
        request, found = plan.request, plan.found
        window = self._foreseen_window(request, found.history)
        foreseen = self._foresee(request, found.head, found.history, window)
        if plan.slid and common_prefix(foreseen, plan.prompt.ids) < len(foreseen):
            return found.history.cached_length
        return len(foreseen)

    def foresee_rewrite(self, request: TurnRequest, head: tuple[Message, ...], history: History) -> array[int] | None:
        """The ids with which the prompt after `history`, which ends with an answer, will begin; None when they are
        those of the history itself.
        """
        window = self._foreseen_window(request, history)
        slides = window is not None and window.boundary != _window_of(history).boundary
        rewrites = self._model.rewrites and request.history != "append"
        return self._foresee(request, head, history, window) if slides or rewrites or request.compacts else None

    def _foresee(
        self, request: TurnRequest, head: tuple[Message, ...], history: History, window: Window | None
    ) -> array[int]:
        view = _view(head, history, (), window)
        return self._model.prompts.foresee(
            view.messages,
            view.spellings,
            now=_started(history),
            known=history.known,
            tools=request.tools,
            arguments=request.arguments,
        )

    def _mode(self, request: TurnRequest, history: History) -> HistoryMode:
        return request.history or (history.last.mode if history.last else self._default_history)

    def _build(self, request: TurnRequest, found: Found) -> _Built:
        if request.truncation == "disabled":
            return _Built(self._prompt(request, found, None))
        limits, state = self._limits(request), _window_of(found.history)
        if state.boundary:
            return self._build_within(request, found, limits, state)
        prompt = self._prompt(request, found, None)
        if len(prompt.ids) <= limits.room:
            return _Built(prompt)
        overhead = len(prompt.ids) - sum(self._sizes.of(found.conversed, found.history.spellings))
        return self._build_within(request, found, limits, WindowState(0, max(0, overhead)))

    def _build_within(self, request: TurnRequest, found: Found, limits: _Limits, state: WindowState) -> _Built:
        """Sizes are estimates: where the prompt is longer than they said, the window is chosen again."""
        sizes, overhead = self._sizes.of(found.conversed, found.history.spellings), state.overhead
        window, prompt = self._windowed(request, found, sizes, _policy(limits, overhead))
        for _ in range(_REFITS):
            excess = len(prompt.ids) - limits.room
            if excess <= 0:
                break
            overhead += excess
            window, prompt = self._windowed(request, found, sizes, _policy(limits, overhead))
        size = len(found.head)
        left = WindowState(window.boundary, max(0, len(prompt.ids) - window.tokens))
        return _Built(prompt, left, window.moved, tuple(size + index for index in window.dropped))

    def _windowed(
        self, request: TurnRequest, found: Found, sizes: list[int], policy: WindowPolicy
    ) -> tuple[Window, Prompt]:
        boundary = _window_of(found.history).boundary
        window = fit(found.conversed, sizes, policy, boundary, found.pinned)
        return window, self._prompt(request, found, window)

    def _prompt(self, request: TurnRequest, found: Found, window: Window | None) -> Prompt:
        history, prompts = found.history, self._model.prompts
        view = _view(found.head, history, found.fresh, window)
        now = _started(history)
        if request.history == "append" and _goes_on(request, found, window):
            answer = len(view.messages) - len(found.fresh) - 1
            appended = prompts.append(
                view.messages, answer, history.ids, now=now, tools=request.tools, arguments=request.arguments
            )
            if appended is not None:
                return appended
        return prompts.build(
            view.messages,
            view.spellings,
            now=now,
            known=history.known,
            tools=request.tools,
            arguments=request.arguments,
        )

    def _limits(self, request: TurnRequest) -> _Limits:
        context, longest = self._context
        reserve = request.max_tokens or max(1, context // _RESERVED_SHARE)
        return _Limits(min(context, longest + reserve), reserve)

    @property
    def _context(self) -> tuple[int, int]:
        """The context's length, and that of the longest prompt."""
        info = self._router.info
        if info is None:
            return self._model.context_length, self._model.context_length - 1
        return info.context_length, info.max_prompt_tokens

    def _fitted(self, request: TurnRequest, prompt_tokens: int) -> Sampling:
        """The sampling with the tokens that may be made. Raises ContextLengthError when none, or not enough, may."""
        context, longest = self._context
        asked = request.max_tokens
        if prompt_tokens > longest or prompt_tokens + (asked or 1) > context:
            answer = f" and {asked} tokens were asked for after it" if asked else ""
            raise ContextLengthError(
                f"This model's maximum context length is {context} tokens, of which a prompt may take {longest}; "
                f"your prompt has {prompt_tokens} tokens{answer}. Shorten the messages, lower max_tokens, or send "
                'truncation: "auto" to have the oldest turns dropped.'
            )
        sampling = replace(request.sampling, max_new_tokens=asked or context - prompt_tokens)
        return self._model.with_defaults(sampling)

    def _foreseen_window(self, request: TurnRequest, history: History) -> Window | None:
        """The window of the next prompt, as far as can be told; None when it shows everything."""
        if request.truncation == "disabled":
            return None
        limits, state = self._limits(request), _window_of(history)
        if not state.boundary and 2 * len(history.ids) <= limits.room:
            return None  # not even another turn as long as all before would move it
        messages = history.messages
        sizes = self._sizes.of(messages, history.spellings)
        overhead = state.overhead or max(0, len(history.ids) - sum(sizes))
        pinned = [index for index, message in enumerate(messages) if message.pinned]
        policy = _policy(limits, overhead)
        window = anticipate(messages, sizes, policy, state.boundary, pinned)
        if window is None and state.boundary:
            return _as_it_is(messages, sizes, policy, state, pinned)
        return window

    @cached_property
    def _sizes(self) -> MessageSizes:
        return MessageSizes(self._model.prompts, drops_reasoning=self._model.rewrites)

    def _think(self, prompt: Prompt) -> ThinkTokens | None:
        think = self._model.think
        if think is None:
            return None
        tail = prompt.ids[-4:]
        opened = think.open in tail and think.close not in tail
        return replace(think, opened_by_prompt=opened)


def context_of(request: TurnRequest) -> bytes:
    """A digest of what stands in the prompt besides messages."""
    tools = [tool.definition for tool in request.tools]
    return blake2b(orjson.dumps([tools, dict(request.arguments)]), digest_size=DIGEST_BYTES).digest()


def _view(head: tuple[Message, ...], history: History, fresh: tuple[Message, ...], window: Window | None) -> _View:
    """The head, then of history and fresh messages those that the window keeps (None: all)."""
    size, messages = len(head), history.messages + fresh
    if window is None:
        return _View(head + messages, {size + index: spelling for index, spelling in history.spellings.items()})
    spelled = enumerate(map(history.spellings.get, window.kept), start=size)
    spellings = {place: spelling for place, spelling in spelled if spelling is not None}
    return _View((*head, *(messages[index] for index in window.kept)), spellings)


def _goes_on(request: TurnRequest, found: Found, window: Window | None) -> bool:
    """Whether the last turn's ids can be a prompt's first: nothing changed in front, and the window stays."""
    last = found.history.last
    if last is None or _changed(request, found) is not None:
        return False
    return last.window.boundary == (window.boundary if window else 0)


def _policy(limits: _Limits, overhead: int) -> WindowPolicy:
    if limits.reserve + overhead >= limits.context:
        raise ContextLengthError(
            f"This model's maximum context length is {limits.context} tokens: {limits.reserve} for the answer and "
            f"{overhead} for tools and instructions leave no room for messages. Lower max_tokens or send fewer tools."
        )
    return WindowPolicy(limits.context, limits.reserve, overhead)


def _as_it_is(
    messages: tuple[Message, ...], sizes: list[int], policy: WindowPolicy, state: WindowState, pinned: Sequence[int]
) -> Window | None:
    try:
        return fit(messages, sizes, policy, state.boundary, pinned)
    except ContextLengthError:
        return None


def _window_of(history: History) -> WindowState:
    return history.last.window if history.last else WindowState()


def _started(history: History) -> datetime:
    return datetime.fromtimestamp(history.branch.started, UTC)


def _changed(request: TurnRequest, found: Found) -> MissReason | None:
    """What the client changed since the last turn, or in front of it."""
    last = found.history.last
    if found.changed is not None or last is None:
        return found.changed
    if last.cache_salt != request.cache_salt:
        return "salt"
    return "tools_changed" if last.context != context_of(request) else None


def _reordered(request: TurnRequest, names: list[str]) -> tuple[HygieneChange, ...]:
    sent = [tool.name for tool in request.tools]
    return () if sent == names else (HygieneChange("tool-order", None, ", ".join(sent), ", ".join(names)),)


def _continued(history: History, prompt: Prompt) -> tuple[History, int]:
    """Where a prompt's turn is appended: after `history` when it extends it, else on a fork where it leaves it."""
    common = common_prefix(history.ids, prompt.ids)
    if common == len(history.ids):
        return history, common
    return history.forked(common), common
