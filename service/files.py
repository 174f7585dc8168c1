"""`/v1/files`: what batches read and write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from starlette.responses import StreamingResponse

from service.errors import ServiceError
from service.multipart import uploaded
from service.openapi import form_body
from service.schema.files import DeletedFile, FileObject, FileObjectList
from service.services import services_of

router = APIRouter()

_SHORTEST_S, _LONGEST_S = 3600, 2_592_000
_FORM = form_body(
    **{
        "purpose": "`batch`",
        "expires_after[anchor]": "`created_at`",
        "expires_after[seconds]": f"{_SHORTEST_S} to {_LONGEST_S}",
    }
)


@router.post("/v1/files", openapi_extra=_FORM)
async def create_file(request: Request) -> FileObject:
    """A form with `file` and `purpose`, which is `batch`."""
    services = services_of(request)
    async with uploaded(request, services.settings.max_file_bytes) as upload:
        if upload.fields.get("purpose") != "batch":
            raise ServiceError("files are kept for purpose 'batch' only", param="purpose", code="invalid_value")
        ttl_s = _wanted_ttl_s(upload.fields)
        return FileObject.of(await services.files.put(upload.name, "batch", upload.blocks(), ttl_s=ttl_s))


@router.get("/v1/files")
async def list_files(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    after: str | None = None,
    order: Literal["asc", "desc"] = "desc",
    purpose: str | None = None,
) -> FileObjectList:
    files, more = await services_of(request).files.page(
        limit, after=after, purpose=purpose, newest_first=order == "desc"
    )
    first, last = (files[0].id, files[-1].id) if files else (None, None)
    return FileObjectList(data=[FileObject.of(file) for file in files], first_id=first, last_id=last, has_more=more)


@router.get("/v1/files/{file_id}")
async def get_file(request: Request, file_id: str) -> FileObject:
    return FileObject.of(await services_of(request).files.get(file_id))


@router.get("/v1/files/{file_id}/content", response_class=StreamingResponse)
async def get_file_content(request: Request, file_id: str) -> StreamingResponse:
    files = services_of(request).files
    file = await files.get(file_id)
    headers = {
        "Content-Length": str(file.size),
        "Content-Disposition": f"attachment; filename*=utf-8''{quote(file.name, safe='')}",
    }
    return StreamingResponse(files.blocks(file), headers=headers, media_type="application/octet-stream")


@router.delete("/v1/files/{file_id}")
async def delete_file(request: Request, file_id: str) -> DeletedFile:
    await services_of(request).files.delete(file_id)
    return DeletedFile(id=file_id)


def _wanted_ttl_s(fields: Mapping[str, str]) -> int | None:
    """What the fields `expires_after[…]` ask for."""
    wanted = fields.get("expires_after[seconds]")
    if wanted is None:
        return None
    if fields.get("expires_after[anchor]", "created_at") != "created_at":
        raise ServiceError("files expire after 'created_at'", param="expires_after.anchor", code="invalid_value")
    if not wanted.isdecimal() or not _SHORTEST_S <= int(wanted) <= _LONGEST_S:
        raise ServiceError(
            f"files expire {_SHORTEST_S} to {_LONGEST_S} seconds after they were made",
            param="expires_after.seconds",
            code="invalid_value",
        )
    return int(wanted)
