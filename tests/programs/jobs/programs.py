"""Programs for tests of jobs. They name no document."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from programs.runtime.context import ProgramContext
from programs.runtime.prompt import Prompt


def serving_profile(directory: Path) -> str:
    """A serving profile that has them."""
    paths = [f"tests.programs.jobs.programs:{name}" for name in ("relay", "patient", "broken")]
    path = directory / "serving.yaml"
    path.write_text(json.dumps({"name": "jobs", "version": 1, "description": "For tests.", "programs": paths}))
    return str(path)


async def relay(
    context: ProgramContext,
    steps: Annotated[int, Field(ge=1)] = 40,
    text: str = "hello",
    max_tokens: int = 4,
    heedful: bool = True,
) -> dict[str, Any]:
    """Steps, one after the other; `heedful` ones are each about the answer before."""
    said = []
    prompt = Prompt((text,))
    for number in range(steps):
        answer = await context.generate(prompt, max_tokens=max_tokens)
        said.append(answer.text)
        prompt = Prompt((f"{number} {answer.text if heedful else text}",))
        context.progress(number + 1, steps, "relaying")
    return {"said": said}


async def patient(context: ProgramContext, seconds: float = 3600) -> str:
    """Waits, and generates nothing."""
    context.progress(0, 1, "waiting")
    await asyncio.sleep(seconds)
    return "waited"


async def broken(context: ProgramContext) -> None:
    """Fails."""
    raise KeyError("no such thing")
