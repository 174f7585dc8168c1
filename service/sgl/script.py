"""Describes and runs functions under `@sgl.function`. Run by the interpreter that has SGLang; imports nothing of ours.

One JSON object comes on stdin, and one goes to what was stdout: `result`, or `error`. What programs print goes to
stderr. A run ends when stdin does: whoever wanted its result is gone then.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import random
import sys
import threading
import time
import typing
from hashlib import blake2b
from pathlib import Path
from typing import Any

_KINDS = {kind: kind.__name__ for kind in (str, int, float, bool, list, dict)}
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 20.0
_BUSY = (429, 502, 503)


class UnusableError(Exception):
    """What is asked for cannot be run; the text says why."""


def describe(directory: str | None, paths: list[str], **_: Any) -> list[dict[str, Any]]:
    """Of each `module:function`: name, description, version and parameters."""
    return [_described(path, _found(path, directory)) for path in paths]


def _found(path: str, directory: str | None) -> Any:
    module_name, _, name = path.partition(":")
    if directory is not None and directory not in sys.path:
        sys.path.append(directory)
    function = getattr(importlib.import_module(module_name), name, None)
    if not isinstance(function, importlib.import_module("sglang.lang.ir").SglFunction):
        raise UnusableError(f"{path} is no function under @sgl.function")
    return function


def _described(path: str, function: Any) -> dict[str, Any]:
    signature = inspect.signature(function.func)
    taken = [one for one in list(signature.parameters.values())[1:] if one.name not in function.bind_arguments]
    reserved = inspect.signature(function.run).parameters.keys()
    for parameter in taken:
        if parameter.kind is not parameter.POSITIONAL_OR_KEYWORD or parameter.name in reserved:
            raise UnusableError(f"{path}: parameter {parameter} cannot be given by name to an SGLang function")
    hints = typing.get_type_hints(function.func)
    source = inspect.getsourcefile(function.func)
    return {
        "path": path,
        "name": function.func.__name__,
        "description": (inspect.getdoc(function.func) or "").partition("\n")[0].strip(),
        "version": blake2b(Path(source).read_bytes() if source else b"", digest_size=8).hexdigest(),
        "parameters": [_parameter(one, hints.get(one.name)) for one in taken],
    }


def _parameter(parameter: inspect.Parameter, hint: Any) -> dict[str, Any]:
    kind, items = typing.get_origin(hint) or hint, typing.get_args(hint)
    described = {"name": parameter.name, "type": _KINDS.get(kind)}
    if kind is list and items and items[0] in _KINDS:
        described["items"] = _KINDS[items[0]]
    if parameter.default is not parameter.empty:
        described["default"] = parameter.default
    return described


def run(
    directory: str | None,
    path: str,
    arguments: dict[str, Any],
    front: str,
    headers: dict[str, str],
    retry_s: float,
    **_: Any,
) -> dict[str, Any]:
    """Text, variables and value of one run, and what it took."""
    function = _found(path, directory)
    runtime = importlib.import_module("sglang.lang.backend.runtime_endpoint")
    usage = Usage(headers, retry_s)
    vars(runtime)["http_request"] = usage.request
    backend = runtime.RuntimeEndpoint(front)
    importlib.import_module("sglang").set_default_backend(backend)
    state = function.run(**arguments, backend=backend)
    if (error := state.error()) is not None:
        raise error
    variables = {
        name: value
        for name, value in state.stream_executor.variables.items()
        if name not in arguments and _is_json(value)
    }
    value = getattr(state, "ret_value", None)
    output = {"text": state.text(), "variables": variables, "value": value if _is_json(value) else None}
    return {"output": output, "usage": usage.counts}


class Usage:
    """The frontend's HTTP, which counts what answers took and asks again while a front is full or away."""

    def __init__(self, headers: dict[str, str], retry_s: float) -> None:
        self.counts = dict.fromkeys(("prompt_tokens", "cached_tokens", "completion_tokens"), 0)
        self._headers = headers
        self._retry_s = retry_s
        self._lock = threading.Lock()

    def request(
        self,
        url: str,
        json: Any = None,
        stream: bool = False,
        api_key: str | None = None,
        verify: Any = None,
        method: str | None = None,
    ) -> Any:
        """In the place, and with the arguments, of `sglang.utils.http_request`."""
        asked = {"method": method or ("GET" if json is None else "POST"), "url": url, "json": json, "stream": stream}
        response = self._patiently({**asked, "headers": self._headers})
        if response.status_code == 200 and not stream and url.endswith("/generate"):
            told = response.json()
            for answer in told if isinstance(told, list) else [told]:
                self._count(answer["meta_info"])
        return response

    def _patiently(self, asked: dict[str, Any]) -> Any:
        requests: Any = importlib.import_module("requests")
        pause, until = _FIRST_PAUSE_S, time.monotonic() + self._retry_s
        while True:
            try:
                response = requests.request(**asked)
                if response.status_code not in _BUSY or time.monotonic() + pause > until:
                    return response
            except requests.ConnectionError:
                if time.monotonic() + pause > until:
                    raise
            time.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _count(self, meta: dict[str, Any]) -> None:
        with self._lock:
            for name in self.counts:
                self.counts[name] += meta.get(name) or 0


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _end_with_stdin() -> None:
    sys.stdin.read()
    os._exit(1)


def main() -> None:
    asked = json.loads(sys.stdin.readline())
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        if asked["do"] == "describe":
            result: Any = describe(**asked)
        else:
            threading.Thread(target=_end_with_stdin, daemon=True).start()
            result = run(**asked)
        text = json.dumps({"result": result})
    except BaseException as error:  # noqa: BLE001 - whatever a program raises, an exit among it
        said = str(error) if isinstance(error, UnusableError) else f"{type(error).__name__}: {error}"
        text = json.dumps({"error": said})
    answer.write(text)
    answer.flush()
    os._exit(0)  # a program that failed leaves threads that wait for it


if __name__ == "__main__":
    main()
