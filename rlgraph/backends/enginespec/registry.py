"""Finds the engines there are: ours, in the folders of `rlgraph/backends/engines`, and those that other packages
bring."""

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
"""The entry point group under which other packages bring engines."""

_OURS = "rlgraph.backends.engines"

_FOLDER = Path(__file__).parent.parent / "engines"


@dataclass(frozen=True, slots=True)
class BrokenEngine:
    """An engine of another package that cannot be used."""

    name: str
    package: str
    reason: str

    def __str__(self) -> str:
        return f"the engine `{self.name}` of the package `{self.package}` cannot be used: {self.reason}"


def engines_by_name() -> Mapping[str, EngineSpec]:
    """Return all engines by name, the embedded one first."""
    return _discovered()[0]


def broken_engines() -> tuple[BrokenEngine, ...]:
    """Return the engines that other packages promise and that cannot be used."""
    return _discovered()[1]


def option_values(option: str) -> tuple[str, ...]:
    """Return every value that any engine knows for an option of `place` in which each says what it does: `attention`,
    `adapters`, `gather`, `optimizer`."""
    return tuple(dict.fromkeys(way for spec in engines_by_name().values() for way in getattr(spec, option)))


def engine(name: str) -> EngineSpec:
    """Return the spec of an engine by its name."""
    return engines_by_name()[name]


def embedded_engine() -> EngineSpec:
    """Return the engine of the user's own process."""
    return next(spec for spec in engines_by_name().values() if spec.embedded)


def engines_by_preference(operation: str) -> list[EngineSpec]:
    """Return the engines that are taken for an operation where none is named, the best first."""
    able = [spec for spec in engines_by_name().values() if spec.preference and operation in spec.operations]
    return sorted(able, key=lambda spec: -spec.preference)


def splitting_axes() -> tuple[str, ...]:
    """Return the mesh axes along which any of the engines can spread a model, inner ones first."""
    return tuple(axis.name for axis in AXES if any(axis.name in spec.axes for spec in engines_by_name().values()))


def installed_engines() -> frozenset[str]:
    """Return the engines whose packages are installed; nothing of them is loaded."""
    return frozenset(name for name, spec in engines_by_name().items() if all(map(_is_installed, spec.requires)))


def rank_opener(spec: EngineSpec) -> Any:
    """Return the function that opens a rank's part of a model; this loads the engine."""
    module, _, name = spec.opens.partition(":")
    return getattr(import_module(module), name)


@cache
def _discovered() -> tuple[Mapping[str, EngineSpec], tuple[BrokenEngine, ...]]:
    # Imported here: checking a program without a schedule asks for no engine.
    from importlib.metadata import entry_points

    names = sorted(path.parent.name for path in _FOLDER.glob("*/spec.py"))
    specs: dict[str, EngineSpec] = {name: import_module(f"{_OURS}.{name}.spec").SPEC for name in names}
    ours, rejected = set(specs), []
    for entry in sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
        spec = _loaded(entry)
        if isinstance(spec, BrokenEngine):
            rejected.append(spec)
        elif entry.name in specs:
            owner = "one of ours" if entry.name in ours else "another package's"
            rejected.append(BrokenEngine(entry.name, _package(entry), f"{owner} has the same name"))
        else:
            specs[entry.name] = spec
    order = sorted(specs.values(), key=lambda spec: (not spec.embedded, spec.name))
    return MappingProxyType({spec.name: spec for spec in order}), tuple(rejected)


def _loaded(entry: EntryPoint) -> EngineSpec | BrokenEngine:
    # Whatever another package's module raises while it is imported, the other engines stay usable.
    try:
        loaded = entry.load()
    except Exception as error:
        return BrokenEngine(entry.name, _package(entry), f"{entry.value} raises {type(error).__name__}: {error}")
    if not isinstance(loaded, EngineSpec):
        return BrokenEngine(entry.name, _package(entry), f"{entry.value} is no EngineSpec")
    if loaded.name != entry.name:
        return BrokenEngine(entry.name, _package(entry), f"{entry.value} calls itself `{loaded.name}`")
    if loaded.embedded:
        return BrokenEngine(entry.name, _package(entry), "there is an embedded engine already")
    return loaded


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else entry.module


def _is_installed(module: str) -> bool:
    try:
        return module in sys.modules or find_spec(module) is not None
    except ModuleNotFoundError:
        return False
