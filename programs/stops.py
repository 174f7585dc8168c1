"""Stop strings found in front: an engine that takes over a broken stream sees only what it writes itself."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace

from programs.tokenizer import Tokenizer
from router.request import Delta, Finish

_CUT_TOKENS = 4
"""Of a character whose first bytes stand before the window."""


def stopped(tokenizer: Tokenizer, before: Sequence[int], delta: Delta, stop: Sequence[str]) -> Delta:
    """`delta` up to the token that completes one of the strings `stop`, finished there; or all of it.

    `before` are the ids before it. As in SGLang, control tokens count as they are spelled, the first string given goes
    before the others, and a generation that ends with that very token for another reason has ended for that.
    """
    if not stop:
        return delta
    window = max(len(one.encode()) for one in stop) + _CUT_TOKENS
    ids = array("I", before[-window:]) + array("I", delta.token_ids)
    first = len(ids) - len(delta.token_ids)
    last = len(ids) - (delta.finish is not None)
    for end in range(first + 1, last + 1):
        begin = max(0, end - window)
        text = tokenizer.decode(ids[begin:end], skip_special_tokens=False)
        earlier = tokenizer.decode(ids[begin : end - 1], skip_special_tokens=False)
        matched = next((one for one in stop if one in text and one not in earlier), None)
        if matched is not None:
            count = end - first
            ended = Finish("stop", matched)
            return replace(delta, token_ids=delta.token_ids[:count], logprobs=delta.logprobs[:count], finish=ended)
    return delta
