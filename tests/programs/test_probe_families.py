"""The probe on the chat templates of real model families, against what is known of them."""

from __future__ import annotations

import pytest

from programs.dialect import Dialect
from programs.divergence import Divergence
from programs.probe import probe
from programs.template import ChatTemplate
from programs.tokenizer import Tokenizer
from programs.verdict import Case, TemplateProbe, Verdict
from tests.packages import REAL_TOKENIZERS, TEMPLATE_OF, chat_template, chat_templates, tokenizer_of

SPECIAL_TOKENS = {"bos_token": "<bos>", "eos_token": "<eos>"}

LETTERS = {
    Verdict.PRESERVING: "ok",
    Verdict.REWRITING: "re",
    Verdict.UNSAFE: "no",
    Verdict.NOT_APPLICABLE: "--",
}

# In the order of Case; `re3` rewrites from message 3 on, `(re3)` does so and costs a session nothing.
FAMILIES = {
    #          plain  sys  thnk off  loop aftr text para lsys ldev space date ctrl mark
    "qwen2_5": "ok     ok  --   --   ok   ok   ok   ok   ok   --   ok   --   ok   ok",
    "qwen3": "ok     ok  re1  re1  ok   re1  ok   ok   ok   --   ok   --   ok   ok",
    "qwen3_instruct_2507": "ok ok --   --   ok   ok   ok   ok   ok   --   ok   --   ok   ok",
    "qwen3_vl": "ok     ok  --   --   ok   ok   ok   ok   no   --   ok   --   ok   ok",
    "qwen3_5_think": "re1 re2 re1  re1  ok   re1  ok   ok   no   --   (re1) --  ok   ok",
    "qwen3_6": "re1    re2 re1  re1  ok   re1  ok   ok   no   --   (re1) --  ok   ok",
    "qwen3_8": "ok     ok  ok   ok   ok   ok   ok   ok   no   --   (re1) --  ok   ok",
    "nemotron_3_nano": "re1 re2 re1 ok  ok   re1  ok   ok   re2  --   (re1) --  ok   ok",
    "nemotron_3_ultra": "re1 re2 re1 ok ok   re1  ok   ok   re2  --   (re1) --  ok   ok",
    "glm4moe": "ok     ok  re1  ok   ok   re1  ok   ok   ok   --   (re1) --  ok   ok",
    "gptoss": "ok     ok  re1  --   ok   re1  no   no   no   no   ok   (re0) ok  ok",
    "deepseekv3": "re1    re2 re1  --   re1  re5  re1  re1  re1  --   ok   --   ok   ok",
    "deepseek_r1_distill": "re1 re2 re1 -- re1  re5  no   re1  no   --   ok   --   ok   ok",
    "llama3": "ok     ok  --   --   --   --   --   --   ok   --   (re1) --  ok   ok",
    "llama3_1": "ok     ok  --   --   ok   ok   no   no   ok   --   (re1) --  ok   ok",
    "llama3_2": "ok     ok  --   --   ok   ok   no   no   ok   --   (re1) (re0) ok ok",
    "gemma": "ok     no  --   --   --   --   --   --   no   --   (re1) --  ok   ok",
    "gemma3": "ok     ok  --   --   --   --   --   --   no   --   (re1) --  ok   ok",
    "gemma4_v5": "ok     ok  re1  ok   ok   re1  re1  ok   ok   ok   (re1) --  ok   ok",
    "phi3": "ok     ok  --   --   --   --   --   --   ok   --   ok   --   ok   ok",
    "phi3_5": "ok     ok  --   --   --   --   --   --   ok   --   ok   --   ok   ok",
    "cohere2": "ok     ok  --   --   --   --   --   --   ok   --   ok   --   ok   ok",
    "lfm2": "ok     ok  --   --   no   no   no   no   ok   --   ok   --   ok   ok",
    "lfm2_2_5": "ok     ok  re1  --   ok   re1  ok   ok   ok   --   ok   --   ok   ok",
    "muse_glimmer": "ok     ok  ok   --   ok   ok   no   ok   ok   --   ok   (re0) ok  ok",
}

LOOP_THOUGHT = "Thought one."


def probed(name: str, tokenizer: Tokenizer | None = None) -> TemplateProbe:
    return probe(ChatTemplate(chat_template(name), SPECIAL_TOKENS), tokenizer)


def row(found: TemplateProbe) -> list[str]:
    cells = []
    for finding in found.findings:
        cell = LETTERS[finding.verdict] + (str(finding.divergence.message) if finding.divergence else "")
        cells.append(f"({cell})" if finding.cure else cell)
    return cells


def divergence(found: TemplateProbe, case: Case) -> Divergence:
    found_there = found[case].divergence
    assert found_there is not None
    return found_there


@pytest.mark.parametrize("family", FAMILIES)
def test_the_verdicts(family: str) -> None:
    assert row(probed(family)) == FAMILIES[family].split()


def test_every_template_is_probed_without_an_exception() -> None:
    templates = [ChatTemplate(path.read_text(), SPECIAL_TOKENS) for path in sorted(chat_templates().glob("*.jinja"))]
    found = [probe(template) for template in templates]
    assert len(found) >= 70
    assert all(one.usable and one[Case.MARKS].verdict == Verdict.PRESERVING for one in found)
    assert [len(one.findings) for one in found] == [len(Case)] * len(found)


@pytest.mark.parametrize("name", REAL_TOKENIZERS)
def test_typed_control_tokens_of_real_tokenizers_stay_text(name: str) -> None:
    found = probed(TEMPLATE_OF[name], tokenizer_of(name))
    assert found[Case.CONTROL_TOKENS].verdict == Verdict.PRESERVING
    assert row(found) == FAMILIES[TEMPLATE_OF[name]].split()


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5_think", "qwen3_6"])
def test_qwen_drops_thoughts_at_the_start_of_the_previous_answer(family: str) -> None:
    found = probed(family)
    for case in (Case.THINKING, Case.THINKING_OFF, Case.AFTER_LOOP):
        at = divergence(found, case)
        assert (at.role, at.before.endswith("<|im_start|>assistant\n")) == ("assistant", True)
    assert divergence(found, Case.THINKING_OFF).was == "<think>\n\n</think>\n\n"
    assert divergence(found, Case.AFTER_LOOP).was.startswith(f"<think>\n{LOOP_THOUGHT}\n</think>")
    assert divergence(found, Case.AFTER_LOOP).now.startswith("<tool_call>")


def test_gpt_oss_drops_the_analysis_of_a_loop_once_there_is_a_final_message() -> None:
    at = divergence(probed("gptoss"), Case.AFTER_LOOP)
    assert at.before.endswith("<|start|>assistant")
    assert at.was.startswith("<|channel|>analysis<|message|>")
    assert at.now.startswith(" to=functions.get_weather<|channel|>")


def test_glm_empties_the_think_block_of_a_loop() -> None:
    at = divergence(probed("glm4moe"), Case.AFTER_LOOP)
    assert at.before.endswith("<|assistant|>\n<think>")
    assert at.was.startswith(LOOP_THOUGHT)
    assert at.now.startswith("</think>")


def test_nemotron_changes_every_assistant_start() -> None:
    at = divergence(probed("nemotron_3_nano"), Case.PLAIN)
    assert at.before.endswith("<|im_start|>assistant\n<think>")
    assert (at.was, at.now[:19]) == ("\n", "</think>Answer one.")


def test_deepseek_hoists_system_messages_to_the_front() -> None:
    found = probed("deepseekv3")
    assert divergence(found, Case.PLAIN).was == "<think>\n"
    at = divergence(found, Case.LATE_SYSTEM)
    assert (at.before, at.now[:18]) == ("<bos>Instruction one.", "\n\nInstruction two.")


@pytest.mark.parametrize(("family", "header"), [("llama3_2", "Today Date: "), ("gptoss", "Current date: ")])
def test_a_date_in_the_header_ends_the_prefix_there(family: str, header: str) -> None:
    at = divergence(probed(family), Case.DATE)
    assert header in at.before
    assert at.offset < 200
    assert at.was != at.now


@pytest.mark.parametrize(
    ("family", "case", "why"),
    [
        ("gemma", Case.SYSTEM, "refuses: System role not supported"),
        ("gemma3", Case.LATE_SYSTEM, "refuses: Conversation roles must alternate user/assistant/user/assistant/..."),
        ("qwen3_6", Case.LATE_SYSTEM, "refuses: System message must be at the beginning."),
        ("qwen3_vl", Case.LATE_SYSTEM, "drops the content of message 3 (system)"),
        ("llama3_1", Case.PARALLEL_CALLS, "refuses: This model only supports single tool-calls at once!"),
        ("llama3_1", Case.TEXT_AND_CALL, "drops the content of message 1 (assistant)"),
        ("gptoss", Case.PARALLEL_CALLS, "drops a call of message 1 (assistant)"),
        ("gptoss", Case.LATE_DEVELOPER, "drops the content of message 3 (developer)"),
        ("lfm2", Case.TOOL_LOOP, "drops a call of message 1 (assistant)"),
        ("deepseek_r1_distill", Case.LATE_SYSTEM, "drops the content of message 0 (system)"),
    ],
)
def test_what_is_unsafe_says_why(family: str, case: Case, why: str) -> None:
    assert probed(family)[case].why == why


@pytest.mark.parametrize(
    ("family", "dialect"),
    [
        ("qwen3", Dialect()),
        ("gptoss", Dialect(reasoning_field="thinking", developer=True)),
        ("deepseekv3", Dialect(arguments_as_text=True)),
        ("deepseek_r1_distill", Dialect(arguments_as_text=True, null_content=True)),
        ("idefics3", Dialect(text_parts=True)),
        ("gemma4_v5", Dialect(developer=True)),
        ("cohere2", Dialect()),
    ],
)
def test_how_each_family_is_spoken_to(family: str, dialect: Dialect) -> None:
    assert probed(family).dialect == dialect


@pytest.mark.parametrize(
    ("family", "arguments"),
    [
        ("qwen3", {}),
        ("qwen3_6", {"preserve_thinking": True}),
        ("nemotron_3_nano", {"truncate_history_thinking": False}),
        ("lfm2_2_5", {"preserve_thinking": True}),
        ("gptoss", {}),
    ],
)
def test_the_argument_that_keeps_earlier_reasoning(family: str, arguments: dict[str, bool]) -> None:
    assert probed(family).keep_reasoning == arguments
