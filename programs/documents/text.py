"""Text in the one form that documents are kept in, so that offsets stay true and tokens give it back."""

from __future__ import annotations

import re
import unicodedata

_LINE_ENDS = re.compile("\r\n|[\r\n\v\x85\u2028\u2029]")
_CONTROLS = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\ufeff]")
_NOT_TEXT = re.compile("[\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


def cleaned(text: str) -> str:
    """`text` composed (NFC, as tokenizers compose it), its lines ended by `\\n`, without control characters.

    Tabs and form feeds stay; what is no character becomes U+FFFD. Cleaning twice changes nothing.
    """
    text = _LINE_ENDS.sub("\n", text)
    text = _CONTROLS.sub("", text)
    return unicodedata.normalize("NFC", _NOT_TEXT.sub("\ufffd", text))
