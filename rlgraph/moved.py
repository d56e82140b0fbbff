"""Aliases of modules that have moved, for engines of other packages that import the old names; kept for one release."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from types import ModuleType
from typing import Any

MOVED = {
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
"""Old names and new ones of the modules that the example engine imports, and of the packages that they were in."""


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


def register_old_names() -> None:
    """Make imports such as `rlgraph.engines.base` find the module at its new place, with a warning. No module is
    loaded."""
    for old in MOVED:
        package, _, name = old.rpartition(".")
        sys.modules[old] = module = _Moved(old)
        setattr(sys.modules[package], name, module)
