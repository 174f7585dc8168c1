"""Conversations of each kind, and their answers id by id, spelled as no tokenizer would spell them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import cycle

from programs.tokenizer import Tokenizer
from tests.programs.families import Call, Case, Family, tokenizer_for

_SIZES = (1, 2, 1, 3)
_ACCENT = "\u0301"
"""A combining accent: some tokenizers' normalizers would join it to the letter before."""
_RARE = "\U0010fffd"
"""A character that no vocabulary has: it is written byte by byte."""
CUT = "\ufffd"


@dataclass(frozen=True)
class Written:
    """An answer as the model writes it.

    `ids` end with the token that ends the turn, unless `limit` cuts them short; `kept` are those before it, `said`
    the ids of content and calls among them. `loose` names what is written otherwise than a template shows it.
    """

    ids: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()
    said: tuple[int, ...] = ()
    reasoning: str = ""
    content: str = ""
    calls: tuple[Call, ...] = ()
    call_text: str = ""
    loose: tuple[tuple[str, str], ...] = ()
    limit: int | None = None


@dataclass(frozen=True)
class Step:
    """What is sent, a question or one result for each call of the answer before, and what is answered."""

    texts: tuple[str, ...]
    answer: Written
    of_tools: bool = False


@lru_cache
def conversation(family: Family, case: Case) -> tuple[Step, ...]:
    writer = _Writer(family)
    match case:
        case Case.PLAIN:
            return tuple(_plain(writer))
        case Case.THINKING:
            return tuple(_thinking(writer))
        case Case.TOOL_LOOP:
            return tuple(_loop(writer))
        case Case.POST_LOOP:
            return (*_loop(writer), *_after(writer))
        case Case.WINDOW_SLIDE:
            return tuple(_long(writer))


def _plain(writer: _Writer) -> Iterator[Step]:
    yield Step(("Is it so?\nTell me.",), writer.write("Alpha HAVING 1234\n\nand  x so.\n"))
    yield Step(("And then?",), writer.write("Bravo cafe\u0301 so\n\nit goes.  "))
    yield Step(("Once more!",), writer.cut("Charlie is cut"))
    yield Step(("Where were you?",), writer.write("Delta end."))
    yield Step(("Thanks.",), writer.write("Echo."))


def _thinking(writer: _Writer) -> Iterator[Step]:
    yield Step(("Why?\nTell me.",), writer.write("Alpha HAVING 1234\n\nand  x so.", "Musing over cafe\u0301s.\n\nSo."))
    yield Step(("And then?",), writer.write("Bravo cafe\u0301 so.  ", "Pondering HAVING 5678."))
    yield Step(("Once more!",), writer.cut("Charlie is cut", "Brooding still."))
    yield Step(("Where were you?",), writer.write("Delta end.", "Dreaming."))


def _loop(writer: _Writer) -> Iterator[Step]:
    """Two calls at once where the model can, then one that is spelled loosely, then the answer."""
    family = writer.family
    thinks = Case.THINKING not in family.lacks
    first = (weather("Oslo", "2.0"), weather("Bergen", "1"))[: 2 if family.parallel else 1]
    beside = "" if family.beside is None else "Looking it up."
    question = "What weather?\nBoth, please."
    yield Step((question,), writer.call(first, beside, "Musing HAVING 12." if thinks else ""))
    results = ("rain, 7 degrees", "snow, 1 degree")[: len(first)]
    if family.rounds > 1:
        second = (replace(weather("Paris", "1.50"), wide=True),)
        again = writer.call(second, "", "Pondering cafe\u0301s." if thinks else "", after_result=True)
        yield Step(results, again, of_tools=True)
        results = ("sun, 21 degrees",)
    said = writer.write("Foxtrot HAVING said\n\nrain.", "Brooding." if thinks else "", after_result=True)
    yield Step(results, said, of_tools=True)


def _after(writer: _Writer) -> Iterator[Step]:
    thinks = Case.THINKING not in writer.family.lacks
    yield Step(("Thanks!",), writer.write("Golf cafe\u0301 welcome.", "Dreaming HAVING." if thinks else ""))
    yield Step(("Bye.",), writer.write("Hotel.", "Waking." if thinks else ""))


def _long(writer: _Writer) -> Iterator[Step]:
    for name in ("Alpha", "Bravo", "Charlie", "Delta", "Echo", "Foxtrot", "Golf", "Hotel", "India", "Juliet"):
        yield Step((f"Where is {name}?\nAnd how?",), writer.write(f"{name} HAVING cafe\u0301 1234\n\nand so it goes."))


def weather(city: str, days: str) -> Call:
    return Call("get_weather", (("city", f'"{city}"'), ("days", days)))


@dataclass(frozen=True)
class _Writer:
    family: Family

    @property
    def tokenizer(self) -> Tokenizer:
        return tokenizer_for(self.family)

    def write(self, content: str, reasoning: str = "", *, after_result: bool = False) -> Written:
        family = self.family
        thought = family.think(reasoning, after_result=after_result)
        before = odd(self.tokenizer, thought + family.opening)
        said = odd(self.tokenizer, content)
        kept = (*before, *said, *odd(self.tokenizer, family.closing))
        reasoning = reasoning if thought and thought != family.hasty else ""
        return Written((*kept, self._id(family.end)), kept, said, reasoning, content, loose=_trimmed(content))

    def cut(self, content: str, reasoning: str = "") -> Written:
        """An answer that ends within a character, since it may not be longer."""
        whole = self.write(content, reasoning)
        head = self.tokenizer.encode(_RARE, after_control=True)[:-1]
        before = whole.kept[: len(whole.kept) - len(odd(self.tokenizer, self.family.closing))]
        kept, said = (*before, *head), (*whole.said, *head)
        return replace(whole, ids=(*kept, kept[-1]), kept=kept, said=said, content=content + CUT, limit=len(kept))

    def call(self, calls: tuple[Call, ...], content: str, reasoning: str, *, after_result: bool = False) -> Written:
        family = self.family
        assert family.calls is not None
        thought = family.think(reasoning, after_result=after_result)
        text = family.calls(calls)
        shown = family.calls([call.tidy for call in calls])
        before = content + (family.beside or "") if content else ""
        said = odd(self.tokenizer, before + text)
        kept = (*odd(self.tokenizer, thought), *said)
        end = self._id(family.call_end or family.end)
        reasoning = reasoning if thought and thought != family.hasty else ""
        loose = ((text, shown),) if text != shown else ()
        return Written((*kept, end), kept, said, reasoning, content, calls, self._held_back(text), loose)

    def _held_back(self, text: str) -> str:
        """What is the engine's parser's to read: from the first control token on, or all of it."""
        controls = self.tokenizer.control_pattern
        found = controls.search(text) if controls else None
        return text[found.start() :] if found else text

    def _id(self, control: str) -> int:
        return self.tokenizer.controls[control].id


def odd(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """`text` in odd pieces, control tokens whole and accents by themselves."""
    ids: list[int] = []
    assert tokenizer.control_pattern is not None
    sizes = cycle(_SIZES)
    for piece in re.split(f"({tokenizer.control_pattern.pattern}|{_ACCENT})", text):
        if piece in tokenizer.controls:
            ids.append(tokenizer.controls[piece].id)
            continue
        start = 0
        while start < len(piece):
            end = start + next(sizes)
            ids += tokenizer.encode(piece[start:end], after_control=True)
            start = end
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    return tuple(ids)


def _trimmed(content: str) -> tuple[tuple[str, str], ...]:
    """Blanks around an answer are kept as they were written where the template trims them."""
    return ((content, content.strip()),) if content != content.strip() else ()
