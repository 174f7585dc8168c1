"""A text by which two tokenizers are told apart: what they split in different ways."""

from __future__ import annotations

from programs.tokenizer import Tokenizer
from router.registry.agreement import TokenizerProbe

TEXT = (
    "  Two spaces,\ttabs\n\n\nand   runs \r\n of them. I'll, WE'VE, don't; HAVING _snake_case_ camelCaseWord "
    "x=3.14159 12345678 1,000,000 <b>&amp;</b> \"quoted\" {'json': [1, 2]} https://example.org/a?b=c#d "
    "naïve e\u0301 ﬁ ½ ŀ 你好,世界 こんにちは 안녕하세요 Привет שלום مرحبا नमस्ते ไทย 👩‍👩‍👧🏽 🇩🇪 \u200b\u00a0\u3000 "
    "def f(a):\n        return a  # end\n"
)
"""Holds no control token of any model: a server's tokenizer would take its text for the token, and ours does not."""


def tokenizer_probe(tokenizer: Tokenizer) -> TokenizerProbe:
    """What a server that has this tokenizer answers."""
    return TokenizerProbe(TEXT, tuple(tokenizer.encode(TEXT, after_control=False)))
