"""`/v1/models` and what it says of a model's chat template."""

from __future__ import annotations

from tests.conftest import MODEL, Front
from tests.service.talk import get


async def test_the_model_is_listed_with_its_window(front: Front) -> None:
    listed = (await get(front, "/v1/models")).json()["data"]
    assert [(one["id"], one["max_model_len"]) for one in listed] == [(MODEL, 4096)]
    assert (await get(front, f"/v1/models/{MODEL}")).json() == listed[0]


async def test_what_the_template_does_to_prefixes_is_told(front: Front) -> None:
    probed = (await get(front, f"/v1/models/{MODEL}/template")).json()
    assert (probed["usable"], probed["keep_reasoning"]) == (True, {})
    verdicts = {case["case"]: case["verdict"] for case in probed["cases"]}
    assert verdicts["plain turns"] == "preserving"


async def test_a_model_that_is_not_served_is_named(front: Front) -> None:
    for path in ("/v1/models/other", "/v1/models/other/template"):
        answer = await get(front, path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
