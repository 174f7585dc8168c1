"""Imports point down: service -> programs -> router. `configs/` is data, and nothing that ships imports the tests."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAY_IMPORT = {
    "service": {"service", "programs", "router"},
    "programs": {"programs", "router"},
    "router": {"router"},
}
OURS = {*MAY_IMPORT, "tests", "scripts", "configs"}


def imported_by(source: str, package: str) -> set[str]:
    """The top-level names a module imports, also by `importlib.import_module` and `__import__` with a literal."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import():
                names |= {alias.name for alias in node.names}
            case ast.ImportFrom(level=0, module=str(module)):
                names.add(module)
            case ast.ImportFrom():
                names.add(package)
            case ast.Call(
                func=ast.Name(id="__import__" | "import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(module)), *_],
            ):
                names.add(module)
    return {name.partition(".")[0] for name in names}


def violations(source: str, package: str) -> set[str]:
    return (imported_by(source, package) & OURS) - MAY_IMPORT[package]


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_point_down(package: str) -> None:
    modules = sorted((ROOT / package).rglob("*.py"))
    assert len(modules) > 1, f"{package} holds nothing but its __init__: the check would prove nothing"
    found = {str(path.relative_to(ROOT)): violations(path.read_text(), package) for path in modules}
    assert {path: names for path, names in found.items() if names} == {}


def test_every_package_is_checked() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages - {"tests", "scripts"} == set(MAY_IMPORT)


@pytest.mark.parametrize(
    ("package", "source", "expected"),
    [
        ("router", "import programs.session", {"programs"}),
        ("router", "from service import app", {"service"}),
        ("programs", "def late():\n    from service.app import create_app", {"service"}),
        ("programs", "import importlib\nimportlib.import_module('service.app')", {"service"}),
        ("service", "from tests.fake_engine import FakeEngine", {"tests"}),
        ("service", "import programs, router.engine, servicepack", set()),
        ("router", "from . import replica\nimport programsmith", set()),
    ],
)
def test_the_check_sees_what_points_up(package: str, source: str, expected: set[str]) -> None:
    assert violations(source, package) == expected


def test_configs_hold_no_code() -> None:
    files = [path for path in (ROOT / "configs").rglob("*") if path.is_file()]
    assert [path for path in files if path.suffix == ".yaml"]
    assert [path for path in files if path.suffix in {".py", ".pyc", ".pyi", ".so"}] == []


def test_configs_are_found_through_the_package() -> None:
    assert (ROOT / "router" / "configs").resolve() == ROOT / "configs"
