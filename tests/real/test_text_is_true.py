"""Our text is the engine's text: for the same ids, and for the same request through SGLang's own chat endpoint."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from programs.answer import Answer
from programs.model import ChatModel
from tests.real.front import Stack, running_stack
from tests.real.talk import complete

pytestmark = pytest.mark.engine


@dataclass(frozen=True)
class Case:
    """A model, the engine that serves it, and our front over that engine."""

    http: aiohttp.ClientSession
    url: str
    model: ChatModel
    stack: Stack

    async def post(self, path: str, body: object) -> Any:
        async with self.http.post(self.url + path, json=body) as response:
            assert response.status == 200, await response.text()
            return await response.json()

    async def flush(self) -> None:
        """Forget every prefix. Refused while something runs, and the front's probe runs now and then."""
        for _ in range(100):
            async with self.http.post(self.url + "/flush_cache") as response:
                if response.status == 200:
                    return
            await asyncio.sleep(0.1)
        pytest.fail("the engine never came to rest")

    def token(self, text: str) -> int:
        found = self.model.tokenizer.id_of(text)
        assert found is not None
        return found

    async def generate(self, ids: Sequence[int], tokens: int, **sampling: Any) -> dict[str, Any]:
        params = {"max_new_tokens": tokens, "temperature": 1.0, **sampling}
        answer = await self.post("/generate", {"input_ids": list(ids), "sampling_params": params})
        assert isinstance(answer, dict)
        return answer


@pytest.fixture(scope="module", params=["smollm2", "qwen3"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, ChatModel, Stack]]:
    engine = request.getfixturevalue(f"{request.param}_engine")
    directory = request.getfixturevalue({"smollm2": "smollm2_dir", "qwen3": "qwen3_random_dir"}[request.param])
    with running_stack(engine.url, directory, tmp_path_factory.mktemp("stack")) as stack:
        yield engine.url, ChatModel.load(directory), stack


@pytest.fixture
async def case(served: tuple[str, ChatModel, Stack]) -> AsyncIterator[Case]:
    async with aiohttp.ClientSession() as http:
        yield Case(http, *served)


def read(case: Case, prompt: Sequence[int], answer: dict[str, Any], stop: Sequence[str] = ()) -> Answer:
    """The engine's ids through our reader, one by one; what it gave out piecemeal is what it holds in the end."""
    ours = Answer(case.model.tokenizer, prompt, stop=stop)
    pieces = [ours.push((one,)) for one in answer["output_ids"]]
    pieces.append(ours.finish(answer["meta_info"]["finish_reason"].get("matched")))
    assert "".join(piece.content for piece in pieces) == ours.content
    return ours


def prompts(case: Case, count: int) -> list[list[int]]:
    """Different beginnings in the model's own format."""
    start, encode = case.token("<|im_start|>"), case.model.tokenizer.encode
    words = random.Random(3).sample(("river", "mountain", "cat", "engine", "bread", "love", "Paris", "a naïve café"), 8)
    asked = [f"user\nTell me about {words[number % 8]} {number}.\n" for number in range(count)]
    answer = encode("assistant\n", after_control=True)
    return [[start, *encode(text, after_control=True), start, *answer] for text in asked]


async def test_text_is_the_engines_for_the_same_ids(case: Case) -> None:
    """Whether a stop token or the token limit ended it, wherever that limit cuts."""
    asked = prompts(case, 24)
    soon = {"logit_bias": {str(case.token("<|im_end|>")): 9}}
    answers = await asyncio.gather(
        *(case.generate(ids, 1 + number, **(soon if number % 2 else {})) for number, ids in enumerate(asked))
    )
    for ids, answer in zip(asked, answers, strict=True):
        assert read(case, ids, answer).content == answer["text"]
    assert {answer["meta_info"]["finish_reason"]["type"] for answer in answers} == {"stop", "length"}


async def test_stop_strings_cut_where_the_engine_cuts(case: Case) -> None:
    """Each answer is asked for again with a stop string out of the middle of its own text, within and across tokens."""
    chance = random.Random(5)
    asked = prompts(case, 12)
    free = await asyncio.gather(*(case.generate(ids, 16, temperature=0) for ids in asked))
    stops = []
    for answer in free:
        text = str(answer["text"])
        at = chance.randrange(len(text) // 2)
        stops.append(text[at : at + chance.randint(1, 6)])
    stopped = await asyncio.gather(
        *(case.generate(ids, 16, temperature=0, stop=[stop]) for ids, stop in zip(asked, stops, strict=True))
    )
    matched = 0
    for ids, answer, stop in zip(asked, stopped, stops, strict=True):
        assert read(case, ids, answer, [stop]).content == answer["text"]
        matched += answer["meta_info"]["finish_reason"].get("matched") == stop
    assert matched >= 8


async def test_a_cut_character_reads_as_the_engine_reads_it(case: Case) -> None:
    """The lead of a character that needs several tokens, at the very end, in the middle, and over and over."""
    lead, second, *rest = case.model.tokenizer.encode("\U0001fae0", after_control=True)
    assert rest
    for ids, tokens in zip(prompts(case, 6), (1, 2, 3, 5, 8, 12), strict=True):
        for bias in ({lead: 60}, {lead: 9, second: 9}):
            answer = await case.generate(ids, tokens, logit_bias={str(one): weight for one, weight in bias.items()})
            ours = read(case, ids, answer).content
            assert ours == answer["text"]
            assert len(bias) == 2 or "\ufffd" in ours


async def test_a_character_in_several_tokens_comes_out_whole(case: Case) -> None:
    """A grammar and a bias make the engine write it token by token."""
    spelled = case.model.tokenizer.encode("\U0001fae0", after_control=True)
    assert len(spelled) > 2
    quote = case.model.tokenizer.encode('"', after_control=True)
    answer = await case.generate(
        prompts(case, 1)[0],
        20,
        json_schema=json.dumps({"const": "\U0001fae0"}, ensure_ascii=False),
        logit_bias={str(one): 60 for one in (*quote, *spelled)},
    )
    assert answer["output_ids"][:-1] == [*quote, *spelled, *quote]
    assert read(case, prompts(case, 1)[0], answer).content == answer["text"] == '"\U0001fae0"'


CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "system", "content": "You are terse."}, {"role": "user", "content": "  Name a colour. \n"}],
    [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello, what is it?"},
        {"role": "user", "content": "Is 7 a prime? Ça va, 你好 🙂"},
    ],
]


@pytest.mark.parametrize("stop", [None, "e"], ids=["free", "stop string"])
@pytest.mark.parametrize("messages", CHATS, ids=["plain", "system", "history"])
async def test_greedy_chat_is_what_sglang_answers_itself(
    case: Case, messages: list[dict[str, Any]], stop: str | None
) -> None:
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 16} | ({"stop": [stop]} if stop else {})
    await case.flush()
    theirs = await case.post(
        "/v1/chat/completions", {"model": "any", "messages": messages, "return_token_ids": True, **options}
    )
    await case.flush()
    async with case.stack.front.client() as client:
        ours = await complete(client, messages, **options)
    choice = theirs["choices"][0]
    assert ours.prompt_ids == choice["prompt_token_ids"]
    assert ours.output_ids == choice["response_token_ids"]
    assert ours.text == choice["message"]["content"]
    assert ours.finish == choice["finish_reason"]
    assert len(ours.prompt_ids) == theirs["usage"]["prompt_tokens"]
    assert len(ours.output_ids) == theirs["usage"]["completion_tokens"]
    assert ours.cached_tokens == 0
