"""What `/openapi.json` says of bodies that routes read themselves."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """For a route's `openapi_extra`: its body is `model`, as JSON."""
    schema = model.model_json_schema()
    return _body("application/json", _inlined(schema, schema.get("$defs", {})))


def form_body(**fields: str) -> dict[str, Any]:
    """For a route's `openapi_extra`: its body is a form with `file` and these fields, each with its description."""
    properties = {name: {"type": "string", "description": text} for name, text in fields.items()}
    file = {"type": "string", "format": "binary"}
    schema = {"type": "object", "properties": {"file": file, **properties}, "required": ["file"]}
    return _body("multipart/form-data", schema)


def _body(media_type: str, schema: Any) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {media_type: {"schema": schema}}}}


def _inlined(node: Any, definitions: dict[str, Any]) -> Any:
    """Without references: they would point to the top of another document. No model of ours contains itself."""
    if isinstance(node, list):
        return [_inlined(one, definitions) for one in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inlined(definitions[node["$ref"].rpartition("/")[2]], definitions)
    return {name: _inlined(value, definitions) for name, value in node.items() if name != "$defs"}
