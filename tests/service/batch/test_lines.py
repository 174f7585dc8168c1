"""What is wrong with the lines of a batch's input."""

from __future__ import annotations

import json
from typing import Any

import pytest

from service.batch.lines import MOST_REQUESTS, BatchRequest, Endpoint, InputCheck, LineError

CHAT: Endpoint = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
LINE: dict[str, Any] = {"custom_id": "a", "method": "POST", "url": CHAT, "body": BODY}


def checked(*lines: bytes, endpoint: Endpoint = CHAT) -> tuple[LineError, ...]:
    check = InputCheck(endpoint, ["tiny"])
    for line in lines:
        check.add(line)
    return check.errors


def changed(**changes: Any) -> bytes:
    """A right line, with other values; None takes one away."""
    return json.dumps({name: value for name, value in {**LINE, **changes}.items() if value is not None}).encode()


def asking(**changes: Any) -> bytes:
    return changed(body={name: value for name, value in {**BODY, **changes}.items() if value is not None})


def test_right_lines_are_counted_and_blank_ones_are_not() -> None:
    check = InputCheck(CHAT, ["tiny"])
    for line in (changed(), b"", b"  \r", changed(custom_id="b") + b"\r"):
        check.add(line)
    assert (check.errors, check.requests, check.model) == ((), 2, "tiny")


@pytest.mark.parametrize(
    ("line", "code", "param"),
    [
        (b"no json", "invalid_json_line", None),
        (b'{"custom_id": "\xff"}', "invalid_json_line", None),
        (b'{"custom_id": NaN}', "invalid_json_line", None),
        (b"[" * 100_000, "invalid_json_line", None),
        (b"[]", "invalid_value", None),
        (changed(custom_id=None), "missing_required_parameter", "custom_id"),
        (changed(custom_id=1), "invalid_value", "custom_id"),
        (changed(custom_id=""), "invalid_value", "custom_id"),
        (changed(method=None), "missing_required_parameter", "method"),
        (changed(method="GET"), "invalid_value", "method"),
        (changed(url="/v1/responses"), "invalid_url", "url"),
        (changed(body=None), "missing_required_parameter", "body"),
        (changed(body=[]), "invalid_value", "body"),
        (asking(messages=None), "missing_required_parameter", "body.messages"),
        (asking(messages=[]), "invalid_value", "body.messages"),
        (asking(messages=[{"role": "user"}]), "invalid_value", "body.messages.0.content"),
        (asking(messages=[{"role": "nobody", "content": "x"}]), "invalid_value", "body.messages.0.role"),
        (asking(n=2), "invalid_value", "body.n"),
        (asking(stream=True), "invalid_value", "body.stream"),
        (asking(model=None), "missing_required_parameter", "body.model"),
        (asking(model="other"), "model_not_found", "body.model"),
    ],
)
def test_a_wrong_line_is_named(line: bytes, code: str, param: str | None) -> None:
    (error,) = checked(changed(custom_id="first"), line, changed(custom_id="last"))
    assert (error.line, error.code, error.param) == (2, code, param)
    assert error.message


def test_the_body_is_that_of_the_endpoint() -> None:
    endpoint: Endpoint = "/v1/responses"
    right = changed(url=endpoint, body={"model": "tiny", "input": "hello"})
    assert checked(right, endpoint=endpoint) == ()
    for body in (BODY, {"model": "tiny", "input": [{"type": "reasoning"}]}):
        (error,) = checked(changed(url=endpoint, body=body), endpoint=endpoint)
        assert error.param == "body.input"


def test_a_custom_id_is_used_once() -> None:
    (error,) = checked(changed(), changed(custom_id="b"), changed(body={**BODY, "max_tokens": 1}))
    assert (error.line, error.code, error.param) == (3, "duplicate_custom_id", "custom_id")


@pytest.mark.parametrize("lines", [(), (b"", b"\n")])
def test_an_input_without_requests_is_wrong(lines: tuple[bytes, ...]) -> None:
    assert [error.code for error in checked(*lines)] == ["empty_file"]


def test_of_many_errors_the_first_hundred_are_told() -> None:
    check = InputCheck(CHAT, ["tiny"])
    lines = 0
    while not check.full:
        check.add(b"no json")
        lines += 1
    assert (lines, len(check.errors), check.errors[-1].line) == (100, 100, 100)


@pytest.mark.slow
def test_a_batch_has_no_more_requests_than_openai_takes() -> None:
    check = InputCheck(CHAT, ["tiny"])
    for number in range(MOST_REQUESTS):
        check.add(changed(custom_id=str(number)))
    assert (check.errors, check.full) == ((), False)
    check.add(changed(custom_id="one more"))
    assert ([error.code for error in check.errors], check.full) == (["too_many_requests"], True)


def test_the_same_words_on_two_lines_are_two_requests() -> None:
    one, same, other = (BatchRequest.read(number, changed()) for number in (1, 1, 2))
    assert (one.custom_id, one.body) == ("a", BODY)
    assert one == same
    assert one.digest != other.digest
