"""Everything here runs on real SGLang: engines are started once a session, all that will be needed at the same time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from router.engine.preflight import check_interpreter
from router.errors import EngineStartError, PreflightError
from router.model.fetch import default_model
from tests.real.engines import BackgroundEngine
from tests.real.models import build_qwen3_random

ROOT = Path(__file__).parents[2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.engine)


@pytest.fixture(scope="session")
def engine_python() -> Path:
    """The interpreter that has SGLang; without one, tests are skipped, but never in CI."""
    python = Path(os.environ.get("ANTIPHON_ENGINE_PYTHON") or ROOT / ".venv-engine" / "bin" / "python")
    try:
        check_interpreter(python)
    except PreflightError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))
    return python


@pytest.fixture(scope="session")
def models_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "antiphon" / "models"


@pytest.fixture(scope="session")
def smollm2_dir(models_cache: Path, engine_python: Path) -> Path:
    """The default model, downloaded and converted as a user's is."""
    fetching = default_model(models_cache, engine_python=engine_python, env=os.environ, on_progress=print)
    return asyncio.run(fetching).path


@pytest.fixture(scope="session")
def qwen3_random_dir(models_cache: Path) -> Path:
    """Random weights under Qwen3's real tokenizer and chat template."""
    return build_qwen3_random(models_cache)


@pytest.fixture(scope="session")
def engines(
    request: pytest.FixtureRequest, engine_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], BackgroundEngine]]:
    """The engine that serves under a name, ready. All that this session's tests need are started together."""
    logs = tmp_path_factory.mktemp("engines")
    needed = {name for item in request.session.items for name in getattr(item, "fixturenames", ())}
    models = {"smollm2": "smollm2_dir", "qwen3": "qwen3_random_dir"}
    running: dict[str, BackgroundEngine] = {}

    def ready(name: str) -> BackgroundEngine:
        try:
            running[name].wait_ready()
        except EngineStartError as error:
            pytest.fail("\n".join([str(error), *error.log_lines]))
        return running[name]

    try:
        for name, directory in models.items():
            if f"{name}_engine" in needed:
                model = request.getfixturevalue(directory)
                running[name] = BackgroundEngine.of(model, name, engine_python, logs / f"{name}.log")
        yield ready
    finally:
        for engine in running.values():
            engine.stop()


@pytest.fixture(scope="session")
def smollm2_engine(engines: Callable[[str], BackgroundEngine]) -> BackgroundEngine:
    """Serves the default model as `smollm2`: sense, at 10 to 20 tokens a second."""
    return engines("smollm2")


@pytest.fixture(scope="session")
def qwen3_engine(engines: Callable[[str], BackgroundEngine]) -> BackgroundEngine:
    """Serves the random model as `qwen3`: no sense, but four times the speed and every trap of its tokenizer."""
    return engines("qwen3")
