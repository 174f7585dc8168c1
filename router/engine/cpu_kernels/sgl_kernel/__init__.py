"""A stand-in for `sgl_kernel` on machines without a GPU.

SGLang's CPU path imports names from `sgl_kernel` whose registry wheel is a CUDA build and cannot load there. Every op
of that path has a PyTorch fallback, so it is enough that the imports succeed: what they bind raises when called. The
launcher puts this package on an engine's PYTHONPATH only when its device is the CPU and no CPU build of sgl_kernel
imports.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NoReturn

__version__ = "0.0.0"


class _Missing:
    """Any name of the package: attributes may be read (tables are built from them at import), calls raise."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> "_Missing":
        # Dunders are asked for by the import system and by introspection: they must look absent.
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(f"{self._name}.{name}")

    def __call__(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise NotImplementedError(
            f"{self._name} needs a real sgl_kernel build; this process runs with the CPU stand-in"
        )


class _Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers `import sgl_kernel.anything` with an equally empty module."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(f"{__name__}."):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__getattr__"] = _Missing(module.__name__).__getattr__


__getattr__ = _Missing(__name__).__getattr__
sys.meta_path.append(_Submodules())
