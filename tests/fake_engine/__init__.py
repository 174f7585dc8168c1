"""A fake SGLang engine that is true to the wire, for faults, scale and speed. `tests/real` pins it to the real one."""

from tests.fake_engine.faults import Faults
from tests.fake_engine.options import EngineVersion, FakeEngineOptions
from tests.fake_engine.running import FakeEngine, running_fake_engine
from tests.fake_engine.state import EngineState, Finished

__all__ = [
    "EngineState",
    "EngineVersion",
    "FakeEngine",
    "FakeEngineOptions",
    "Faults",
    "Finished",
    "running_fake_engine",
]
