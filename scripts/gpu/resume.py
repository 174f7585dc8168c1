"""A conversation goes on, id for id, after its engine was killed: its history is the front's, not the engine's."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import openai

from scripts.gpu.experiment import Context, Experiment
from scripts.gpu.talks import QUESTIONS, client_of, front_over, real, talk, turns_of
from tests.real.talk import Chained, Resending


async def measure(context: Context) -> dict[str, Any]:
    server, sizes = context.server, context.sizes
    result: dict[str, Any] = {"page_size": server.spec.page}
    with front_over(context, server) as stack:
        async with client_of(stack) as client:
            saying = talk(client, "previous_response_id", sizes.answer)
            seen = [await saying.say(question) for question in QUESTIONS[:2]]
            server.kill()
            result["while_it_is_down"] = await _fails(saying)
            started = time.monotonic()
            server.start()
            await server.wait_ready(context.budget.left_s)
            result["restart_s"] = round(time.monotonic() - started, 1)
            await asyncio.to_thread(stack.front.wait_ready)
            result["front_ready_s"] = round(time.monotonic() - started, 1)
            seen += [await saying.say(question) for question in QUESTIONS[2:4]]
    turns = turns_of(seen, server.spec.page)
    result["turns"] = [turn.as_json() for turn in turns]
    result["extend_exactly"] = all(turn.extends for turn in turns[1:])
    result["first_after_restart_found"] = turns[2].cached
    result["second_after_restart_found_all"] = turns[3].cached >= turns[3].held > 0
    result["miss_reason_after_restart"] = seen[2].miss_reason
    return result


async def _fails(saying: Resending | Chained) -> dict[str, Any]:
    started = time.monotonic()
    try:
        await saying.say("Are you there?")
    except openai.APIStatusError as error:
        return {"status": error.status_code, "after_s": round(time.monotonic() - started, 2)}
    except openai.APIError as error:
        return {"error": type(error).__name__, "after_s": round(time.monotonic() - started, 2)}
    return {"error": None}


def resumption() -> list[Experiment]:
    return [Experiment("resume-after-kill", (real(64),), measure, needs_s=100, on_cpu=True)]
