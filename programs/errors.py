"""What can go wrong between messages and ids.

ProgramsError
├── TemplateError           a chat template cannot be used; `line` says where, when known
│   └── TemplateRefusedError    the template refuses these messages, in its own words
├── TokenizerError          a model's tokenizer files cannot be used
├── ContextLengthError      the prompt and what it asks for do not fit the model's context
├── UnknownResponseError    no stored response has this id (never, deleted or expired)
├── UnknownConversationError    likewise for a conversation
├── TurnConflictError       another turn holds or has moved the head this one wanted to extend
└── StoreUnavailableError   the session store cannot be reached
"""

from __future__ import annotations


class ProgramsError(Exception):
    """Base of everything `programs` raises; `str(error)` is one line that says what to do."""


class TemplateError(ProgramsError):
    """A chat template cannot be used."""


class TemplateRefusedError(TemplateError):
    """The template refuses these messages; the text is the template's own."""


class TokenizerError(ProgramsError):
    """A model's tokenizer files cannot be used."""


class ContextLengthError(ProgramsError):
    """The prompt, and the tokens asked for after it, do not fit the model's context."""


class UnknownResponseError(ProgramsError):
    """No stored response has this id."""


class UnknownConversationError(ProgramsError):
    """No stored conversation has this id."""


class TurnConflictError(ProgramsError):
    """Another turn holds, or has moved, the head that this one wanted to extend."""


class StoreUnavailableError(ProgramsError):
    """The session store cannot be reached."""
