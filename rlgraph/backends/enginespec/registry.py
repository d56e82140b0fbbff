"""Which engines there are: ours, in the folders of `rlgraph/backends/engines`, and those that other packages bring."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rlgraph.backends.enginespec.spec import EngineSpec
from rlgraph.ir.mesh import AXES

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "rlgraph.engines"
"""Of the entry points of other packages."""

_OURS = "rlgraph.backends.engines"

_FOLDER = Path(__file__).parent.parent / "engines"


@dataclass(frozen=True, slots=True)
class Fault:
    """An engine of another package that cannot be used."""

    name: str
    package: str
    reason: str

    def __str__(self) -> str:
        return f"the engine `{self.name}` of the package `{self.package}` cannot be used: {self.reason}"


def engines() -> Mapping[str, EngineSpec]:
    """All of them by name, the embedded one first."""
    return _found()[0]


def faults() -> tuple[Fault, ...]:
    """Engines that packages promise, and that are not there."""
    return _found()[1]


def ways(option: str) -> tuple[str, ...]:
    """What any of them knows for an option of `place` in which each says what it does: `attention`, `adapters`,
    `gather`."""
    return tuple(dict.fromkeys(way for each in engines().values() for way in getattr(each, option)))


def engine(name: str) -> EngineSpec:
    return engines()[name]


def embedded() -> EngineSpec:
    """The engine of the user's own process."""
    return next(each for each in engines().values() if each.embedded)


def preferred(operation: str) -> list[EngineSpec]:
    """The engines that are taken for an operation where none is named, the best first."""
    able = [each for each in engines().values() if each.preference and operation in each.operations]
    return sorted(able, key=lambda each: -each.preference)


def axes() -> tuple[str, ...]:
    """The axes along which any of them can spread a model, inner ones first."""
    return tuple(axis.name for axis in AXES if any(axis.name in each.axes for each in engines().values()))


def installed() -> frozenset[str]:
    """The engines whose packages are there; nothing of them is loaded."""
    return frozenset(name for name, each in engines().items() if all(map(_is_there, each.requires)))


def opener(spec: EngineSpec) -> Any:
    """What opens a rank's part of a model: loads the engine."""
    module, _, name = spec.opens.partition(":")
    return getattr(import_module(module), name)


@cache
def _found() -> tuple[Mapping[str, EngineSpec], tuple[Fault, ...]]:
    # Loaded here: who checks a program without a schedule asks for no engine.
    from importlib.metadata import entry_points

    names = sorted(each.parent.name for each in _FOLDER.glob("*/spec.py"))
    found: dict[str, EngineSpec] = {name: import_module(f"{_OURS}.{name}.spec").SPEC for name in names}
    ours, wrong = set(found), []
    for entry in sorted(entry_points(group=GROUP), key=lambda each: (each.name, each.value)):
        spec = _loaded(entry)
        if isinstance(spec, Fault):
            wrong.append(spec)
        elif entry.name in found:
            other = "one of ours" if entry.name in ours else "another package's"
            wrong.append(Fault(entry.name, _package(entry), f"{other} has the same name"))
        else:
            found[entry.name] = spec
    order = sorted(found.values(), key=lambda each: (not each.embedded, each.name))
    return MappingProxyType({each.name: each for each in order}), tuple(wrong)


def _loaded(entry: EntryPoint) -> EngineSpec | Fault:
    # Whatever a stranger's module does while it is imported, the others stay usable.
    try:
        found = entry.load()
    except Exception as error:
        return Fault(entry.name, _package(entry), f"{entry.value} raises {type(error).__name__}: {error}")
    if not isinstance(found, EngineSpec):
        return Fault(entry.name, _package(entry), f"{entry.value} is no EngineSpec")
    if found.name != entry.name:
        return Fault(entry.name, _package(entry), f"{entry.value} calls itself `{found.name}`")
    if found.embedded:
        return Fault(entry.name, _package(entry), "there is an embedded engine already")
    return found


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else entry.module


def _is_there(module: str) -> bool:
    try:
        return module in sys.modules or find_spec(module) is not None
    except ModuleNotFoundError:
        return False
