"""Model families: their chat templates, their tokenizers, and how their models write thoughts, answers and calls.

What a model writes is told here on its own, not taken from the template or the front: it is what both are held to.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any

from programs.model import ChatModel
from programs.template import ChatTemplate
from programs.tokenizer import Tokenizer
from tests.packages import chat_template, tokenizer_json, tokenizer_of

CONTEXT = 16_384


class Case(StrEnum):
    PLAIN = "plain"
    THINKING = "thinking"
    TOOL_LOOP = "tool loop"
    POST_LOOP = "post-loop"
    WINDOW_SLIDE = "window slide"


@dataclass(frozen=True)
class Call:
    """A tool call; each value is JSON text. `wide` calls are spelled as no template spells them."""

    name: str
    values: tuple[tuple[str, str], ...]
    wide: bool = False

    @property
    def json(self) -> str:
        colon = ":  " if self.wide else ": "
        return "{" + ", ".join(f'"{key}"{colon}{value}' for key, value in self.values) + "}"

    @property
    def tidy(self) -> Call:
        """The same call in everyone's spelling."""
        return Call(self.name, tuple((key, json.dumps(json.loads(value))) for key, value in self.values))


Calls = Sequence[Call]


@dataclass(frozen=True, eq=False)
class Family:
    """One template and the model behind it.

    `thought` frames reasoning; `{}` is its place. `hasty` is what the model writes before an answer without any,
    `opening` and `closing` what it writes itself around its content. `beside` stands between content and calls, None
    where the template cannot show both.
    """

    name: str
    tokenizer: str
    """Of `tests.packages`: the family's own, unless `stand_in`."""
    end: str
    stand_in: bool = False
    """Another family's tokenizer with this one's control tokens added: its own is in none of the packages."""
    bos: str = ""
    call_end: str = ""
    """Where it differs from `end`."""
    thought: str = ""
    hasty: str = ""
    opening: str = ""
    closing: str = ""
    calls: Callable[[Calls], str] | None = None
    beside: str | None = None
    parallel: bool = False
    rethinks: bool = True
    """Whether it is asked to think again after a tool's result."""
    rounds: int = 2
    """Calls one after the other in a loop that the template writes alike."""
    reasoning_field: str = "reasoning_content"
    arguments_as_text: bool = False
    null_content: bool = False
    lacks: Mapping[Case, str] = field(default_factory=dict)
    """Cases that the template cannot do, and why."""
    unread: Mapping[Case, str] = field(default_factory=dict)
    """Cases that the front gets wrong as yet, and why."""

    def __str__(self) -> str:
        return self.name

    @property
    def ends(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.end, self.call_end or self.end)))

    def think(self, reasoning: str, *, after_result: bool) -> str:
        """What stands before the content."""
        if after_result and not self.rethinks:
            return ""
        return self.thought.format(reasoning) if reasoning else self.hasty


def _in_xml(calls: Calls, after: str, between: str) -> str:
    def one(call: Call) -> str:
        values = "".join(f"<parameter={key}>\n{_bare(value)}\n</parameter>\n" for key, value in call.values)
        return f"<tool_call>\n<function={call.name}>\n{values}</function>\n</tool_call>{after}"

    return between.join(map(one, calls))


def _qwen_calls(calls: Calls) -> str:
    shown = (f'<tool_call>\n{{"name": "{call.name}", "arguments": {call.json}}}\n</tool_call>' for call in calls)
    return "\n".join(shown)


def _qwen_xml_calls(calls: Calls) -> str:
    return _in_xml(calls, "", "\n")


def _nemotron_calls(calls: Calls) -> str:
    return _in_xml(calls, "\n", "")


def _glm_calls(calls: Calls) -> str:
    def one(call: Call) -> str:
        values = (f"<arg_key>{key}</arg_key>\n<arg_value>{_bare(value)}</arg_value>\n" for key, value in call.values)
        return f"<tool_call>{call.name}\n{''.join(values)}</tool_call>"

    return "\n".join(map(one, calls))


def _llama_calls(calls: Calls) -> str:
    return "".join(f'{{"name": "{call.name}", "parameters": {call.json}}}' for call in calls)


def _deepseek_calls(calls: Calls) -> str:
    def one(call: Call) -> str:
        return f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{call.name}\n```json\n{call.json}\n```<｜tool▁call▁end｜>"

    return f"<｜tool▁calls▁begin｜>{chr(10).join(map(one, calls))}<｜tool▁calls▁end｜>"


def _lfm_calls(calls: Calls) -> str:
    def one(call: Call) -> str:
        values = (f"{key}={value.replace(chr(34), chr(39))}" for key, value in call.values)
        return f"{call.name}({', '.join(values)})"

    return f"<|tool_call_start|>[{', '.join(map(one, calls))}]<|tool_call_end|>"


def _harmony_calls(calls: Calls) -> str:
    return "".join(f" to=functions.{call.name}<|channel|>commentary json<|message|>{call.json}" for call in calls)


def _bare(value: str) -> str:
    return value.strip('"')


_NO_REASONING = "the template knows no reasoning"
_NO_TOOLS = "the template knows no tools"
_TALKS_ONLY = {Case.THINKING: _NO_REASONING, Case.TOOL_LOOP: _NO_TOOLS, Case.POST_LOOP: _NO_TOOLS}
_NO_THOUGHTS = {Case.THINKING: _NO_REASONING}

_QWEN: dict[str, Any] = {"tokenizer": "qwen3", "end": "<|im_end|>", "beside": "\n", "parallel": True}
_QWEN_OPENED: dict[str, Any] = _QWEN | {
    "stand_in": True,
    "thought": "{}\n</think>\n\n",
    "hasty": "\n</think>\n\n",
    "calls": _qwen_xml_calls,
    "beside": "\n\n",
}
_LLAMA: dict[str, Any] = {"tokenizer": "llama3_1", "end": "<|eot_id|>", "bos": "<|begin_of_text|>"}
_GEMMA: dict[str, Any] = {"tokenizer": "gemma3", "end": "<end_of_turn>", "bos": "<bos>", "lacks": _TALKS_ONLY}
_STAND_IN: dict[str, Any] = {"tokenizer": "llama3_1", "stand_in": True}

FAMILIES = (
    Family("qwen2_5", calls=_qwen_calls, lacks=_NO_THOUGHTS, **_QWEN),
    Family("qwen3", thought="<think>\n{}\n</think>\n\n", calls=_qwen_calls, **_QWEN),
    Family("qwen3_instruct_2507", calls=_qwen_calls, lacks=_NO_THOUGHTS, **_QWEN),
    Family("qwen3_vl", calls=_qwen_calls, lacks=_NO_THOUGHTS, **_QWEN),
    Family("qwen3_6", **_QWEN_OPENED),
    Family("qwen3_8", **_QWEN_OPENED),
    Family("llama3", lacks=_TALKS_ONLY, **_LLAMA),
    Family("llama3_1", calls=_llama_calls, lacks=_NO_THOUGHTS, **_LLAMA),
    Family("llama3_2", calls=_llama_calls, lacks=_NO_THOUGHTS, **_LLAMA),
    Family(
        "deepseekv3",
        tokenizer="deepseek_v3",
        stand_in=True,  # V3's own has no think tokens yet; its successors put them where it keeps room
        end="<｜end▁of▁sentence｜>",
        bos="<｜begin▁of▁sentence｜>",
        thought="{}\n</think>\n\n",
        hasty="\n</think>\n\n",
        calls=_deepseek_calls,
        beside="",
        parallel=True,
        rethinks=False,
        rounds=1,
        arguments_as_text=True,
        null_content=True,
    ),
    Family("gemma", **_GEMMA),
    Family("gemma3", **_GEMMA),
    Family(
        "gptoss",
        tokenizer="gptoss",
        end="<|return|>",
        call_end="<|call|>",
        thought="<|channel|>analysis<|message|>{}<|end|><|start|>assistant",
        opening="<|channel|>final<|message|>",
        calls=_harmony_calls,
        reasoning_field="thinking",
        unread=dict.fromkeys(
            (Case.THINKING, Case.TOOL_LOOP, Case.POST_LOOP),
            "harmony's channels are not told apart: analysis and calls are taken for content",
        ),
    ),
    Family(
        "glm4moe",
        end="<|user|>",
        call_end="<|observation|>",
        thought="\n<think>{}</think>\n",
        hasty="\n<think></think>\n",
        calls=_glm_calls,
        beside="\n",
        parallel=True,
        **_STAND_IN,
    ),
    Family(
        "nemotron_3_nano",
        end="<|im_end|>",
        thought="{}\n</think>\n",
        hasty="</think>",
        calls=_nemotron_calls,
        beside="\n",
        parallel=True,
        **_STAND_IN,
    ),
    Family(
        "lfm2_2_5",
        end="<|im_end|>",
        bos="<|startoftext|>",
        thought="<think>{}</think>",
        calls=_lfm_calls,
        beside="",
        parallel=True,
        reasoning_field="thinking",
        **_STAND_IN,
    ),
    Family("phi3", end="<|end|>", lacks=_TALKS_ONLY, **_STAND_IN),
    Family(
        "cohere2",
        end="<|END_OF_TURN_TOKEN|>",
        bos="<BOS_TOKEN>",
        closing="<|END_RESPONSE|>",
        lacks=_TALKS_ONLY,
        **_STAND_IN,
    ),
)

_CONTROLS = (
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_start|>", "<|im_end|>", "<|startoftext|>"),
    *("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|end|>", "<|endoftext|>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<|tool_call_start|>", "<|tool_call_end|>"),
    *("<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>"),
    *("<|CHATBOT_TOKEN|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
)
"""What the families with a stand-in write as single tokens."""
_TEXT_TO_THE_DECODER = ("think>", "tool_call>", "arg_key>", "arg_value>")
"""Control tokens that models do not mark special end so."""


def model_of(family: Family) -> ChatModel:
    tokenizer = tokenizer_for(family)
    template = ChatTemplate(chat_template(family.name), {"bos_token": family.bos, "eos_token": family.end})
    ends = frozenset(tokenizer.controls[end].id for end in family.ends)
    return ChatModel(family.name, 0, CONTEXT, tokenizer, template, {}, ends, tokenizer.vocabulary_size)


def tokenizer_for(family: Family) -> Tokenizer:
    return _with_controls(family.tokenizer) if family.stand_in else tokenizer_of(family.tokenizer)


@lru_cache
def _with_controls(name: str) -> Tokenizer:
    description = json.loads(tokenizer_json(name))
    added = description["added_tokens"]
    known = {token["content"] for token in added}
    first = 1 + max(*(token["id"] for token in added), *description["model"]["vocab"].values())
    missing = [text for text in _CONTROLS if text not in known]
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    for number, text in enumerate(missing):
        special = not text.endswith(_TEXT_TO_THE_DECODER)
        added.append({"id": first + number, "content": text, "special": special, **plain})
    return Tokenizer(json.dumps(description), "".join(_CONTROLS))
