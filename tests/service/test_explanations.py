"""What a turn says of what it could have reused, and of what a client changed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as HfTokenizer

from service.settings import Settings
from tests.conftest import Front, running_front
from tests.fake_engine.running import FakeEngine
from tests.service.talk import ask, assistant, client_of, respond, reusable, seen_by, user

SYSTEM = {"role": "system", "content": "be kind"}


async def talked(client: Any) -> tuple[list[dict[str, Any]], Any]:
    """Three turns of a chat: its messages, and the last answer."""
    messages: list[dict[str, Any]] = [SYSTEM]
    answers: list[Any] = []
    for turn in range(3):
        messages.append(user(f"question {turn}"))
        answers.append(await ask(client, messages))
        messages.append(assistant(answers[-1]))
    return messages, answers[-1]


def changed(messages: list[dict[str, Any]], index: int, text: str) -> list[dict[str, Any]]:
    return [*messages[:index], {**messages[index], "content": text}, *messages[index + 1 :], user("more")]


@pytest.mark.parametrize(
    ("index", "role", "text", "diff"),
    [
        (0, "system", "be rude", '"be kind" → "be rude"'),
        (1, "user", "question 7", '"question 0" → "question 7"'),
        (3, "user", "question 8", '"question 1" → "question 8"'),
    ],
)
async def test_a_history_that_a_client_rewrote_is_a_client_edit_and_says_where(
    front: Front, index: int, role: str, text: str, diff: str
) -> None:
    async with client_of(front) as client:
        messages, last = await talked(client)
        answer = await ask(client, changed(messages, index, text))
    said = answer.antiphon
    assert said["miss_reason"] == "client_edit"
    assert said["openai_miss_reason"] == "input_changed"
    assert said["difference"] == {"message_index": index, "role": role, "field": "content", "diff": diff}
    assert said["reusable_tokens"] == reusable(seen_by(last)) > said["cached_tokens"]


async def test_messages_that_a_client_left_out_are_counted(front: Front) -> None:
    async with client_of(front) as client:
        messages, _ = await talked(client)
        answer = await ask(client, [SYSTEM, *messages[3:], user("more")])
    assert answer.antiphon["miss_reason"] == "client_edit"
    assert answer.antiphon["difference"]["field"] == "removed"
    assert answer.antiphon["difference"]["diff"].startswith("2 messages no longer there")


async def test_an_edited_last_question_is_a_fork_and_no_miss(front: Front) -> None:
    async with client_of(front) as client:
        messages, _ = await talked(client)
        answer = await ask(client, [*messages[:5], user("question 9")])
    assert (answer.antiphon["miss_reason"], answer.antiphon["difference"]) == (None, None)


async def test_a_history_sent_back_as_it_was_has_no_difference(front: Front) -> None:
    async with client_of(front) as client:
        messages, _ = await talked(client)
        answer = await ask(client, [*messages, user("more")])
    assert (answer.antiphon["miss_reason"], answer.antiphon["difference"]) == (None, None)


async def test_other_instructions_are_a_client_edit(front: Front) -> None:
    async with client_of(front) as client:
        first = await respond(client, "hello", instructions="be kind")
        second = await respond(client, "more", instructions="be rude", previous_response_id=first.id)
    assert second.antiphon["miss_reason"] == "client_edit"
    assert second.antiphon["difference"]["diff"] == '"be kind" → "be rude"'
    assert second.antiphon["difference"]["message_index"] == 0


async def test_another_salt_shares_nothing_and_is_named(front: Front) -> None:
    async with client_of(front) as client:
        first = await respond(client, "hello")
        salted = {"extra_body": {"cache_salt": "mine"}}
        second = await respond(client, "more", previous_response_id=first.id, **salted)
        third = await respond(client, "again", previous_response_id=second.id, **salted)
    assert (second.antiphon["miss_reason"], second.antiphon["cached_tokens"]) == ("salt", 0)
    assert second.antiphon["openai_miss_reason"] == "prompt_cache_key_changed"
    assert third.antiphon["miss_reason"] is None
    assert third.antiphon["cached_tokens"] >= reusable(seen_by(second))


async def test_another_tokenizer_under_the_same_name_reads_no_id_of_the_first(
    front: Front, engine: FakeEngine, store: str, model_dir: Path, tmp_path: Path
) -> None:
    """The store outlives the model: its messages are read again, its ids never."""
    other = Path(shutil.copytree(model_dir, tmp_path / model_dir.name))
    tokenizer = HfTokenizer.from_file(str(other / "tokenizer.json"))
    tokenizer.add_tokens(["hello"])
    tokenizer.save(str(other / "tokenizer.json"))
    config = other / "config.json"
    config.write_text(config.read_text().replace('"vocab_size": ', '"vocab_size": 1'))
    async with client_of(front) as client:
        first = await respond(client, "hello")
        messages = [user("hello"), {"role": "assistant", "content": first.output_text}]
    settings = Settings(engines=(f"replica-0={engine.url}",), model_dir=other, store_url=store)
    async with running_front(settings) as renewed, client_of(renewed) as client:
        second = await respond(client, "more", previous_response_id=first.id)
        third = await respond(client, "again", previous_response_id=second.id)
        resent = await ask(client, [*messages, user("other")])
    assert second.antiphon["miss_reason"] == resent.antiphon["miss_reason"] == "model_changed"
    assert second.antiphon["session_id"] == first.antiphon["session_id"]
    text = renewed.services.sessions.model.tokenizer.decode(
        second.antiphon["prompt_token_ids"], skip_special_tokens=False
    )
    assert "hello" in text
    assert third.antiphon["miss_reason"] is None
