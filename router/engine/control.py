"""What can be asked of a running server besides generating: to sleep and wake, to change its weights. SGLang's wire."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import aiohttp
import orjson

from router.errors import EngineRefusedError, EngineUnavailableError

_CONNECT_TIMEOUT_S = 5.0
_ASK_TIMEOUT_S = 10.0
_MOVE_TIMEOUT_S = 600.0
"""Moving weights takes as long as the disk or the bus does, and SGLang first lets end what runs."""


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    """The directory that a server's weights came from, and the name they were given (SGLang's own is `default`)."""

    model_path: str
    version: str


class EngineControl:
    """One server by URL. All raise EngineUnavailableError when it does not answer as SGLang does."""

    def __init__(self, name: str, url: str, session: aiohttp.ClientSession) -> None:
        self._name = name
        self._url = url.rstrip("/")
        self._session = session

    async def can_sleep(self) -> bool:
        """Whether it was started so that it can: any other server dies of being asked to."""
        info = await self._ask("/server_info")
        return bool(info.get("enable_memory_saver")) and bool(info.get("enable_weights_cpu_backup"))

    async def identity(self) -> str:
        """Another one after every start: SGLang draws a seed each time, and tells how long the start took."""
        info = await self._ask("/server_info")
        return f"{info.get('random_seed')} {info.get('startup_time')}"

    async def idle(self) -> bool:
        """Whether nothing runs or waits in it, whoever asked."""
        loads = (await self._ask("/v1/loads"))["loads"]
        return not any(one["num_running_reqs"] or one["num_waiting_reqs"] for one in loads)

    async def sleep(self) -> None:
        """Give its GPU memory back; what was cached is gone.

        SGLang dies when something runs in it then, and of whatever is generated before `wake`, its health probes
        included: see to it that it is `idle`, and that no one else uses it.
        """
        await self._move("/release_memory_occupation", {})

    async def wake(self) -> None:
        """Take the memory again. SGLang dies when it was not asleep."""
        await self._move("/resume_memory_occupation", {})

    async def weights(self) -> LoadedWeights:
        """What it serves now; its /server_info only knows what it was started with."""
        info = await self._ask("/model_info")
        return LoadedWeights(str(info["model_path"]), str(info["weight_version"]))

    async def model_info(self) -> dict[str, Any]:
        """What it says of its model, in its own words."""
        return await self._ask("/model_info")

    async def flush(self) -> bool:
        """Drop all that is cached, of all its ranks. False while something runs or waits in it: nothing is dropped."""
        status, _ = await self._request("POST", "/flush_cache", None, _ASK_TIMEOUT_S, reads=False)
        if status not in (200, 400):
            raise EngineUnavailableError(f"{self._name} answers /flush_cache with {status}")
        return status == 200

    async def swap_weights(self, model: Path, version: str) -> None:
        """Load the weights of `model`, a directory as the server sees it, in place of those it has.

        What runs ends first, with the old weights; what comes meanwhile waits for the new ones; nothing cached is
        left. Raises EngineRefusedError when it cannot be done and nothing changed. Weights of another shape kill the
        server: look at them before (`router.model.compatibility`).
        """
        answer = await self._move("/update_weights_from_disk", {"model_path": str(model), "weight_version": version})
        if not answer.get("success"):
            raise EngineRefusedError(f"{self._name} does not take the weights of {model}: {answer.get('message')}")

    async def _ask(self, path: str) -> dict[str, Any]:
        status, answer = await self._request("GET", path, None, _ASK_TIMEOUT_S)
        if status != 200 or not isinstance(answer, dict):
            raise EngineUnavailableError(f"{self._name} answers {path} with {status}")
        return answer

    async def _move(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        status, answer = await self._request("POST", path, body, _MOVE_TIMEOUT_S)
        told = cast("dict[str, Any]", answer if isinstance(answer, dict) else {})
        if status != 200 and "success" not in told:
            raise EngineUnavailableError(f"{self._name} answers {path} with {status}: {told.get('error', answer)}")
        return told

    async def _request(
        self, method: str, path: str, body: object, limit_s: float, *, reads: bool = True
    ) -> tuple[int, object]:
        timeout = aiohttp.ClientTimeout(total=limit_s, sock_connect=_CONNECT_TIMEOUT_S)
        try:
            async with self._session.request(method, self._url + path, json=body, timeout=timeout) as response:
                content = await response.read()
                return response.status, orjson.loads(content) if content and reads else None
        except (aiohttp.ClientError, TimeoutError, OSError, orjson.JSONDecodeError) as error:
            said = str(error) or type(error).__name__
            raise EngineUnavailableError(f"cannot reach {self._name} at {self._url}: {said}") from error
