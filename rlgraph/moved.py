"""Aliases of modules that have moved, for engines of other packages that import the old names; kept for one release."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED = {
    "rlgraph.backends.engines.blocks": "rlgraph.backends.engines.micro_batches",
    "rlgraph.backends.engines.stored": "rlgraph.backends.engines.tensor_files",
    "rlgraph.backends.engines.vocabulary": "rlgraph.backends.engines.logprobs",
    "rlgraph.backends.enginespec.legal": "rlgraph.backends.enginespec.layout_checks",
    "rlgraph.catalog.models.latent": "rlgraph.catalog.models.latent_attention",
    "rlgraph.engines": "rlgraph.backends.engines",
    "rlgraph.engines.base": "rlgraph.backends.engines.base",
    "rlgraph.engines.blocks": "rlgraph.backends.engines.micro_batches",
    "rlgraph.engines.optimizer": "rlgraph.backends.engines.optimizer",
    "rlgraph.engines.sampling": "rlgraph.backends.engines.sampling",
    "rlgraph.engines.sequences": "rlgraph.backends.engines.sequences",
    "rlgraph.engines.sources": "rlgraph.backends.engines.sources",
    "rlgraph.engines.weights": "rlgraph.backends.engines.weights",
    "rlgraph.enginespec": "rlgraph.backends.enginespec",
    "rlgraph.enginespec.spec": "rlgraph.backends.enginespec.spec",
    "rlgraph.models": "rlgraph.catalog.models",
    "rlgraph.models.shape": "rlgraph.catalog.models.shape",
}
"""Old names and new ones of modules that engines import: of those of the example engine, and of those beside them that
have another name now."""


class _Moved(ModuleType):
    """A placeholder for a module under its old name, which imports the module when an attribute is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            # Python and libraries ask every module for dunder names.
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        new = MOVED[self.__name__]
        value = getattr(import_module(new), name)
        warnings.warn(f"`{self.__name__}` is `{new}` now", DeprecationWarning, stacklevel=2)
        return value


class _Finder(MetaPathFinder, Loader):
    """Finds a placeholder where no module of an old name is found. The import itself puts it into its package."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return how to load a module that has moved; None for any other."""
        return ModuleSpec(fullname, self, is_package=True) if fullname in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the placeholder."""
        return _Moved(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module is loaded when an attribute is asked for."""


def register_old_names() -> None:
    """Make imports such as `rlgraph.engines.base` find the module at its new place, with a warning. No module is
    loaded."""
    sys.meta_path.append(_Finder())
