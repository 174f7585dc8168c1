"""What `/v1/documents` answers."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from programs.documents.document import DocumentInfo


class DocumentObject(BaseModel):
    """A document without its text."""

    id: str
    object: Literal["document"] = "document"
    name: str
    media_type: str
    bytes: int = Field(description="As uploaded.")
    characters: int = Field(description="Of its text.")
    pages: int | None = Field(description="How many; null where the file has none.")
    created_at: int

    @classmethod
    def of(cls, info: DocumentInfo) -> DocumentObject:
        return cls(
            id=info.id,
            name=info.name,
            media_type=info.media_type,
            bytes=info.size,
            characters=info.characters,
            pages=len(info.pages) or None,
            created_at=int(info.created),
        )


class PagedDocumentObject(DocumentObject):
    """The same, and where its pages are."""

    page_offsets: list[tuple[int, int]] = Field(description="First character of each page, and the one behind it.")

    @classmethod
    def of(cls, info: DocumentInfo) -> PagedDocumentObject:
        offsets = [(page.start, page.end) for page in info.pages]
        return cls(**DocumentObject.of(info).model_dump(), page_offsets=offsets)


class DocumentObjectList(BaseModel):
    """Newest first. `after=last_id` asks for what follows."""

    object: Literal["list"] = "list"
    data: list[DocumentObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedDocument(BaseModel):
    id: str
    object: Literal["document.deleted"] = "document.deleted"
    deleted: Literal[True] = True
