"""Modules that have moved, under the names by which engines of other packages import them: for one release."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from types import ModuleType
from typing import Any

MOVED = {
    "rlgraph.engines": "rlgraph.backends.engines",
    "rlgraph.engines.base": "rlgraph.backends.engines.base",
    "rlgraph.engines.blocks": "rlgraph.backends.engines.blocks",
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
"""Old names, and the new ones: those that the example of an engine imports, and the packages that they were in."""


class _Moved(ModuleType):
    """What stands for a module under its old name, and loads it when something of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            # Python and libraries ask every module for these.
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        new = MOVED[self.__name__]
        found = getattr(import_module(new), name)
        warnings.warn(f"`{self.__name__}` is `{new}` now", DeprecationWarning, stacklevel=2)
        return found


def answer_to_old_names() -> None:
    """Has `import rlgraph.engines.base` find the module at its new place, with a warning. Loads none of them."""
    for old in MOVED:
        package, _, name = old.rpartition(".")
        sys.modules[old] = module = _Moved(old)
        setattr(sys.modules[package], name, module)
