"""Rules that keep volatile text at the head of a conversation from breaking every prefix behind it.

Only system and developer messages are ever touched, and in them only whole lines that a rule knows: what users, models
and tools wrote stays as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

from programs.message import Message, Tool

Action = Literal["pin", "remove"]
Where = Literal["head", "system"]

MAX_LINE_CHARS = 400
"""Longer lines are prose: they are not looked at, so that a rule's cost is bounded whatever a client sends."""
MAX_PINS = 64
"""A session keeps no more pinned values than this; further lines stay as they were sent."""

_SHOWN_CHARS = 60
_CACHED_TOOL_LISTS = 64
_MASK = "\ue000volatile\ue000"


@dataclass(frozen=True, slots=True)
class HygieneRule:
    """What to do with lines that change from request to request.

    `pattern` is a regular expression that must match from the start of a line (blanks included) and ignores case.
    "pin" replaces what its group `value` matched by what stood there when the session saw the line first; "remove"
    takes out the whole line. `where` is the messages looked at: "head", the system and developer messages before
    anything else, or "system", those in the middle of a conversation too. Raises ValueError for a pattern that does
    not compile, lacks the group, or repeats a repetition, which can take exponential time.
    """

    name: str
    pattern: str
    action: Action
    where: Where = "head"
    regex: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            regex = re.compile(self.pattern, re.IGNORECASE)
        except re.error as error:
            raise ValueError(f"rule {self.name!r}: not a regular expression: {error}") from None
        if self.action == "pin" and "value" not in regex.groupindex:
            raise ValueError(f"rule {self.name!r}: to pin something, name it in the pattern: (?P<value>...)")
        if _may_explode(self.pattern):
            raise ValueError(f"rule {self.name!r}: a repeated group holds another repetition or a choice: bound it")
        object.__setattr__(self, "regex", regex)


@dataclass(frozen=True, slots=True)
class HygieneChange:
    """What a rule did to one line. `before` and `after` are shortened; `after` is None for a removed line.

    `message_index` is None for tools that were put in order.
    """

    rule: str
    message_index: int | None
    before: str
    after: str | None


@dataclass(frozen=True, slots=True)
class Cleaned:
    """Messages to build the prompt from, the pins to keep with the session, and what was changed."""

    messages: tuple[Message, ...]
    pins: Mapping[str, str]
    changes: tuple[HygieneChange, ...]


@dataclass(frozen=True, slots=True)
class _Hit:
    """A line that a rule matches: `body` is the line without what is blank at its end, which is `rest`."""

    rule: HygieneRule
    body: str
    rest: str
    value: tuple[int, int]

    def with_value(self, value: str) -> str:
        """The line with another value."""
        start, end = self.value
        return self.body[:start] + value + self.body[end:] + self.rest


def clean(messages: Sequence[Message], pins: Mapping[str, str], rules: Sequence[HygieneRule]) -> Cleaned:
    """The messages with volatile lines pinned or removed; the first rule that matches a line decides.

    A pin belongs to the text around the value and to how many such lines stood before it, so `messages` must begin
    where the conversation does. A message stays where it is even when nothing of it is left.
    """
    kept = dict(pins)
    changes: list[HygieneChange] = []
    seen: dict[str, int] = {}

    def cleaned(index: int, hit: _Hit) -> str:
        if hit.rule.action == "remove":
            changes.append(HygieneChange(hit.rule.name, index, _short(hit.body), None))
            return ""
        key = _pin_key(hit, seen)
        value = hit.body[slice(*hit.value)]
        pinned = kept.get(key, value)
        if len(kept) < MAX_PINS:
            kept.setdefault(key, value)
        if pinned != value:
            changes.append(HygieneChange(hit.rule.name, index, _short(value), _short(pinned)))
        return hit.with_value(pinned)

    return Cleaned(_rewritten(messages, rules, cleaned), kept, tuple(changes))


def mask(messages: Sequence[Message], rules: Sequence[HygieneRule]) -> tuple[Message, ...]:
    """The messages to find a session by, whose pins are not known yet: every volatile value reads the same.

    For hashing only. Whatever `clean` makes of the messages has the same mask as the messages themselves.
    """
    return _rewritten(messages, rules, lambda _, hit: "" if hit.rule.action == "remove" else hit.with_value(_MASK))


def _rewritten(
    messages: Sequence[Message], rules: Sequence[HygieneRule], rewrite: Callable[[int, _Hit], str]
) -> tuple[Message, ...]:
    """The messages with each line that a rule matches as `rewrite` has it, given its message's index."""
    rewritten = list(messages)
    for index, applied in _in_scope(messages, rules):
        lines = _lines(messages[index].content, applied)
        content = "".join(line if isinstance(line, str) else rewrite(index, line) for line in lines)
        rewritten[index] = _with_content(messages[index], content)
    return tuple(rewritten)


def _in_scope(
    messages: Sequence[Message], rules: Sequence[HygieneRule]
) -> Iterator[tuple[int, tuple[HygieneRule, ...]]]:
    """The messages that may be changed, each with the rules that apply to it."""
    everywhere = tuple(rule for rule in rules if rule.where == "system")
    applied = tuple(rules)
    for index, message in enumerate(messages):
        if message.role not in ("system", "developer"):
            applied = everywhere
        elif applied:
            yield index, applied
        if not applied:
            return


def _lines(content: str, rules: Sequence[HygieneRule]) -> Iterator[str | _Hit]:
    """The content line by line, with a hit in the place of each line that a rule matches."""
    for line in content.splitlines(keepends=True):
        body = line.rstrip()
        hit = _hit(body, line[len(body) :], rules) if 0 < len(body) <= MAX_LINE_CHARS else None
        yield hit or line


def _hit(body: str, rest: str, rules: Sequence[HygieneRule]) -> _Hit | None:
    for rule in rules:
        match = rule.regex.match(body)
        if match is None:
            continue
        if rule.action == "remove":
            return _Hit(rule, body, rest, (0, 0))
        if match["value"] is not None:
            return _Hit(rule, body, rest, match.span("value"))
    return None


def _pin_key(hit: _Hit, seen: dict[str, int]) -> str:
    key = f"{hit.rule.name}: {hit.with_value('…').strip()}"
    number = seen[key] = seen.get(key, 0) + 1
    return f"{key} #{number}"


def _with_content(message: Message, content: str) -> Message:
    return message if content == message.content else replace(message, content=content)


def _short(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


_PATTERN_PARTS = re.compile(
    r"""\\. | \[\^?\]?(?:\\.|[^\]\\])*\]                            # an escape, a class
    | \((?:\?(?:P?<\w+>|P=\w+|<?[=!]|[:>]|[aiLmsux-]+[:)]))? | \)   # a group begins, ends
    | [*+?] | \{\d*,?\d*\}                                          # a repetition
    | .""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(slots=True)
class _Group:
    varies: bool = False
    unbounded: bool = False


def _may_explode(pattern: str) -> bool:
    """Whether a repeated group can match the same text in several ways: `(a+)*`, `(a|b)*`, `(a+){9}`.

    Stricter than need be: such a pattern may be harmless. What passes takes polynomial time on a line, and lines are
    short.
    """
    groups = [_Group()]
    closed: _Group | None = None
    for part in _PATTERN_PARTS.findall(pattern):
        if part.startswith("(") and not part.endswith(")"):
            groups.append(_Group())
        elif part == ")" and len(groups) > 1:
            closed = groups.pop()
            groups[-1].varies |= closed.varies
            groups[-1].unbounded |= closed.unbounded
            continue
        elif part[0] in "*+?" or re.fullmatch(r"\{\d*,?\d*\}", part):
            unbounded = part[0] in "*+" or part.endswith(",}")
            if closed and part != "?" and (closed.unbounded or (unbounded and closed.varies)):
                return True
            groups[-1].varies = True
            groups[-1].unbounded |= unbounded
        elif part == "|":
            groups[-1].varies = True
        closed = None
    return False


_MONTH = (
    "(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?"
    "|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
_WEEKDAY = "(?:mon(?:day)?|tue(?:s(?:day)?)?|wed(?:nesday)?|thu(?:rs?(?:day)?)?|fri(?:day)?|sat(?:urday)?|sun(?:day)?)"
_ZONE = (
    "(?:utc|gmt|z|[ecmp][sd]t|cet|cest|bst|ist|jst|kst|sgt|hkt|wet|west|eet|eest|msk|hst|ak[sd]t|ae[sd]t|nz[sd]t"
    "|(?:africa|america|asia|atlantic|australia|europe|indian|pacific|etc)/[a-z_/+-]{2,40}"
    "|coordinated|universal|greenwich|mean|pacific|mountain|central|eastern|western|european|indian|japan|china"
    "|standard|daylight|summer|local|time)"
)
_MOMENT_PART = (
    rf"(?:\d{{1,14}}(?!\d)(?:st|nd|rd|th)?|t(?=\d)|[ap]\.?m\b|(?:{_MONTH}|{_WEEKDAY}|{_ZONE}|at|of|the|week)\b)"
)
_MOMENT = rf"{_MOMENT_PART}(?:[\s,./:+()–—-]{{0,4}}{_MOMENT_PART}){{0,24}}"
_SURELY_A_MOMENT = (
    rf"(?=.{{0,80}}?(?:\d{{4}}|\d:\d\d|\d ?[ap]\.?m\b|\d[./-]\d{{1,2}}[./-]\d|\b{_MONTH}\b|\b{_WEEKDAY}\b))"
)
_NOW = (
    r"(?:the )?(?:(?:current|present|today(?:['’]?s)?)[ _-]?(?:(?:local|utc|gmt|system|server|user)[ _-]?)?"
    r"(?:date(?:[ _/&-]{0,3}(?:and )?time)?|time(?:stamp)?(?:[ _/&-]{0,3}(?:and )?date)?|day|year|month)"
    r"|today|now|time now|date today)"
)
_QUOTES = r"""["'`*_ \t]{0,6}"""
_CURRENT_TIME = (
    r"""[\s"'`*_#>•<({\[-]{0,40}(?:it is now |"""
    rf"""{_NOW}(?: in [\w/+-]{{2,40}})?{_QUOTES}(?:\([^()]{{1,24}}\))?{_QUOTES}(?::|=|>|is\b|[–—-] ){_QUOTES})"""
    rf"""{_SURELY_A_MOMENT}(?P<value>{_MOMENT})"""
    r"""[.;,!"'`*_)\]}\s]{0,8}(?:</[\w:-]{1,40}>)?[.,]?$"""
)

DEFAULT_RULES = (
    HygieneRule("billing-nonce", r"\s{0,40}x-anthropic-billing-header\s{0,4}:", "remove"),
    HygieneRule("current-time", _CURRENT_TIME, "pin"),
)
"""Safe everywhere: a client's billing nonce, and lines that say nothing but what time or date it is now."""


@lru_cache(_CACHED_TOOL_LISTS)
def ordered_tools(tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
    """The same tuple for the same set of tools, in whatever order a client sends them and their JSON's keys.

    Sorted by name rather than kept in the order that a session saw first: tools stand before everything else in a
    prompt, so this way all sessions with these tools share that prefix, and nothing has to be remembered. Keys come in
    the order that models were trained on (`type` before `function`, `name` before `parameters`); parameters that are
    `required` first, as that list has them, then the others by name. Lists keep their order: it may have a meaning.
    """
    ordered = (Tool(tool.name, _dumps(_ordered_schema(json.loads(tool.definition)))) for tool in tools)
    return tuple(sorted(ordered, key=lambda tool: (tool.name, tool.definition)))


_SCHEMA_KEYS = ("type", "function", "name", "description", "parameters", "properties", "required", "items", "enum")
_SCHEMA_RANK = {key: rank for rank, key in enumerate(_SCHEMA_KEYS)}
_NAMED_SCHEMAS = {"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"}
_DATA = {"enum", "const", "default", "example", "examples"}


def _ordered_schema(value: Any) -> Any:
    match value:
        case dict():
            keys = sorted(value, key=lambda key: (_SCHEMA_RANK.get(key, len(_SCHEMA_RANK)), key))
            return {key: _ordered_member(key, value[key], value.get("required")) for key in keys}
        case list():
            return [_ordered_schema(item) for item in value]
        case _:
            return value


def _ordered_member(key: str, value: Any, required: Any) -> Any:
    if key in _DATA:
        return json.loads(json.dumps(value, sort_keys=True))
    if key not in _NAMED_SCHEMAS or not isinstance(value, dict):
        return _ordered_schema(value)
    wanted = required if key == "properties" and isinstance(required, list) else []
    rank = {name: position for position, name in reversed(list(enumerate(wanted))) if isinstance(name, str)}
    names = sorted(value, key=lambda name: (rank.get(name, len(wanted)), name))
    return {name: _ordered_schema(value[name]) for name in names}


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
