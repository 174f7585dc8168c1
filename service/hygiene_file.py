"""Hygiene rules as an operator writes them: the defaults, none, or a YAML file."""

from __future__ import annotations

from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from programs.hygiene import DEFAULT_RULES, Action, HygieneRule, Where
from service.errors import HygieneFileError


class _Rule(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    pattern: str
    action: Action
    where: Where = "head"


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    defaults: bool = True
    """Whether the rules that Antiphon has of its own apply too, after these."""
    rules: list[_Rule] = []


def hygiene_rules(chosen: str) -> tuple[HygieneRule, ...]:
    """The rules for `default`, `off` or the path of a file. Raises HygieneFileError, which says what is wrong."""
    if chosen in ("default", "off"):
        return DEFAULT_RULES if chosen == "default" else ()
    try:
        file = _File.model_validate(yaml.safe_load(Path(chosen).read_text(encoding="utf-8")) or {})
        own = tuple(HygieneRule(rule.name, rule.pattern, rule.action, rule.where) for rule in file.rules)
    except OSError as error:
        raise HygieneFileError(f"hygiene rules {chosen} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise HygieneFileError(f"hygiene rules {chosen}: {where or 'the file'}: {first['msg']}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise HygieneFileError(f"hygiene rules {chosen}: {' '.join(str(error).split())}") from error
    return own + (DEFAULT_RULES if file.defaults else ())
