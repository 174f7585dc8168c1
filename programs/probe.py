"""Tries a chat template on the conversations that are known to break prefixes, and says what it does to each.

The rendered text alone is compared; which ids spell it is the ledger's business. Where a template changes text that
the ledger puts back, or a date that sessions pin, the finding says so: it is a fact about the template that costs
sessions nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from programs.dialect import Spell
from programs.divergence import Divergence, diverge, divergence_at, lost, shared_prefix
from programs.errors import TemplateError, TemplateRefusedError
from programs.marks import mark, protect, strip_marks
from programs.message import Message
from programs.probe_cases import (
    A1,
    DAY,
    OSLO,
    Q1,
    Q2,
    RAIN,
    SYSTEM,
    TOOL,
    Conversation,
    Subject,
    conversations,
    thinking,
)
from programs.template import ChatTemplate
from programs.tokenizer import Tokenizer
from programs.verdict import Case, Finding, TemplateProbe, Verdict

_ANOTHER_DAY: datetime = DAY + timedelta(days=400)  # another year, month and day
_SPELLED = "the produced spelling is kept"
_PINNED = "a session keeps the date it started with"

_KEEP_REASONING = {
    "preserve_thinking": True,
    "keep_past_thinking": True,
    "truncate_history_thinking": False,
    "clear_thinking": False,
}
"""Arguments by which templates, each its own, let earlier reasoning stay."""

_LOOKS_LIKE_CONTROL = re.compile(r"<[^<>\s{}'\"]{1,40}>")


def probe(template: ChatTemplate, tokenizer: Tokenizer | None = None) -> TemplateProbe:
    """Try every case. Never raises: what the template cannot do is a finding.

    Without a tokenizer, the control tokens are guessed from what the template writes.
    """
    subject = Subject(template)
    controls = tokenizer.control_pattern if tokenizer else _guess_controls(template.source)
    findings = [_follow(subject, conversation) for conversation in conversations(subject)]
    findings += [_whitespace(subject), _date(subject), _typed(subject, controls), _marked(subject)]
    return TemplateProbe(tuple(findings), subject.dialect, dict(_keeping_reasoning(subject)))


def _follow(subject: Subject, conversation: Conversation) -> Finding:
    """Ask for each answer in turn, and see whether each prompt goes on where the one before and its answer ended."""
    case, messages = conversation.case, conversation.messages
    if conversation.excuse:
        return Finding(case, Verdict.NOT_APPLICABLE, conversation.excuse)
    found: list[Divergence] = []
    earlier = ""
    for answer, end in _turns(conversation):
        try:
            prompt = subject.prompt(messages[:end], conversation.arguments)
        except TemplateError as error:
            return Finding(case, Verdict.UNSAFE, _raised(error))
        dropped = lost(messages[:end], prompt)
        if dropped:
            return Finding(case, Verdict.UNSAFE, dropped)
        divergence = None if answer is None else diverge(earlier, prompt, messages, answer)
        found += [divergence] if divergence else []
        earlier = prompt
    if not found:
        return Finding(case, Verdict.PRESERVING)
    first = min(found, key=lambda one: one.offset)
    return Finding(case, Verdict.REWRITING, f"the prefix ends in message {first.message} ({first.role})", first)


def _turns(conversation: Conversation) -> Iterator[tuple[int | None, int]]:
    """For each prompt: the answer that the prompt before asked for, and how many messages it shows."""
    messages = conversation.messages
    answers = [index for index, message in enumerate(messages) if message.role == "assistant"]
    if conversation.last_turn_only:
        answers = answers[-1:]
    return zip([None, *answers], [*answers, len(messages)], strict=True)


def _raised(error: TemplateError) -> str:
    return f"refuses: {error}" if isinstance(error, TemplateRefusedError) else str(error)


def _keeping_reasoning(subject: Subject) -> Iterator[tuple[str, bool]]:
    """The argument under which the template, which drops reasoning without it, keeps it."""
    if not subject.thinks or _follow(subject, thinking(subject)).verdict != Verdict.REWRITING:
        return
    for name, value in _KEEP_REASONING.items():
        if name in subject.template.variables:
            kept = _follow(subject, thinking(subject, **{name: value}))
            if kept.verdict == Verdict.PRESERVING:
                yield name, value
                return


def _whitespace(subject: Subject) -> Finding:
    """Whether an answer's trailing whitespace is shown; other changes are the other cases' business."""
    answer = Message("assistant", "Answer one. \n")
    messages = (Q1, answer, Q2)
    try:
        prompt = subject.prompt(messages)
    except TemplateError as error:
        return Finding(Case.WHITESPACE, Verdict.UNSAFE, _raised(error))
    kept = answer.content.rstrip()
    if kept not in prompt:
        return Finding(Case.WHITESPACE, Verdict.UNSAFE, lost(messages, prompt))
    if answer.content in prompt:
        return Finding(Case.WHITESPACE, Verdict.PRESERVING)
    end = prompt.index(kept) + len(kept)
    divergence = divergence_at(end, prompt[:end] + answer.content[len(kept) :], prompt, messages[:2])
    return Finding(Case.WHITESPACE, Verdict.REWRITING, "trims answers", divergence, _SPELLED)


def _date(subject: Subject) -> Finding:
    """Whether the same messages are another prompt on another day."""
    for messages in ((Q1,), (SYSTEM, Q1)):
        try:
            one, other = (subject.prompt(messages, now=now) for now in (DAY, _ANOTHER_DAY))
        except TemplateError:
            continue  # the other cases tell
        if one != other:
            divergence = divergence_at(shared_prefix(one, other), one, other, messages)
            return Finding(Case.DATE, Verdict.REWRITING, "the date is in the prompt", divergence, _PINNED)
    return Finding(Case.DATE, Verdict.NOT_APPLICABLE, "the prompt has no date")


def _typed(subject: Subject, controls: re.Pattern[str] | None) -> Finding:
    """Whether control tokens that people and tools type stay text: as many of them as without, and nothing changed."""
    case = Case.CONTROL_TOKENS
    if controls is None:
        return Finding(case, Verdict.NOT_APPLICABLE, "there are no control tokens")
    try:
        why = _reached(subject, controls, (Q1, A1, Q2), 0)
    except TemplateError as error:
        return Finding(case, Verdict.UNSAFE, _raised(error))
    if not why and subject.has_tools:
        why = _reached_by_tools(subject, controls)
    return Finding(case, Verdict.UNSAFE, why) if why else Finding(case, Verdict.PRESERVING)


def _reached_by_tools(subject: Subject, controls: re.Pattern[str]) -> str:
    messages = (Q1, Message("assistant", tool_calls=(OSLO,)), RAIN)
    try:
        return _reached(subject, controls, messages, 2, {"tools": [TOOL]})
    except TemplateError:
        return ""  # that tools do not work here is said by their own cases


def _reached(
    subject: Subject,
    controls: re.Pattern[str],
    messages: tuple[Message, ...],
    index: int,
    arguments: Mapping[str, Any] | None = None,
) -> str:
    """What is wrong, in words, when message number `index` spells all the control tokens that the template writes."""
    plain = controls.findall(subject.prompt(messages, arguments))
    if not plain:
        return ""
    text = f"a {' '.join(dict.fromkeys(plain))} b"
    typed = [*messages]
    typed[index] = Message(messages[index].role, text, tool_call_id=messages[index].tool_call_id)
    prompt = subject.prompt(typed, arguments, spells={index: lambda spelled, part: protect(spelled, controls)})
    where = f"message {index} ({messages[index].role})"
    more = len(controls.findall(prompt)) - len(plain)
    if more:
        return f"the text of {where} makes {more} control tokens"
    if messages[index].content in subject.prompt(messages, arguments) and text not in strip_marks(prompt):
        return f"changes text of {where} that looks like control tokens"
    return ""


def _marked(subject: Subject) -> Finding:
    """Whether the marks by which answers are found again in the prompt leave it as it is."""
    for conversation in conversations(subject):
        if conversation.excuse:
            continue
        messages, arguments = conversation.messages, conversation.arguments
        spells = {index: _marking(index) for index, one in enumerate(messages) if one.role == "assistant"}
        try:
            plain = subject.prompt(messages, arguments)
        except TemplateError:
            continue  # its own case tells
        try:
            marked = strip_marks(subject.prompt(messages, arguments, spells=spells))
        except TemplateError as error:
            return Finding(Case.MARKS, Verdict.UNSAFE, f"{conversation.case}: {_raised(error)}")
        if marked != plain:
            divergence = divergence_at(shared_prefix(plain, marked), plain, marked, messages)
            return Finding(Case.MARKS, Verdict.UNSAFE, f"{conversation.case}: other text beside marks", divergence)
    return Finding(Case.MARKS, Verdict.PRESERVING)


def _marking(index: int) -> Spell:
    return lambda text, part: text if part is None else mark(text, index, part)


def _guess_controls(source: str) -> re.Pattern[str] | None:
    """The texts in a template's source that look like control tokens."""
    texts = sorted(set(_LOOKS_LIKE_CONTROL.findall(source)), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, texts))) if texts else None
