"""From a text file's bytes to its characters."""

from __future__ import annotations

import codecs

import charset_normalizer

from programs.errors import DocumentTypeError, DocumentUnreadableError

_SAMPLE_BYTES = 256 * 1024
_MARKS = (  # the longer ones first: UTF-32's begins as UTF-16's does
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_COMMON = ("cp1252", "cp1250", "cp1251", "koi8_r", "cp1253", "cp1254", "cp932", "gb18030", "big5", "euc_jp", "euc_kr")
"""Those that are looked for, the first where a short text may be in several."""


def decoded(raw: bytes, charset: str | None = None) -> str:
    """The text in `raw`: by its byte order mark, else as `charset` says, else UTF-8, else as it looks.

    Raises DocumentTypeError when it is no text, DocumentUnreadableError when its charset is not what it is said to be
    or cannot be told.
    """
    marked = next((name for mark, name in _MARKS if raw.startswith(mark)), None)
    known = marked or charset
    if known is not None:
        try:
            return raw.decode(known)
        except (LookupError, UnicodeError) as error:
            raise DocumentUnreadableError(f"it is not the {known} that it is said to be: {error}") from error
    if b"\0" in raw:
        raise DocumentTypeError("it is not text: it holds NUL bytes (UTF-16 needs a byte order mark)")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return _guessed(raw, error)


def _guessed(raw: bytes, not_utf8: UnicodeDecodeError) -> str:
    sample = raw[max(0, not_utf8.start - _SAMPLE_BYTES // 2) :][:_SAMPLE_BYTES]
    matches = charset_normalizer.from_bytes(sample, cp_isolation=list(_COMMON))
    best = matches.best()
    if best is not None:
        alike = [match.encoding for match in matches if _plausible(match) == _plausible(best)]
        try:
            return raw.decode(next((name for name in _COMMON if name in alike), best.encoding))
        except UnicodeDecodeError:
            pass
    raise DocumentUnreadableError(
        f"it is not UTF-8 (byte {not_utf8.start}) and its charset cannot be told; save it as UTF-8, or say its charset "
        "in the Content-Type of its part"
    )


def _plausible(match: charset_normalizer.CharsetMatch) -> tuple[float, float]:
    return match.chaos, match.coherence
