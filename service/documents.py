"""`/v1/documents`: files kept as text, for programs to read."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from programs.documents.document import Document, DocumentInfo, document_id
from programs.documents.extraction import Extracted
from programs.documents.media import HEAD_BYTES, charset_of, media_type_of
from programs.errors import DocumentEmptyError, DocumentError, UnknownDocumentError
from service.multipart import Upload, uploaded
from service.schema.documents import DeletedDocument, DocumentObject, DocumentObjectList, PagedDocumentObject
from service.services import Services, services_of

router = APIRouter(prefix="/v1/documents", tags=["documents"])

_NAME_CHARS = 255

_FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "name": {"type": "string", "description": "Instead of the file's own name."},
                    },
                }
            }
        },
    }
}


@router.post(
    "",
    status_code=201,
    response_model=PagedDocumentObject,
    summary="Upload a document",
    openapi_extra=_FORM,
    responses={200: {"model": PagedDocumentObject, "description": "The same file was here already."}},
)
async def create_document(request: Request) -> Response:
    """A form with a `file`: text, Markdown, HTML, PDF or DOCX. The same file always has the same id."""
    services = services_of(request)
    async with uploaded(request, services.settings.document_bytes) as upload:
        name = (upload.fields.get("name") or upload.name or "untitled")[:_NAME_CHARS]
        media_type = await _media_type(upload, name)
        charset = charset_of(upload.file.content_type or "")
        content_id = await asyncio.to_thread(document_id, upload.file.file, media_type, charset)
        try:
            return _answer(await services.documents.rename(content_id, name), status=200)
        except UnknownDocumentError:
            extracted = await _extracted(services, upload, name, media_type, charset)
    document = Document(content_id, name, media_type, upload.size, extracted.text, extracted.pages, time.time())
    await services.documents.put(document)
    return _answer(document.info, status=201)


@router.get("", response_model=DocumentObjectList, summary="List documents")
async def list_documents(
    request: Request, limit: Annotated[int, Query(ge=1, le=100)] = 20, after: str | None = None
) -> DocumentObjectList:
    """Newest first."""
    found = await services_of(request).documents.newest(limit, after)
    objects = [DocumentObject.of(info) for info in found.documents]
    first, last = (objects[0].id, objects[-1].id) if objects else (None, None)
    return DocumentObjectList(data=objects, first_id=first, last_id=last, has_more=found.more)


@router.get("/{document_id}", response_model=PagedDocumentObject, summary="Get a document")
async def get_document(request: Request, document_id: str) -> PagedDocumentObject:
    """Without its text, with where its pages are."""
    return PagedDocumentObject.of(await services_of(request).documents.info(document_id))


@router.get("/{document_id}/text", response_class=PlainTextResponse, summary="Get a document's text")
async def get_document_text(
    request: Request,
    document_id: str,
    start: Annotated[int, Query(ge=0)] = 0,
    end: Annotated[int | None, Query(ge=0)] = None,
) -> PlainTextResponse:
    """All of it, or its characters from `start` up to `end`, as citations name them."""
    document = await services_of(request).documents.get(document_id)
    return PlainTextResponse(document.text[start:end])


@router.delete("/{document_id}", response_model=DeletedDocument, summary="Delete a document")
async def delete_document(request: Request, document_id: str) -> DeletedDocument:
    """With its text and its tokens. Results that cite it stay."""
    if not await services_of(request).documents.delete(document_id):
        raise UnknownDocumentError(f"Document with id '{document_id}' not found.")
    return DeletedDocument(id=document_id)


async def _media_type(upload: Upload, name: str) -> str:
    await upload.file.seek(0)
    head = await upload.file.read(HEAD_BYTES)
    if not head:
        raise DocumentEmptyError(f"{name!r} is empty")
    return media_type_of(name, upload.file.content_type or "", head)


async def _extracted(services: Services, upload: Upload, name: str, media_type: str, charset: str | None) -> Extracted:
    try:
        return await services.extractor.extract(upload.file.file, media_type, charset)
    except DocumentError as error:
        raise type(error)(f"{name!r} cannot be read: {error}") from error


def _answer(info: DocumentInfo, status: int) -> Response:
    return JSONResponse(PagedDocumentObject.of(info).model_dump(), status_code=status)
