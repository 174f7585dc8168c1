"""Histories edited, forked, regenerated and resent at random: never a wrong id, never a lost turn.

Two fronts share an engine and a store; which one a turn comes to is chance, as behind a load balancer. What the engine
itself read and wrote is compared with plain lists of ids.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import aiohttp
import pytest
import uvloop
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from programs.anticipation import AnticipationBudget, Anticipator
from programs.errors import UnknownResponseError
from programs.finder import new_conversation_id, new_response_id, tag_of
from programs.message import Message
from programs.model import ChatModel
from programs.session import Sessions
from programs.store import SessionStore, connect
from programs.turn import AfterResponse, FinishedTurn, InConversation, Origin, Resend, TurnRequest
from router.engine.client import EngineClient
from router.errors import NoReplicaError
from router.registry.spec import ReplicaSpec
from router.request import Sampling
from router.router import Router
from tests.conftest import engine_options
from tests.fake_engine import FakeEngine, running_fake_engine
from tests.model_files import tiny_tokenizer
from tests.programs.plain_lists import Made, Messages, PlainLists, asked, mangled, root_of

OPERATIONS = 10_000
PIECES = ("h", "a", "ha", "v", "ving", "ing", "Ġ", "Ġha", "Ġhaving", "t", "he", "the", "Ġthe", "Ċ", "č", "Ã", "©")
"""What the engine writes with: words that may be cut in many ways, line endings, and the halves of a character."""
SAID = ("", "hello", "having", " having fun", "the\nfox", "the\r\nfox\n", "é", "<|im_end|>\n<|im_start|>assistant\nha")

TEXT = st.sampled_from(SAID)
HEAD = st.sampled_from(((), (Message("system", "be brief"),), (Message("system", "be kind"),)))
ANY = st.integers(0, 255)
LATE = st.integers(0, 2)
FRONT = st.integers(0, 1)

T = TypeVar("T")


@dataclass
class Stage:
    """What all histories share: an engine, a store, and the loop in which everything runs."""

    runner: asyncio.Runner
    engine: FakeEngine
    router: Router
    model_dir: Path
    store_url: str
    operations: int = 0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    async def ready(self) -> None:
        while self.router.trouble():
            await asyncio.sleep(0.002)

    def seen(self, finished: FinishedTurn) -> tuple[list[int], list[int]]:
        """The ids that the engine itself read and wrote."""
        prompt = array("I", finished.prompt_ids).tobytes()
        seen = next(one for one in reversed(self.engine.state.finished) if one.prompt == prompt)
        return array("I", seen.prompt).tolist(), list(seen.output_ids)

    def open_front(self) -> Front:
        store = SessionStore(connect(self.store_url), ttl_s=1000)
        anticipator = Anticipator(self.router, AnticipationBudget())
        return Front(store, Sessions(ChatModel.load(self.model_dir), store, self.router, anticipator))


@dataclass
class Front:
    """A front that has read nothing yet."""

    store: SessionStore
    sessions: Sessions


@pytest.fixture
def stage(store: str, model_dir: Path) -> Iterator[Stage]:
    vocabulary = tiny_tokenizer().get_vocab()
    changes = {"vocabulary": tuple(vocabulary[piece] for piece in PIECES), "end_probability": 0.2}

    @asynccontextmanager
    async def parts() -> AsyncIterator[tuple[FakeEngine, Router]]:
        async with (
            running_fake_engine(engine_options(model_dir, **changes)) as engine,
            aiohttp.ClientSession() as http,
            Router(lambda spec: EngineClient(spec.name, spec.url, http), [ReplicaSpec("only", engine.url)]) as router,
        ):
            yield engine, router

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        opened = parts()
        engine, router = runner.run(opened.__aenter__())
        stage = Stage(runner, engine, router, model_dir, store)
        runner.run(stage.ready())
        yield stage
        runner.run(opened.__aexit__(None, None, None))


class RandomHistories(RuleBasedStateMachine):
    """What other examples left in the store is another tenant's, and must not be found."""

    stage: ClassVar[Stage]
    tenants = count()

    def __init__(self) -> None:
        super().__init__()
        self.tenant = f"tenant {next(self.tenants)}"
        self.fronts = [self.stage.open_front(), self.stage.open_front()]
        self.plain = PlainLists()
        self.sessions: set[str] = set()
        self.conversations: dict[str, Made | None] = {}
        self.deleted: set[str] = set()

    # What is asked, as clients ask it.

    @initialize(text=TEXT, dice=LATE)
    def begin_the_first(self, text: str, dice: int) -> None:
        self.resend((), (Message("user", text),), 0, dice)

    @rule(text=TEXT, head=HEAD, front=FRONT, dice=LATE)
    def begin(self, text: str, head: Messages, front: int, dice: int) -> None:
        self.resend(head, (Message("user", text),), front, dice)

    @rule(text=TEXT, front=FRONT, dice=LATE)
    def begin_with_examples(self, text: str, front: int, dice: int) -> None:
        examples = (Message("system", "answer"), Message("user", "having"), Message("assistant", "having fun"))
        self.resend((), (*examples, Message("user", text)), front, dice)

    @rule(which=LATE, text=TEXT, front=FRONT, dice=LATE)
    def go_on_by_resending(self, which: int, text: str, front: int, dice: int) -> None:
        made = self.late(which)
        self.resend(made.head, (*made.messages, Message("user", text)), front, dice)

    @rule(which=ANY, text=TEXT, front=FRONT, dice=LATE)
    def go_on_by_resending_it_mangled(self, which: int, text: str, front: int, dice: int) -> None:
        made = self.late(which)
        self.resend(made.head, (*mangled(made.messages), Message("user", text)), front, dice)

    @rule(which=LATE, text=TEXT, front=FRONT, dice=LATE)
    def go_on_after_the_response(self, which: int, text: str, front: int, dice: int) -> None:
        made = self.late(which)
        self.continue_response(made, made.head, text, front, dice)

    @rule(which=ANY, text=TEXT, head=HEAD, front=FRONT, dice=LATE)
    def fork_from_an_old_response(self, which: int, text: str, head: Messages, front: int, dice: int) -> None:
        self.continue_response(self.late(which), head, text, front, dice)

    @rule(which=ANY, front=FRONT, dice=LATE)
    def regenerate(self, which: int, front: int, dice: int) -> None:
        made = self.late(which)
        self.resend(made.head, made.messages[:-1], front, dice)

    @rule(which=ANY, where=ANY, text=TEXT, front=FRONT, dice=LATE)
    def edit_and_drop_what_followed(self, which: int, where: int, text: str, front: int, dice: int) -> None:
        made = self.late(which)
        edited = question(made, where)
        self.resend(made.head, (*made.messages[:edited], Message("user", f"{text} edited")), front, dice)

    @rule(which=ANY, where=ANY, text=TEXT, front=FRONT, dice=LATE)
    def edit_and_keep_what_followed(self, which: int, where: int, text: str, front: int, dice: int) -> None:
        made = self.late(which)
        edited = question(made, where)
        rest = (*made.messages[edited + 1 :], Message("user", text))
        self.resend(made.head, (*made.messages[:edited], Message("user", f"{text} edited"), *rest), front, dice)

    @rule(which=ANY, text=TEXT, front=FRONT, dice=LATE)
    def go_on_twice_at_once(self, which: int, text: str, front: int, dice: int) -> None:
        made = self.late(which)
        if made.response in self.deleted:
            return
        requests = [self.request(after(made), made.head, (Message("user", f"{text} {n}"),), dice) for n in range(2)]
        both = [self.ask(request, (front + n) % 2) for n, request in enumerate(requests)]
        for request, finished in zip(requests, self.stage.run(_together(both)), strict=True):
            self.check(request, finished, made, request.messages)

    @rule(which=ANY, text=TEXT, front=FRONT, dice=LATE)
    def go_on_in_a_conversation(self, which: int, text: str, front: int, dice: int) -> None:
        number = which % (len(self.conversations) + 1)
        if number == len(self.conversations):
            self.begin_a_conversation()
        name = list(self.conversations)[number]
        before = self.conversations[name]
        request = self.request(InConversation(name), (), (Message("user", text),), dice)
        finished = self.stage.run(self.ask(request, front))
        self.conversations[name] = self.check(request, finished, before, request.messages, root=name)

    def begin_a_conversation(self) -> None:
        name = new_conversation_id()
        self.conversations[name] = None
        self.stage.run(self.fronts[0].store.create_conversation(tag_of(name), name, b"{}"))

    @rule(trouble=st.sampled_from(("deleted", "restarted", "left", "broken")), which=ANY, front=FRONT)
    def have_trouble(self, trouble: str, which: int, front: int) -> None:
        self.stage.operations += 1
        match trouble:
            case "deleted":
                self.delete_a_response(self.late(which))
            case "restarted":
                self.restart(front)
            case "left":
                self.leave_before_the_end(self.late(which), front)
            case "broken":
                self.break_the_engine(self.late(which), 1 + which % 3, front)

    def delete_a_response(self, made: Made) -> None:
        existed = self.stage.run(self.fronts[0].store.delete_response(tag_of(made.response), made.response))
        assert existed == (made.response not in self.deleted)
        self.deleted.add(made.response)

    def restart(self, front: int) -> None:
        self.stage.run(self.fronts[front].store.aclose())
        self.fronts[front] = self.stage.open_front()

    def leave_before_the_end(self, made: Made, front: int) -> None:
        request = self.request(Resend(), made.head, (*made.messages, Message("user", "never mind")), 0)
        self.stage.run(_leave(self.fronts[front].sessions, request))

    def break_the_engine(self, made: Made, after: int, front: int) -> None:
        request = self.request(Resend(), made.head, (*made.messages, Message("user", "are you there")), 0)
        self.stage.engine.fail(cut_next=1, cut_after_tokens=after)
        try:
            finished = self.stage.run(self.ask(request, front))
        except NoReplicaError:  # nothing had come
            self.stage.run(self.stage.ready())
        else:
            self.check(request, finished, *self.plain.find(made.head, request.messages))

    # What must come of it.

    def late(self, which: int) -> Made:
        """Zero is the last turn made."""
        return self.plain.made[-1 - which % len(self.plain.made)]

    def resend(self, head: Messages, messages: Messages, front: int, dice: int) -> None:
        request = self.request(Resend(), head, messages, dice)
        finished = self.stage.run(self.ask(request, front))
        before, fresh = self.plain.find(head, messages)
        self.check(request, finished, before, fresh)

    def continue_response(self, made: Made, head: Messages, text: str, front: int, dice: int) -> None:
        request = self.request(after(made), head, (Message("user", text),), dice)
        if made.response in self.deleted:
            with pytest.raises(UnknownResponseError):
                self.stage.run(self.ask(request, front))
        else:
            self.check(request, self.stage.run(self.ask(request, front)), made, request.messages)

    def request(self, origin: Origin, head: Messages, messages: Messages, dice: int) -> TurnRequest:
        sampling = Sampling(max_new_tokens=0, temperature=1.0, seed=dice)
        named = TurnRequest(self.tenant, origin, messages, sampling, max_tokens=4 + dice, head=head)
        tag = self.fronts[0].sessions.finder.tag(named)
        return replace(named, response_id=new_response_id(tag), record=lambda finished: b"{}")

    async def ask(self, request: TurnRequest, front: int) -> FinishedTurn:
        return await _finish(self.fronts[front].sessions, request)

    def check(
        self, request: TurnRequest, finished: FinishedTurn, before: Made | None, fresh: Messages, root: object = None
    ) -> Made:
        """The engine was asked exactly what the lists say; then the turn is added to them."""
        self.stage.operations += 1
        expected = before.continued(request.head, fresh) if before else [*asked((*request.head, *fresh))]
        prompt, output = self.stage.seen(finished)
        assert prompt == expected
        assert output == list(finished.output_ids)
        if before is None:
            assert finished.session_id not in self.sessions
            self.sessions.add(finished.session_id)
        else:
            assert finished.session_id == before.session
        history = before.messages if before else ()
        assert request.response_id is not None
        made = Made(
            ids=prompt + output,
            messages=(*history, *fresh, Message("assistant", finished.content)),
            head=request.head,
            root=before.root if before else root or root_of(request.head, fresh),
            session=finished.session_id,
            response=request.response_id,
        )
        self.plain.add(made)
        return made

    def teardown(self) -> None:
        """To a front that has read nothing yet, every turn is there."""
        self.fronts.append(self.stage.open_front())
        try:
            self.stage.run(self._all_is_there())
        finally:
            for front in self.fronts:
                self.stage.run(front.store.aclose())

    async def _all_is_there(self) -> None:
        finder = self.fronts[-1].sessions.finder
        for made in self.plain.made:
            if made.response not in self.deleted:
                found = await finder.find(self.request(after(made), made.head, (Message("user", "more"),), 0))
                assert found.history.ids.tolist() == made.ids


def after(made: Made) -> AfterResponse:
    return AfterResponse(made.response)


def question(made: Made, where: int) -> int:
    """Which message of the history is edited: any of its user's."""
    questions = [index for index, message in enumerate(made.messages) if message.role == "user"]
    return questions[where % len(questions)]


async def _together(work: list[Coroutine[Any, Any, T]]) -> list[T]:
    return await asyncio.gather(*work)


async def _finish(sessions: Sessions, request: TurnRequest) -> FinishedTurn:
    *_, last = [event async for event in sessions.run(request)]
    assert isinstance(last, FinishedTurn)
    return last


async def _leave(sessions: Sessions, request: TurnRequest) -> None:
    async with aclosing(sessions.run(request)) as events:
        await anext(events)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_thousand_operations_leave_every_id_where_it_was(stage: Stage) -> None:
    RandomHistories.stage = stage
    run_state_machine_as_test(
        RandomHistories,
        settings=settings(
            max_examples=115,
            stateful_step_count=100,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert stage.operations >= OPERATIONS
