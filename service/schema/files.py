"""What `/v1/files` answers."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from programs.files import Purpose, StoredFile


class FileObject(BaseModel):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int = Field(description="Seconds since the epoch, as `expires_at` is.")
    expires_at: int
    filename: str
    purpose: Purpose
    status: Literal["processed"] = "processed"

    @classmethod
    def of(cls, file: StoredFile) -> FileObject:
        return cls(
            id=file.id,
            bytes=file.size,
            created_at=int(file.created),
            expires_at=int(file.expires),
            filename=file.name,
            purpose=file.purpose,
        )


class FileObjectList(BaseModel):
    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(BaseModel):
    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True
