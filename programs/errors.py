"""What can go wrong between messages and ids.

ProgramsError
├── TemplateError           a chat template cannot be used; `line` says where, when known
│   └── TemplateRefusedError    the template refuses these messages, in its own words
├── TokenizerError          a model's tokenizer files cannot be used
├── ContextLengthError      the prompt and what it asks for do not fit the model's context
├── UnknownResponseError    no stored response has this id (never, deleted or expired)
├── UnknownConversationError    likewise for a conversation
├── UnknownDocumentError    likewise for a document
├── DocumentError           a file cannot become a document
│   ├── DocumentTypeError       it is of no type that we read, or not of the one it is said to be
│   ├── DocumentTooLargeError   it, or its text, or what it unpacks to, is larger than is allowed
│   └── DocumentUnreadableError it is broken, or takes too long or too much memory to read
│       ├── DocumentEncryptedError  it needs a password
│       └── DocumentEmptyError      there is no text in it
├── UnknownJobError         no job has this id (never, or its time has passed)
├── LeaseLostError          another worker runs the job now, or it has ended: nothing more of it can be stored
├── UnknownProgramError     no program has this name
├── ProgramLoadError        a program's module cannot be loaded, or what it names is none
├── ProgramParametersError  a program's parameters are not what its signature says
│   └── ImpossibleSchemaError   a JSON Schema that no value satisfies, or that cannot be used
├── ExtractionError         no value could be had that the schema allows
├── ProgramOutputError      a program returned what JSON cannot hold
├── SglProgramError         one in SGLang's frontend language raised, or its process ended before it did
├── UnknownFileError        likewise for a file
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


class UnknownDocumentError(ProgramsError):
    """No stored document has this id."""


class DocumentError(ProgramsError):
    """A file cannot become a document."""


class DocumentTypeError(DocumentError):
    """A file is of no type that is read here, or not of the one that it is said to be."""


class DocumentTooLargeError(DocumentError):
    """A file, its text or what it unpacks to is larger than is allowed."""


class DocumentUnreadableError(DocumentError):
    """A file is broken, or takes too long or too much memory to read."""


class DocumentEncryptedError(DocumentUnreadableError):
    """A file cannot be read without its password."""


class DocumentEmptyError(DocumentUnreadableError):
    """There is no text in a file."""


class UnknownJobError(ProgramsError):
    """No job has this id."""


class LeaseLostError(ProgramsError):
    """A job is no longer this worker's: nothing more of it can be stored."""


class UnknownProgramError(ProgramsError):
    """No program has this name."""


class ProgramLoadError(ProgramsError):
    """A program's module cannot be loaded, or what it names is no program."""


class ProgramParametersError(ProgramsError):
    """A program's parameters are not what its signature says, or its own check refuses them."""


class ImpossibleSchemaError(ProgramParametersError):
    """No value satisfies this JSON Schema, or it is one that cannot be used."""


class ExtractionError(ProgramsError):
    """No value could be had from the model that its JSON Schema allows."""


class SglProgramError(ProgramsError):
    """A program in SGLang's frontend language raised, or its process ended before it did."""


class ProgramOutputError(ProgramsError):
    """A program returned what JSON cannot hold."""


class UnknownFileError(ProgramsError):
    """No stored file has this id."""


class TurnConflictError(ProgramsError):
    """Another turn holds, or has moved, the head that this one wanted to extend."""


class StoreUnavailableError(ProgramsError):
    """The session store cannot be reached."""
