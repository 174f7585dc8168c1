"""What tests of the runtime begin with: documents, models, and a place to run programs."""

from __future__ import annotations

from array import array

from programs.documents.document import Document
from programs.documents.tokens import DocumentTokens
from programs.runtime.prompt import OpenDocument
from programs.tokenizer import Tokenizer


def open_document(text: str, tokenizer: Tokenizer) -> OpenDocument:
    ids = array("I", tokenizer.encode(text, after_control=True))
    return OpenDocument(document_of(text), DocumentTokens(ids, array("I", range(len(ids)))))


def document_of(text: str, name: str = "a.txt") -> Document:
    return Document("doc_" + name, name, "text/plain", len(text.encode()), text, (), 0.0)
