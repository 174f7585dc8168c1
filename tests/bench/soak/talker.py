"""A client that holds one chat after another, and checks what it is told."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

import aiohttp
import orjson

from tests.bench.conversation import text
from tests.bench.soak.findings import Findings
from tests.bench.soak.oracle import Oracle

Way = Literal["resend", "previous_response_id", "conversation"]

WAYS: tuple[Way, ...] = ("resend", "previous_response_id", "conversation")
_DOCUMENT_CHARACTERS = 5_500
_SYSTEM_CHARACTERS = 800
_SYSTEMS_AT_A_TIME = 6
_LEAVES = 0.08
_AGAIN_S = 0.3
_PATIENCE_S = 60.0
_REFUSALS = {(503, "engine_unavailable"), (429, "queue_full")}
"""What a client may be told when nothing is available."""


class RefusedError(Exception):
    """An answer that says to try again later."""


class LeftError(Exception):
    """We did not wait for the answer."""


@dataclass
class Answer:
    """As its client got it, with the ids that it asked for."""

    text: str
    antiphon: dict[str, Any]
    response: str | None = None

    @property
    def prompt(self) -> list[int]:
        ids: list[int] = self.antiphon["prompt_token_ids"]
        return ids

    @property
    def output(self) -> list[int]:
        ids: list[int] = self.antiphon["output_token_ids"]
        return ids


@dataclass
class Chat:
    """What its client knows of it."""

    way: Way
    messages: list[dict[str, str]]
    conversation: str | None = None
    last: Answer | None = None
    pending: list[dict[str, str]] = field(default_factory=list)


class Talker:
    """`urls` are of fronts over one store: any of them may get the next turn."""

    def __init__(self, number: int, urls: list[str], oracle: Oracle, findings: Findings, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self._urls = urls
        self._oracle = oracle
        self._findings = findings
        self._number = number
        self._seed = seed
        self._dice = random.Random(f"{seed} {number}")

    async def talk(self, http: aiohttp.ClientSession, until: float) -> None:
        """Chats until the loop's time is `until`; the last one is ended after the turn that it is at."""
        clock = asyncio.get_running_loop().time
        while clock() < until:
            chat = await self._begin(http)
            for _ in range(self._dice.randint(2, 8)):
                await self._turn(http, chat)
                await asyncio.sleep(self._dice.uniform(0, 0.6))
                if clock() >= until:
                    break
            self.counts["chats"] += 1

    async def _begin(self, http: aiohttp.ClientSession) -> Chat:
        age = int(asyncio.get_running_loop().time() / 30)
        system = random.Random(f"{age} {self._dice.randrange(_SYSTEMS_AT_A_TIME)}")
        chat = Chat(self._dice.choice(WAYS), [{"role": "system", "content": text(system, _SYSTEM_CHARACTERS)}])
        if chat.way == "conversation":
            async with http.post(f"{self._url}/v1/conversations", json={}) as answer:
                chat.conversation = (await answer.json())["id"]
        return chat

    @property
    def _url(self) -> str:
        return self._dice.choice(self._urls)

    async def _turn(self, http: aiohttp.ClientSession, chat: Chat) -> None:
        first = chat.last is None
        document = first and self._dice.random() < 0.08
        said = text(self._dice, _DOCUMENT_CHARACTERS if document else self._dice.randint(20, 300))
        new = [{"role": "user", "content": f"{self._dice.random()} {said}"}]
        new = [*chat.messages, *new] if first else new
        max_tokens = self._dice.choice((4, 12, 24, 48))
        answer = await self._answered(http, chat, new, max_tokens)
        if answer is None:
            return
        self.counts["turns"] += 1
        self.counts["documents"] += document
        self.counts["resumed"] += bool(answer.antiphon["resumes"])
        self._check(chat, answer, max_tokens)
        chat.messages = new if first else [*chat.messages, *new]
        chat.messages.append({"role": "assistant", "content": answer.text})
        chat.last = answer
        if answer.response is not None and self._dice.random() < 0.2:
            await self._look_up(http, answer)

    async def _answered(
        self, http: aiohttp.ClientSession, chat: Chat, new: list[dict[str, str]], max_tokens: int
    ) -> Answer | None:
        """Asked again until it is answered."""
        clock = asyncio.get_running_loop().time
        began = clock()
        while clock() - began < _PATIENCE_S:
            path, body = self._asked(chat, new, max_tokens)
            try:
                return await self._ask(http, path, body, may_leave=chat.way != "conversation")
            except LeftError:
                self.counts["left"] += 1
            except RefusedError as error:
                self.counts[str(error)] += 1
                await asyncio.sleep(_AGAIN_S)
            except (aiohttp.ClientError, TimeoutError, KeyError, ValueError) as error:
                self._findings.fail("broken answer", repr(error))
                await asyncio.sleep(_AGAIN_S)
        self._findings.fail("unanswered", f"{chat.way} for {_PATIENCE_S:g} s")
        return None

    def _asked(self, chat: Chat, new: list[dict[str, str]], max_tokens: int) -> tuple[str, dict[str, Any]]:
        stream = self._dice.random() < 0.6
        body: dict[str, Any] = {"model": "tiny", "temperature": 0, "stream": stream, "return_token_ids": True}
        body |= {"user": f"user {self._number % 4}"}
        if self._dice.random() < 0.2:
            body["service_tier"] = "flex"
        if chat.way == "resend":
            messages = new if chat.last is None else [*chat.messages, *new]
            return "/v1/chat/completions", body | {"messages": messages, "max_tokens": max_tokens}
        body |= {"input": new, "max_output_tokens": max_tokens}
        if chat.way == "conversation":
            body["conversation"] = chat.conversation
        elif chat.last is not None:
            body["previous_response_id"] = chat.last.response
        return "/v1/responses", body

    async def _ask(self, http: aiohttp.ClientSession, path: str, body: dict[str, Any], may_leave: bool) -> Answer:
        """Raises RefusedError and LeftError."""
        leaves = self._dice.uniform(0, 0.3) if may_leave and self._dice.random() < _LEAVES else None
        try:
            async with asyncio.timeout(leaves):
                async with http.post(self._url + path, json=body) as reply:
                    answer = await reply.read()
                    if reply.status != 200:
                        raise self._refusal(reply, answer)
        except TimeoutError as error:
            if leaves is None:
                raise
            raise LeftError from error
        return _streamed(answer) if body["stream"] else _whole(orjson.loads(answer))

    def _refusal(self, reply: aiohttp.ClientResponse, answer: bytes) -> Exception:
        code = orjson.loads(answer)["error"]["code"]
        if (reply.status, code) in _REFUSALS and int(reply.headers.get("Retry-After", 0)) > 0:
            return RefusedError(f"{reply.status} {code}")
        return ValueError(f"{reply.status}: {answer.decode()}")

    def _check(self, chat: Chat, answer: Answer, max_tokens: int) -> None:
        expected = self._oracle.answer(answer.prompt, max_tokens)
        if (answer.output, answer.text) != (expected.ids, expected.text):
            self._findings.fail("wrong answer", f"{chat.way} {answer} instead of {expected}")
        if (last := chat.last) is None:
            return
        seen = last.prompt + last.output
        if answer.prompt[: len(seen)] != seen:
            self._findings.fail("lost turn", f"{chat.way} after {last.antiphon['turn_id']}: {answer.antiphon}")
        if answer.antiphon["session_id"] != last.antiphon["session_id"]:
            self._findings.fail("lost session", f"{chat.way}: {answer.antiphon}")

    async def _look_up(self, http: aiohttp.ClientSession, answer: Answer) -> None:
        async with http.get(f"{self._url}/v1/responses/{answer.response}") as reply:
            stored = _text(await reply.json()) if reply.status == 200 else None
        if stored != answer.text:
            self._findings.fail("lost response", f"{answer.response}: {stored!r} instead of {answer.text!r}")


def _whole(value: dict[str, Any]) -> Answer:
    if value["object"] == "response":
        return Answer(_text(value), value["antiphon"], value["id"])
    return Answer(value["choices"][0]["message"]["content"], value["antiphon"])


def _text(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])


def _streamed(answer: bytes) -> Answer:
    """Raises ValueError when the stream says that it failed, or ends without an end."""
    events = [orjson.loads(line[6:]) for line in answer.split(b"\n") if line.startswith(b"data: {")]
    for event in events:
        if event.get("error") or event.get("type") == "response.failed":
            raise ValueError(f"the stream failed: {event}")
    if events[-1].get("type") in ("response.completed", "response.incomplete"):
        whole = _whole(events[-1]["response"])
        pieces = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
        if whole.text != "".join(pieces):
            raise ValueError(f"{pieces} were streamed of {whole.text!r}")
        return whole
    if not answer.endswith(b"data: [DONE]\n\n"):
        raise ValueError("the stream ended early")
    choices = [choice for event in events for choice in event["choices"]]
    antiphon = next(event["antiphon"] for event in events if "antiphon" in event)
    return Answer("".join(choice["delta"].get("content") or "" for choice in choices), antiphon)
