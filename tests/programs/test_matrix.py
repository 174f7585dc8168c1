"""The promise, over model families, kinds of conversation, ways to tell the history, and what clients do to it.

Each prompt extends the ledger exactly where the template keeps what was said, whatever was generated: split merges,
decomposed accents, characters cut in two.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import pytest
import pytest_asyncio
from redis import Redis

from programs.model import ChatModel
from tests.programs.answers import Written, conversation, weather
from tests.programs.clients import Backstage, Client, Exchange, Way, backstage
from tests.programs.expected import Expected, can_show
from tests.programs.families import FAMILIES, Case, Family, model_of
from tests.programs.manglings import MANGLINGS, Mangling, as_sent

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOOL_CASES = (Case.TOOL_LOOP, Case.POST_LOOP)

# In the order of Case. Of each prompt after the first: `+` it extends the ledger whole, `.` only as far as the template
# keeps what was said; `--` the template cannot do it, `??` the front gets it wrong.
EXTENDS = {
    #                      plain thinking loop post-loop slide
    "qwen2_5": "            ++++    --     ++    ++++    +++.++.++",
    "qwen3": "              ++++    ...    ++    ++..    +++.++.++",
    "qwen3_instruct_2507": "++++    --     ++    ++++    +++.++.++",
    "qwen3_vl": "           ++++    --     ++    ++++    +++.++.++",
    "qwen3_6": "            ....    ...    ++    ++..    .........",
    "qwen3_8": "            ++++    +++    ++    ++++    +++.++.++",
    "llama3": "             ++++    --     --    --      +++.++.++",
    "llama3_1": "           ++++    --     ++    ++++    ++++.+++.",
    "llama3_2": "           ++++    --     ++    ++++    ++++.+++.",
    "deepseekv3": "         ....    ...    .     .+.     .........",
    "gemma": "              ++++    --     --    --      +++.++.++",
    "gemma3": "             ++++    --     --    --      +++.++.++",
    "gptoss": "             ..+.    ??     ??    ??      .........",
    "glm4moe": "            ++++    ...    ++    ++..    +++.++.++",
    "nemotron_3_nano": "    ....    ...    ++    ++..    .........",
    "lfm2_2_5": "           ++++    ...    ++    ++..    +++.++.++",
    "phi3": "               ++++    --     --    --      +++.++.++",
    "cohere2": "            ++++    --     --    --      ++++.+++.",
}
QUICK = {"qwen3"}
"""Families whose cells belong to the fast tests."""
WINDOW = 150
"""Tokens for what follows the first question: some three turns."""
OSLO, BERGEN = weather("Oslo", "2.0"), weather("Bergen", "1")


def cell(family: Family, case: Case, *more: object, known: bool = False) -> Any:
    """A test's parameters; `known` says that its prompts are those of `Family.unread`."""
    marks = [] if str(family) in QUICK else [pytest.mark.slow]
    if known and case in family.unread:
        marks.append(pytest.mark.xfail(reason=family.unread[case], raises=(AssertionError, KeyError), strict=True))
    return pytest.param(family, case, *more, marks=marks, id="-".join(map(str, (family, case, *more))))


CELLS = [(family, case) for family in FAMILIES for case in Case if case not in family.lacks]
LACKING = [(family, case) for family in FAMILIES for case in family.lacks]


def changes(mangling: Mangling, family: Family, case: Case, way: Way) -> bool:
    """Whether the mangling has anything to change there, in prompts that are right as they are."""
    if case in family.unread or case not in mangling.cases:
        return False
    has = {
        "": True,
        "reasoning": case not in (Case.PLAIN, Case.WINDOW_SLIDE) and Case.THINKING not in family.lacks,
        "parallel calls": family.parallel,
        "calls alone": family.beside is None or family.rounds > 1,
    }
    if not has[mangling.needs] or (mangling.in_chat_alone and way is not Way.CHAT):
        return False
    return way is not Way.AFTER or mangling.seen_when_new


@lru_cache
def model(family: Family) -> ChatModel:
    return model_of(family)


@lru_cache
def expected(family: Family, case: Case) -> Expected:
    return Expected(family, model(family), conversation(family, case))


class Stage:
    """Holds conversations, each only once as it was sent."""

    def __init__(self, backstage: Backstage) -> None:
        self._backstage = backstage
        self._as_sent: dict[tuple[Family, Case, Way], list[Exchange]] = {}

    async def as_sent(self, family: Family, case: Case, way: Way) -> list[Exchange]:
        if (family, case, way) not in self._as_sent:
            client = self.client(family, case, way)
            self._as_sent[family, case, way] = await client.hold(conversation(family, case))
        return self._as_sent[family, case, way]

    def client(self, family: Family, case: Case, way: Way, mangling: Mangling | None = None) -> Client:
        sessions = self._backstage.sessions(model(family))
        mangle, name = (mangling.mangle, mangling.name) if mangling else (as_sent, "as sent")
        tenant = f"{case}, {way}, {name}"
        client = Client(self._backstage.engine, sessions, way, mangle, tenant, tools=case in TOOL_CASES)
        if case is Case.WINDOW_SLIDE:
            client.window = WINDOW + expected(family, case).first_tokens
        return client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(valkey: str) -> AsyncIterator[Stage]:
    with Redis.from_url(valkey) as redis:
        redis.flushall()
    async with backstage(valkey) as things:
        yield Stage(things)


@pytest.mark.parametrize(
    ("family", "case", "way"), [cell(family, case, way, known=True) for family, case in CELLS for way in Way]
)
async def test_prompts_say_what_the_template_says_in_the_spelling_of_the_ledger(
    stage: Stage, family: Family, case: Case, way: Way
) -> None:
    exchanges = await stage.as_sent(family, case, way)
    extends = expected(family, case).check(exchanges)
    assert "".join(".+"[one] for one in extends) == EXTENDS[family.name].split()[list(Case).index(case)]
    assert len({one.session_id for one in exchanges}) == 1


@pytest.mark.parametrize(
    ("family", "case", "way"), [cell(family, Case.WINDOW_SLIDE, way) for family in FAMILIES for way in Way]
)
async def test_a_window_slides_by_whole_turns_and_then_stays_for_some(
    stage: Stage, family: Family, case: Case, way: Way
) -> None:
    exchanges = await stage.as_sent(family, case, way)
    extends = expected(family, case).check(exchanges)
    dropped = [len(one.dropped) for one in exchanges]
    assert all(one.dropped == tuple(range(len(one.dropped))) for one in exchanges)
    assert all(count % 2 == 0 for count in dropped)
    slides = [later - earlier for earlier, later in pairwise(dropped)]
    moved = [number for number, slide in enumerate(slides) if slide]
    assert len(moved) >= 2
    assert all(slide == 0 or slide >= 4 for slide in slides)
    assert all(later - earlier >= 2 for earlier, later in pairwise(moved))
    preserves = extends[0]
    assert extends == [preserves and not slide for slide in slides]


@pytest.mark.parametrize(
    ("family", "case", "way", "mangling"),
    [
        cell(family, case, way, mangling)
        for family, case in CELLS
        for way in Way
        for mangling in MANGLINGS
        if changes(mangling, family, case, way)
    ],
)
async def test_what_clients_do_to_a_history_changes_no_prompt(
    stage: Stage, family: Family, case: Case, way: Way, mangling: Mangling
) -> None:
    client = stage.client(family, case, way, mangling)
    exchanges = await client.hold(conversation(family, case))
    assert client.changed, "this cell tries nothing"
    assert len({one.session_id for one in exchanges}) == 1
    as_sent = await stage.as_sent(family, case, way)
    assert [one.prompt_ids for one in exchanges] == [one.prompt_ids for one in as_sent]


@pytest.mark.parametrize(("family", "case"), [cell(family, case) for family, case in LACKING])
async def test_a_case_is_left_out_only_where_the_template_cannot_do_it(family: Family, case: Case) -> None:
    if case is Case.THINKING:
        fields = ("reasoning_content", "reasoning", "thinking")
        spoken = [replace(family, reasoning_field=field) for field in fields]
        assert not any(can_show(one, model(family), Written(reasoning="Musing.", content="So.")) for one in spoken)
    else:
        assert not can_show(family, model(family), Written(calls=(OSLO,)))


@pytest.mark.parametrize(
    ("family", "case"), [cell(family, Case.TOOL_LOOP) for family in FAMILIES if Case.TOOL_LOOP not in family.lacks]
)
async def test_loops_leave_out_only_what_the_template_cannot_do(family: Family, case: Case) -> None:
    def shows(*answers: Written) -> bool:
        return can_show(family, model(family), *answers)

    thought = "" if Case.THINKING in family.lacks or not family.rethinks else "Musing."
    assert shows(Written(calls=(OSLO,)))
    assert shows(Written(calls=(OSLO, BERGEN))) == family.parallel
    assert shows(Written(reasoning=thought, content="Looking.", calls=(OSLO,))) == (family.beside is not None)
    assert shows(Written(calls=(OSLO,)), Written(calls=(BERGEN,))) == (family.rounds > 1)
