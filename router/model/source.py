"""Where a model can be fetched from, as a user writes it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from router.errors import ModelError

_REPOSITORY = re.compile(r"(?P<name>[\w.-]+/[\w.-]+?)(?:@(?P<revision>[\w./-]+))?")
_PAGE = re.compile(r"/(?P<name>[\w.-]+/[\w.-]+)(?:/tree/(?P<revision>[\w./-]+))?/?")


@dataclass(frozen=True, slots=True)
class HubSource:
    """A repository of a Hugging Face hub. `revision` is a branch, a tag or a commit."""

    repository: str
    revision: str = "main"

    @property
    def name(self) -> str:
        return self.repository.partition("/")[2]

    def __str__(self) -> str:
        return f"hf:{self.repository}" + ("" if self.revision == "main" else f"@{self.revision}")


@dataclass(frozen=True, slots=True)
class LocalSource:
    """A model directory of this machine."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    def __str__(self) -> str:
        return str(self.path)


def parse_source(text: str) -> HubSource | LocalSource:
    """`org/name`, `hf:org/name@revision`, the address of a model's page, or a path, which begins with `/`, `.` or `~`.

    Raises ModelError for anything else.
    """
    if text.startswith(("/", ".", "~")):
        return LocalSource(Path(text).expanduser().resolve())
    if text.startswith("s3://"):
        raise ModelError(
            f"{text} cannot be fetched from here: run `aws s3 sync {text} DIR`, then `antiphon model verify DIR`"
        )
    if text.startswith(("http://", "https://")):
        match = _PAGE.fullmatch(urlsplit(text).path)
    else:
        match = _REPOSITORY.fullmatch(text.removeprefix("hf:"))
    if match is None or set(match["name"].split("/")) & {".", ".."}:
        raise ModelError(f"{text!r} is no model: ORG/NAME, hf:ORG/NAME@REVISION, or a path that begins with / or ./")
    return HubSource(match["name"], match["revision"] or "main")
