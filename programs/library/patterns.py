"""A schema's regular expressions, matched in time that grows with the text alone, whoever wrote them: pure.

Python's own matcher would let one pattern stop a front or, one after the other, all workers. This one is pydantic's,
Rust's regex crate. It has no look-around and no back-references; looking ahead from the very beginning, as pydantic's
decimals and rules for passwords do, is split off into patterns of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from pydantic_core import SchemaError, SchemaValidator, core_schema

from programs.errors import ImpossibleSchemaError

_CACHED = 512


@lru_cache(_CACHED)
def matcher(pattern: str) -> Matcher:
    """Raises ImpossibleSchemaError when it cannot be read."""
    try:
        rest, ahead = _split(pattern)
        return Matcher(_compiled(rest), tuple((wanted, _compiled(f"^(?:{inner})")) for wanted, inner in ahead))
    except SchemaError as error:
        why = str(error).rpartition("error: ")[2].splitlines()[0]
        raise ImpossibleSchemaError(f"the schema's pattern {pattern!r} cannot be used: {why}") from error


@dataclass(frozen=True)
class Matcher:
    """`ahead`: what else has to match from the beginning, or must not."""

    rest: SchemaValidator
    ahead: tuple[tuple[bool, SchemaValidator], ...]

    def found_in(self, text: str) -> bool:
        return self.rest.isinstance_python(text) and all(
            one.isinstance_python(text) == wanted for wanted, one in self.ahead
        )


def _compiled(pattern: str) -> SchemaValidator:
    return SchemaValidator(core_schema.str_schema(pattern=pattern))


def _split(pattern: str) -> tuple[str, list[tuple[bool, str]]]:
    """`^(?!a)(?=b)c` as `^c`, not `a`, and `b`; whatever is not written so stays whole."""
    ahead: list[tuple[bool, str]] = []
    rest = pattern.removeprefix("^")
    while pattern.startswith("^") and rest.startswith(("(?=", "(?!")):
        end = next((at for at, depth in _depths(rest) if at and not depth), None)
        if end is None:
            break
        ahead.append((rest[2] == "=", rest[3:end]))
        rest = rest[end + 1 :]
    branches = any(rest[at] == "|" and not depth for at, depth in _depths(rest))
    return (pattern, []) if branches or not ahead else (f"^{rest}", ahead)


def _depths(pattern: str) -> Iterator[tuple[int, int]]:
    """Each character that is neither escaped nor in a class, and how many groups are open after it."""
    depth, in_class, at = 0, False, 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 2
            continue
        if in_class:
            in_class = char != "]"
        else:
            in_class = char == "["
            depth += (char == "(") - (char == ")")
            yield at, depth
        at += 1
