"""Templates are rendered as transformers renders them: every one that trl carries, on conversations of every kind."""

from __future__ import annotations

import json
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from programs.errors import TemplateError, TemplateRefusedError
from programs.template import ChatTemplate
from tests.packages import chat_templates

pytestmark = pytest.mark.engine

SPECIAL_TOKENS = {"bos_token": "<bos>", "eos_token": "<eos>"}
CALL = {"id": "call00001", "type": "function", "function": {"name": "look", "arguments": {"at": "ü", "n": 1.5}}}
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks <at> things & 'more'.",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
    },
}
SYSTEM, USER = {"role": "system", "content": " Be brief.\n"}, {"role": "user", "content": "Hello <b>\n\n"}
ANSWER = {"role": "assistant", "content": "\nHi! 😀 "}
THOUGHT = {"role": "assistant", "content": "Hi", "reasoning_content": "\nhm\n", "thinking": "hm", "reasoning": "hm"}
CALLING = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": '{"seen": [1, 2]}', "tool_call_id": "call00001", "name": "look"}
CASES: list[dict[str, Any]] = [
    {"messages": [USER]},
    {"messages": [USER], "add_generation_prompt": False},
    {"messages": [SYSTEM, USER, ANSWER, USER]},
    {"messages": [USER, ANSWER, USER, THOUGHT, USER]},
    {"messages": [USER, THOUGHT], "add_generation_prompt": False},
    {"messages": [SYSTEM, USER], "tools": [TOOL, TOOL]},
    {"messages": [USER, CALLING, RESULT], "tools": [TOOL]},
    {"messages": [USER, {**THOUGHT, **CALLING}, RESULT, THOUGHT, USER], "tools": [TOOL]},
    {"messages": [USER], "arguments": {"enable_thinking": False, "thinking": False}},
    {"messages": [USER], "arguments": {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}},
    {"messages": [USER, SYSTEM, USER, ANSWER, ANSWER, USER]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "parts"}]}]},
    {"messages": [{"role": "developer", "content": "Obey."}, USER]},
    {"messages": []},
]

RENDER = """
import json, sys
from transformers.utils.chat_template_utils import render_jinja_template

def render(source, case):
    try:
        texts, _ = render_jinja_template(
            conversations=[case["messages"]], tools=case.get("tools"), chat_template=source,
            add_generation_prompt=case.get("add_generation_prompt", True), **case.get("arguments", {}), **special,
        )
        return {"text": texts[0]}
    except Exception as error:
        return {"error": str(error)}

sources, cases, special = json.load(sys.stdin)
json.dump([[render(source, case) for case in cases] for source in sources], sys.stdout)
"""


def ours(template: ChatTemplate, case: dict[str, Any]) -> dict[str, str]:
    arguments = {**case.get("arguments", {}), "tools": case.get("tools")}
    asking = case.get("add_generation_prompt", True)
    try:
        text = template.render(case["messages"], add_generation_prompt=asking, now=datetime.now(), arguments=arguments)
    except TemplateRefusedError as error:
        return {"error": str(error)}
    except TemplateError as error:
        return {"error": str(error).partition("on these messages: ")[2]}
    return {"text": text}


def test_every_template_renders_as_in_transformers(engine_python: Path) -> None:
    paths = sorted(chat_templates().glob("*.jinja"))
    sources = [path.read_text(encoding="utf-8") for path in paths]
    done = subprocess.run(
        [str(engine_python), "-c", RENDER],
        input=json.dumps([sources, CASES, SPECIAL_TOKENS]),
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    theirs = json.loads(done.stdout)
    rendered = 0
    for path, source, expected in zip(paths, sources, theirs, strict=True):
        template = ChatTemplate(source, SPECIAL_TOKENS)
        for number, (case, one) in enumerate(zip(CASES, expected, strict=True)):
            assert ours(template, case) == one, (path.name, number)
            rendered += "text" in one
    assert len(paths) >= 70
    assert rendered > len(paths) * len(CASES) // 2
