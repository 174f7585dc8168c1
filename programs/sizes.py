"""How many tokens messages take, for deciding which of them a context window shows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from hashlib import blake2b

from programs.errors import TemplateError
from programs.message import DIGEST_BYTES, Message
from programs.prompt import PromptBuilder, Spelling

_REMEMBERED = 65_536
_EPOCH = datetime.fromtimestamp(0, UTC)


class MessageSizes:
    """Counts for one model. What has been counted once is remembered by its digest, not its text."""

    def __init__(self, prompts: PromptBuilder, *, drops_reasoning: bool) -> None:
        self._prompts = prompts
        self._drops_reasoning = drops_reasoning
        self._counts: OrderedDict[bytes, int] = OrderedDict()

    def of(self, messages: Sequence[Message], spellings: Mapping[int, Spelling]) -> list[int]:
        """Tokens a message, what the template writes around each included; close estimates, not exact."""
        return [self._size(message, spellings.get(index)) for index, message in enumerate(messages)]

    def _size(self, message: Message, spelling: Spelling | None) -> int:
        if spelling is not None:
            dropped = self._drops_reasoning and message.reasoning and spelling.answer is not None
            return self._around + len(spelling.answer if dropped and spelling.answer else spelling.ids)
        calls = (text for call in message.tool_calls for text in (call.name, call.arguments))
        return self._around + sum(map(self._tokens, filter(None, (message.content, message.reasoning, *calls))))

    def _tokens(self, text: str) -> int:
        digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()
        counted = self._counts.get(digest)
        if counted is None:
            counted = self._counts[digest] = len(self._prompts.tokenizer.encode(text, after_control=True))
            if len(self._counts) > _REMEMBERED:
                self._counts.popitem(last=False)
        return counted

    @cached_property
    def _around(self) -> int:
        """What the template writes around a message, on average."""
        question, answer = Message("user", "a"), Message("assistant", "a")
        try:
            short, long = (
                len(self._prompts.build(messages, {}, now=_EPOCH).ids)
                for messages in ((question,), (question, answer, question))
            )
        except TemplateError:
            return 0
        return max(0, (long - short) // 2 - self._tokens("a"))
