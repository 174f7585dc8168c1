"""What can go wrong below the service.

RouterError
├── ProfileError            a profile is unknown, malformed or contradicts itself
├── ModelError              a model directory is missing, incomplete or cannot be made
├── PreflightError          this machine cannot run what was asked for
├── EngineStartError        an engine process did not become ready
├── RegistryError           a replica, a source of replicas or a rollout is not what it has to be
│   ├── RegistryConflictError   it does not go with what there is already
│   ├── UnknownReplicaError     no replica has that name
│   └── RegistryStoreError      the shared registry cannot be read or written now
├── NoReplicaError          no replica can take a request now; `retry_after_s` says when to try again
├── QueueFullError          too much waits already; `retry_after_s` says when to try again
├── DeadlineError           the request's deadline passed before a replica had room for it
├── KvEventError            what came where KV events should is none
└── EngineError             a replica answered, but not with tokens
    ├── EngineRefusedError  the request is at fault (the engine's 4xx): never retried
    ├── EngineUnavailableError  could not be reached, is loading, or answered 5xx
    │   └── EngineBusyError         is full: another replica, or a moment later, will do
    └── EngineBrokeError    the stream ended before the generation did
        └── EngineStoppedError  the engine gave the generation up, or went silent; it may well live
"""

from __future__ import annotations


class RouterError(Exception):
    """Base of everything the router raises; `str(error)` is one line that says what to do."""


class ProfileError(RouterError):
    """A profile is unknown, malformed or contradicts itself."""


class ModelError(RouterError):
    """A model directory is missing, incomplete or cannot be made."""


class PreflightError(RouterError):
    """This machine cannot run what was asked for."""


class EngineStartError(RouterError):
    """An engine process did not become ready. `log_lines` is what it last said."""

    def __init__(self, message: str, log_lines: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.log_lines = log_lines


class RegistryError(RouterError):
    """A replica, a source of replicas or a rollout is not what it has to be."""


class RegistryConflictError(RegistryError):
    """It does not go with what there is already."""


class UnknownReplicaError(RegistryError):
    """No replica has that name."""


class RegistryStoreError(RegistryError):
    """The registry that fronts share cannot be read or written now."""


class NoReplicaError(RouterError):
    """No replica can take a request now."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class QueueFullError(RouterError):
    """Too much waits already, or what waited had to make way."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeadlineError(RouterError):
    """The request's deadline passed before a replica had room for it."""


class KvEventError(RouterError):
    """What came where an engine's KV events should is none."""


class EngineError(RouterError):
    """A replica answered, but not with tokens."""


class EngineRefusedError(EngineError):
    """The engine found the request at fault; repeating it elsewhere would not help."""


class EngineUnavailableError(EngineError):
    """The engine could not be reached, is still loading, or answered 5xx."""


class EngineBusyError(EngineUnavailableError):
    """The engine has more to do than it takes on (429, 503); it lives."""


class EngineBrokeError(EngineError):
    """The engine's stream ended before its generation did."""


class EngineStoppedError(EngineBrokeError):
    """The engine gave the generation up, or went silent in the middle of it; its server answers."""
