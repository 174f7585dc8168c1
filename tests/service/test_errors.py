"""Whatever is sent, the answer is one clear error in OpenAI's shape, and the server is none the worse for it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from programs.errors import ProgramsError, StoreUnavailableError
from router.errors import DeadlineError, NoReplicaError, QueueFullError, RouterError
from service.errors import ServiceError, error_body
from tests.conftest import CONTEXT, MODEL, Front, front_on
from tests.fake_engine.running import FakeEngine
from tests.model_files import CHATML, tiny_model_dir
from tests.service.talk import CHAT, RESPONSES, chat, get, post, user

ONE = [user("x")]
OBJECT = {"type": "object", "properties": {}}


def tool(parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "look", "parameters": parameters}}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"a": schema}
    return schema


BAD_CHATS = [
    ({"model": None}, "model", "invalid_value"),
    ({"model": 7}, "model", "invalid_value"),
    ({"messages": None}, "messages", "invalid_value"),
    ({"messages": []}, "messages", "invalid_value"),
    ({"messages": "x"}, "messages", "invalid_value"),
    ({"messages": ["x"]}, "messages.0", "invalid_value"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role", "invalid_value"),
    ({"messages": [{"role": "user"}]}, "messages.0.content", None),
    ({"messages": [{"role": "user", "content": None}]}, "messages.0.content", None),
    ({"messages": [{"role": "user", "content": 7}]}, "messages.0.content", "invalid_value"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.tool_call_id", None),
    ({"messages": [user([{"type": "image_url", "image_url": {"url": "x"}}])]}, "messages.0.content", "invalid_value"),
    ({"max_tokens": 0}, "max_tokens", "invalid_value"),
    ({"max_tokens": -1}, "max_tokens", "invalid_value"),
    ({"max_tokens": "5"}, "max_tokens", "invalid_value"),
    ({"max_tokens": 5.5}, "max_tokens", "invalid_value"),
    ({"max_completion_tokens": 0}, "max_completion_tokens", "invalid_value"),
    ({"max_tokens": CONTEXT}, "messages", "context_length_exceeded"),
    ({"max_tokens": 10**30}, "messages", "context_length_exceeded"),
    ({"n": 2}, "n", "invalid_value"),
    ({"temperature": 3}, "temperature", "invalid_value"),
    ({"temperature": "1"}, "temperature", "invalid_value"),
    ({"temperature": True}, "temperature", "invalid_value"),
    ({"top_p": 0}, "top_p", "invalid_value"),
    ({"stop": [""]}, "stop", "invalid_value"),
    ({"stop": ["x"] * 17}, "stop", "invalid_value"),
    ({"logit_bias": {"a": 1}}, "logit_bias", None),
    ({"logit_bias": {"1": 101}}, "logit_bias.1", "invalid_value"),
    ({"top_logprobs": 21}, "top_logprobs", "invalid_value"),
    ({"stream": "yes"}, "stream", "invalid_value"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "invalid_value"),
    ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools.0.function.name", "invalid_value"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "invalid_value"),
]


@pytest.mark.parametrize(("change", "param", "code"), BAD_CHATS)
async def test_a_bad_chat_request_names_what_is_wrong(
    front: Front, change: dict[str, Any], param: str, code: str | None
) -> None:
    body = {"model": MODEL, "messages": ONE, **change}
    body = {name: value for name, value in body.items() if value is not None}
    answer = await post(front, CHAT, body)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (400, "invalid_request_error", code)
    assert error["param"] == param or error["param"].startswith(f"{param}.")
    assert error["message"]
    if "stream" not in change:
        streamed = await post(front, CHAT, {**body, "stream": True})
        assert (streamed.status_code, streamed.json()) == (400, answer.json())


BAD_RESPONSES = [
    ({"input": None}, "input", "invalid_value"),
    ({"input": []}, "input", "invalid_value"),
    ({"input": [{"type": "reasoning"}]}, "input", None),
    ({"input": 5}, "input", "invalid_value"),
    ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
    ({"max_output_tokens": CONTEXT}, "messages", "context_length_exceeded"),
    ({"background": True}, "background", "invalid_value"),
    ({"truncation": "sideways"}, "truncation", "invalid_value"),
    ({"previous_response_id": "resp_x"}, "previous_response_id", "previous_response_not_found"),
    ({"previous_response_id": ""}, "previous_response_id", "previous_response_not_found"),
    ({"previous_response_id": f"resp_{'0' * 32}"}, "previous_response_id", "previous_response_not_found"),
    ({"previous_response_id": "}{*\n:"}, "previous_response_id", "previous_response_not_found"),
    ({"previous_response_id": 5}, "previous_response_id", "invalid_value"),
    ({"previous_response_id": "resp_x", "conversation": "conv_x"}, None, "invalid_value"),
    ({"metadata": {"a": 1}}, "metadata.a", "invalid_value"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format", "invalid_value"),
]


@pytest.mark.parametrize(("change", "param", "code"), BAD_RESPONSES)
async def test_a_bad_response_request_names_what_is_wrong(
    front: Front, change: dict[str, Any], param: str | None, code: str | None
) -> None:
    body = {"model": MODEL, "input": "x", **change}
    answer = await post(front, RESPONSES, {name: value for name, value in body.items() if value is not None})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (400, "invalid_request_error", code)
    assert error["param"] == param or str(error["param"]).startswith(f"{param}.")


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
async def test_a_model_that_is_not_served_is_not_found(front: Front, path: str) -> None:
    answer = await post(front, path, {"model": "other", "messages": ONE, "input": "x"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "other" in error["message"]
    assert MODEL in error["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"model": ',
        b"\xff\xfe",
        b'{"model": "tiny", "messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"model": "tiny", "messages": [{"role": "user", "content": "\xff"}]}',
        b"[" * 100_000,
    ],
    ids=["empty", "open", "cut", "not text", "lone surrogate", "not UTF-8", "deep"],
)
@pytest.mark.parametrize("path", [CHAT, RESPONSES, "/v1/conversations"])
async def test_a_body_that_is_no_json_is_said_to_be_none(front: Front, path: str, body: bytes) -> None:
    answer = await post(front, path, body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")


@pytest.mark.parametrize("body", [b"[]", b"7", b"null", b'"x"'])
async def test_a_body_that_is_no_object_is_refused(front: Front, body: bytes) -> None:
    answer = await post(front, CHAT, body)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


async def test_a_prompt_that_is_too_long_says_both_numbers(front: Front, engine: FakeEngine) -> None:
    answer = await chat(front, "x " * CONTEXT)
    error = answer.json()["error"]
    numbers = [int(number) for number in re.findall(r"\d+", error["message"])]
    assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
    assert CONTEXT in numbers
    assert max(numbers) > CONTEXT
    assert engine.state.received == 1, "the front asked the engine for more than its probe"


async def test_every_prompt_is_either_answered_or_too_long_by_both_numbers(front: Front) -> None:
    """Up to the very token: what the front lets through is not refused by the engine in its own words."""
    short = (await chat(front, "x", return_token_ids=True, max_tokens=1)).json()
    frame = len(short["antiphon"]["prompt_token_ids"]) - 1
    codes = set()
    for length in range(CONTEXT - frame - 10, CONTEXT - frame + 2):
        answer = await chat(front, "x" * length, max_tokens=1)
        codes.add("answered" if answer.status_code == 200 else answer.json()["error"]["code"])
    assert codes == {"answered", "context_length_exceeded"}


UNUSUAL = [
    {"seed": 2**63 - 1},
    {"seed": -1},
    {"seed": 10**30},
    {"top_k": 10**30},
    {"tools": [tool({"type": "object", "properties": {"a": {"maximum": 10**30}}})]},
    {"tools": [tool(nested(150))]},
    {"tools": [tool(nested(250))]},
    {"chat_template_kwargs": {"a": 10**30}},
    {"chat_template_kwargs": {"a": nested(300)}},
    {"chat_template_kwargs": {"a": None, "b": [1.5, True]}},
    {"response_format": {"type": "json_schema", "json_schema": {"schema": {"maximum": 10**30}}}},
    {"response_format": {"type": "json_schema", "json_schema": {"schema": nested(250)}}},
    {"logit_bias": {"-1": 1}},
    {"logit_bias": {str(10**30): 1}},
    {"logit_bias": {"²": 1}},
    {"messages": [user("\x00\ufdd0\ufeff\u2028")]},
    {"messages": [user("")]},
    {"messages": [{"role": "assistant", "content": "x"}]},
    {"messages": [{"role": "tool", "content": "x", "tool_call_id": "nobody's"}]},
    {"messages": [{"role": "assistant", "content": None, "tool_calls": []}, user("x")]},
]


@pytest.mark.parametrize("change", UNUSUAL, ids=range(len(UNUSUAL)))
async def test_unusual_requests_are_answered_or_refused_but_never_fail(front: Front, change: dict[str, Any]) -> None:
    answer = await post(front, CHAT, {"model": MODEL, "messages": ONE, "max_tokens": 4, **change})
    assert answer.status_code in (200, 400), answer.text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ["messages", "max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "logit_bias", "tools", "n"]
FIELDS += ["tool_choice", "stream_options", "response_format", "logprobs", "top_logprobs", "history"]
FIELDS += ["chat_template_kwargs"]


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(change=st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=3))
async def test_no_json_whatever_makes_the_server_fail(front: Front, change: dict[str, Any]) -> None:
    body = json.dumps({"model": MODEL, "messages": ONE, "max_tokens": 2, **change}).encode()
    answer = await post(front, CHAT, body)
    assert answer.status_code in (200, 400), answer.text


async def test_a_template_that_refuses_the_messages_is_quoted(store: str, tmp_path: Path) -> None:
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('No system here.') }}{% endif %}" + CHATML
    async with front_on({}, store, tiny_model_dir(tmp_path / MODEL, refusing)) as (front, _):
        refused = await chat(front, [{"role": "system", "content": "obey"}, user("x")])
        taken = await chat(front, "x")
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["message"]) == (400, "template_refused", "No system here.")
    assert taken.status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v1/nothing", 404),
        ("GET", CHAT, 405),
        ("POST", "/health", 405),
        ("GET", "/v1/models/other", 404),
        ("GET", "/v1/responses/%00", 404),
        ("GET", "/v1/responses/%ff", 404),
        ("DELETE", "/v1/responses/resp_x", 404),
        ("DELETE", "/v1/conversations/conv_x", 404),
    ],
)
async def test_what_is_not_there_is_an_error_in_the_same_shape(
    front: Front, method: str, path: str, status: int
) -> None:
    async with httpx.AsyncClient(verify=False) as http:
        answer = await http.request(method, front.url + path)
    assert answer.status_code == status
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


async def test_the_model_that_is_served_is_listed(front: Front) -> None:
    listed = (await get(front, "/v1/models")).json()
    one = (await get(front, f"/v1/models/{MODEL}")).json()
    assert listed == {"object": "list", "data": [one]}
    assert (one["id"], one["object"], one["owned_by"], one["max_model_len"]) == (MODEL, "model", "antiphon", CONTEXT)


def test_an_error_nobody_expected_keeps_its_words_to_itself() -> None:
    body = error_body(RuntimeError("password=secret"))
    assert (body.status, body.type, body.code) == (500, "server_error", "internal_error")
    assert "secret" not in body.message


@pytest.mark.parametrize(
    ("error", "status", "code", "retry_after_s"),
    [
        (StoreUnavailableError("x"), 503, "store_unavailable", 5),
        (NoReplicaError("x", 1.0), 503, "engine_unavailable", 1),
        (NoReplicaError("x", 0.0), 503, "engine_unavailable", 1),
        (QueueFullError("x", 11.2), 429, "queue_full", 12),
        (DeadlineError("x"), 504, "deadline_exceeded", None),
        (ServiceError("x", status=413), 413, None, None),
    ],
)
def test_who_may_try_again_is_told_when(
    error: ProgramsError | RouterError | ServiceError, status: int, code: str | None, retry_after_s: int | None
) -> None:
    body = error_body(error)
    assert (body.status, body.code, body.retry_after_s) == (status, code, retry_after_s)
