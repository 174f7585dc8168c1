"""What is found out about templates, on small ones that have one habit each."""

from __future__ import annotations

import json

import pytest

from programs.dialect import Dialect, learn_dialect
from programs.message import Message, ToolCall
from programs.probe import probe
from programs.template import ChatTemplate
from programs.tokenizer import Tokenizer
from programs.verdict import Case, Finding, TemplateProbe, Verdict
from tests.model_files import CHATML, tiny_tokenizer

ASK = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
MISTRAL_LIKE = """
{%- set ns = namespace(system='') -%}
{%- for m in messages if m.role == 'system' %}{% set ns.system = m.content ~ '\n\n' %}{% endfor -%}
<s>{%- for m in messages if m.role != 'system' -%}
    {%- if m.role == 'user' -%}
        {%- if loop.last %}{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif -%}
        [INST]{{ ns.system }}{{ m.content }}[/INST]
        {%- else -%}[INST]{{ m.content }}[/INST]{% endif -%}
    {%- else -%}{{ m.content }}</s>
    {%- endif -%}
{%- endfor -%}
"""


def probed(source: str, tokenizer: Tokenizer | None = None) -> TemplateProbe:
    return probe(ChatTemplate(source, {"eos_token": "<eos>"}), tokenizer)


def where(finding: Finding) -> tuple[int, str, str, str]:
    divergence = finding.divergence
    assert divergence is not None
    return divergence.message, divergence.before, divergence.was, divergence.now


def test_chatml_preserves() -> None:
    found = probed(CHATML)
    assert found.verdict == Verdict.PRESERVING
    assert found.usable
    assert found.summary == "chat template: preserving"
    assert found[Case.PLAIN] == Finding(Case.PLAIN, Verdict.PRESERVING)
    assert found[Case.THINKING].why == "the template knows no reasoning"
    assert found[Case.TOOL_LOOP].why == "the template knows no tools"
    assert [finding.case for finding in found.findings] == list(Case)


def test_what_the_generation_prompt_adds_and_history_does_not_show_is_rewritten() -> None:
    found = probed(TURNS + "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}")
    assert found[Case.PLAIN].verdict == Verdict.REWRITING
    message, before, was, now = where(found[Case.PLAIN])
    assert (message, was) == (1, "<think>\n")
    assert before.endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert now.startswith("Answer one.<|im_end|>\n")


def test_reasoning_that_goes_when_the_user_speaks_again() -> None:
    source = """
{%- for m in messages %}<|im_start|>{{ m.role }}
{% set last = messages[loop.index:] | selectattr('role', 'equalto', 'user') | list | length == 0 -%}
{% if m.reasoning_content and (last or keep_past_thinking) %}<think>{{ m.reasoning_content }}</think>{% endif -%}
{{ m.content }}{% for call in m.tool_calls %}<call>{{ call.function | tojson }}</call>{% endfor %}<|im_end|>
{% endfor %}{% if tools %}{% endif %}"""
    found = probed(source + ASK)
    assert found[Case.TOOL_LOOP].verdict == Verdict.PRESERVING
    assert found[Case.THINKING].verdict == found[Case.AFTER_LOOP].verdict == Verdict.REWRITING
    message, before, was, now = where(found[Case.AFTER_LOOP])
    assert (message, before[-10:], was[:16], now[:6]) == (1, "assistant\n", "<think>Thought o", "<call>")
    assert found.keep_reasoning == {"keep_past_thinking": True}
    assert found.summary == "chat template: rewriting in thinking, turn after a tool loop"


def test_thinking_turned_off_is_an_empty_block_only_where_one_is_asked() -> None:
    off = "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    found = probed(f"{TURNS}{{% if add_generation_prompt %}}<|im_start|>assistant\n{off}{{% endif %}}")
    assert found[Case.PLAIN].verdict == Verdict.PRESERVING
    assert found[Case.THINKING_OFF].verdict == Verdict.REWRITING
    message, _, was, now = where(found[Case.THINKING_OFF])
    assert (message, was, now[:11]) == (1, "<think></think>", "Answer one.")


def test_a_system_prompt_that_moves_to_the_last_user_turn_ends_the_prefix_before_the_first() -> None:
    found = probed(MISTRAL_LIKE)
    assert found[Case.PLAIN].verdict == Verdict.PRESERVING
    message, before, was, now = where(found[Case.SYSTEM])
    assert (message, before) == (0, "<s>[INST]")
    assert was.startswith("Instruction one.\n\nQuestion one?")
    assert now.startswith("Question one?")


def test_system_messages_hoisted_to_the_front() -> None:
    systems = "{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}"
    others = "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}<assistant>"
    finding = probed(systems + others)[Case.LATE_SYSTEM]
    assert finding.verdict == Verdict.REWRITING
    message, before, was, now = where(finding)
    assert (message, before, was[:6], now[:16]) == (1, "Instruction one.", "<user>", "Instruction two.")


def test_a_refusal_is_unsafe_and_keeps_the_templates_words() -> None:
    refuse = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    found = probed(refuse + TURNS + ASK)
    assert found[Case.SYSTEM] == Finding(Case.SYSTEM, Verdict.UNSAFE, "refuses: System role not supported")
    assert found[Case.LATE_SYSTEM].verdict == Verdict.PRESERVING
    assert found.verdict == Verdict.UNSAFE
    assert found.usable


def test_a_template_that_fails_on_everything_is_reported_and_not_usable() -> None:
    found = probed("{{ messages[0].content + 1 }}")
    assert found[Case.PLAIN].verdict == Verdict.UNSAFE
    assert "can only concatenate str" in found[Case.PLAIN].why
    assert not found.usable


def test_dropped_content_and_dropped_calls_are_unsafe() -> None:
    found = probed(
        "{% if tools %}{% endif %}{% for m in messages if m.role != 'tool' %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    )
    assert found[Case.TOOL_LOOP].why == "drops a call of message 1 (assistant)"
    first = "{% for m in messages %}<{{ m.role }}>{{ m.content if loop.first or m.role != 'system' }}{% endfor %}"
    assert probed(first)[Case.LATE_SYSTEM].why == "drops the content of message 3 (system)"


def test_trimming_is_told_and_costs_nothing() -> None:
    found = probed(TURNS.replace("m.content", "m.content | trim") + ASK)
    assert found[Case.WHITESPACE].verdict == Verdict.REWRITING
    assert found[Case.WHITESPACE].cure == "the produced spelling is kept"
    assert where(found[Case.WHITESPACE])[2] == " \n"
    assert found.verdict == Verdict.PRESERVING


def test_a_date_is_told_where_it_stands_and_costs_nothing() -> None:
    found = probed("Today is {{ strftime_now('%d %b %Y') }}.\n" + TURNS + ASK)
    assert found[Case.DATE].verdict == Verdict.REWRITING
    message, before, was, now = where(found[Case.DATE])
    assert (message, before, was[:12], now[:12]) == (0, "Today is 0", "2 Jan 2026.\n", "6 Feb 2027.\n")
    assert found[Case.DATE].cure == "a session keeps the date it started with"
    assert found.verdict == Verdict.PRESERVING


@pytest.mark.parametrize("known", [True, False])
def test_typed_control_tokens_stay_text(known: bool) -> None:
    tokenizer = Tokenizer(tiny_tokenizer().to_str(), CHATML) if known else None
    assert probed(CHATML, tokenizer)[Case.CONTROL_TOKENS].verdict == Verdict.PRESERVING


def test_a_template_that_makes_control_tokens_of_text_is_unsafe() -> None:
    found = probed(TURNS.replace("m.content", "m.content.encode('ascii', 'ignore').decode()") + ASK)
    assert found[Case.CONTROL_TOKENS].why == "the text of message 0 (user) makes 2 control tokens"


def test_a_template_that_escapes_what_it_is_given_changes_it() -> None:
    found = probed(TURNS.replace("m.content", "m.content | tojson(ensure_ascii=True)") + ASK)
    assert found[Case.CONTROL_TOKENS].why == "changes text of message 0 (user) that looks like control tokens"
    assert found[Case.MARKS].verdict == Verdict.UNSAFE


@pytest.mark.parametrize(
    ("content", "call", "dialect"),
    [
        ("m.content", "c.function.arguments.city", Dialect()),
        ("m.content[0].text", "c.function.arguments.city", Dialect(text_parts=True)),
        ("m.content", "'args: ' + c.function.arguments", Dialect(arguments_as_text=True)),
        ("m.content or ''", "c.function.arguments.city if m.content is none", Dialect(null_content=True)),
        ("m.get('thinking', '') ~ m.content", "c.function.arguments.city", Dialect(reasoning_field="thinking")),
        ("m.get('reasoning', '') ~ m.content", "c.function.arguments.city", Dialect(reasoning_field="reasoning")),
    ],
)
def test_the_dialect_is_learnt_by_trying(content: str, call: str, dialect: Dialect) -> None:
    calls = f"{{% for c in m.tool_calls %}}{{{{ {call} }}}}{{% endfor %}}"
    source = f"{{% for m in messages %}}{{{{ {content} }}}}{calls}{{% endfor %}}"
    assert learn_dialect(ChatTemplate(source)) == dialect


def test_a_dialect_shows_a_message_as_its_template_reads_it() -> None:
    call = ToolCall("call1", "f", '{"a": [1, "b"]}')
    message = Message("assistant", reasoning="hm", tool_calls=(call, ToolCall("call2", "g", "no json")))
    shown = Dialect(reasoning_field="thinking", null_content=True).show(message, lambda text, part: text.upper())
    assert shown == {
        "role": "assistant",
        "content": None,
        "thinking": "HM",
        "tool_calls": [
            {"id": "CALL1", "type": "function", "function": {"name": "F", "arguments": {"A": [1, "B"]}}},
            {"id": "CALL2", "type": "function", "function": {"name": "G", "arguments": "NO JSON"}},
        ],
    }
    assert Dialect(text_parts=True).show(Message("developer", "x"))["content"] == [{"type": "text", "text": "x"}]
    assert Dialect().show(Message("developer", "x"))["role"] == "system"
    assert Dialect(developer=True).show(Message("developer", "x"))["role"] == "developer"


def test_all_of_it_is_json() -> None:
    found = probed("{{ strftime_now('%Y') }}" + TURNS + ASK)
    told = json.loads(json.dumps(found.as_json()))
    assert (told["verdict"], told["usable"], told["summary"]) == ("preserving", True, "chat template: preserving")
    date = next(case for case in told["cases"] if case["case"] == "date")
    assert date["divergence"]["message"] == 0
    assert date["divergence"]["before"] == "202"
    assert told["dialect"]["reasoning_field"] == "reasoning_content"
