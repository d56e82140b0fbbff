"""The differences between two plan files, value by value, as programs read them."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from rlgraph.errors import count_phrase
from rlgraph.ir.plan import HOST, Group, ModelHolding, Pool
from rlgraph.ir.text.program_text import program_text
from rlgraph.passes.compilation.plan_file import PlanFile
from rlgraph.runs.planfiles.format import format_ranges


@dataclass(frozen=True)
class Difference:
    """One value in which two plan files differ; None where a file does not have it."""

    section: str
    """`program`, `cluster`, `pools`, `work`, `groups`, `weights`, `blocks`, `holdings`, `assumptions`, `predicted`."""
    name: str
    before: Any
    after: Any


def differences(before: PlanFile, after: PlanFile) -> list[Difference]:
    """Return all differences between the two, except for their paths and the graphs."""
    old, new = _contents(before), _contents(after)
    return [
        Difference(section, name, old[section].get(name), new[section].get(name))
        for section in old
        for name in dict.fromkeys([*old[section], *new[section]])
        if old[section].get(name) != new[section].get(name)
    ]


def graph_difference(before: PlanFile, after: PlanFile) -> list[str]:
    """Return the lines of a unified diff of the two graphs; an empty list if they are equal."""
    old, new = (program_text(file.program).splitlines() for file in (before, after))
    return list(difflib.unified_diff(old, new, lineterm="", n=2))[2:]


def _contents(file: PlanFile) -> dict[str, dict[str, Any]]:
    """Return the content of a plan file, by section and name."""
    plan, groups = file.plan, {group.name: group for group in file.plan.groups}
    groups_with_devices = [group for group in plan.groups if group.name != HOST]
    return {
        "program": {"name": file.program.name, **{f"--set {name}": value for name, value in file.origin.set.items()}},
        "cluster": dict(_flat(file.sections.get("cluster", {}))),
        "pools": {pool.name: _pool(pool) for pool in plan.pools if pool.name != HOST or pool.cpus},
        "work": {f"{role.model}.{role.operation}": _group(groups[role.group]) for role in plan.roles},
        "groups": {
            group.name: f"{_group(group)} on {format_ranges(group.devices)}: {', '.join(group.models + group.code)}"
            for group in groups_with_devices
        },
        "weights": dict(plan.owners),
        "blocks": {
            table: count_phrase(rows, "row") + ", to who is free" * (table in plan.free) for table, rows in plan.blocks
        },
        "tails": {item.table: f"under {item.under:g}, on {item.on}" for item in plan.tails},
        "admits": {item.table: f"by {item.by} {item.name}".rstrip() for item in plan.admits},
        "fused": {", ".join(item.models): f"turned: {', '.join(item.turned) or 'none'}" for item in plan.fused},
        "holdings": {f"{item.model} in {item.group}": _holding(item) for item in plan.holdings},
        **{name: dict(_flat(file.sections.get(name, {}))) for name in ("assumptions", "predicted")},
    }


def _pool(pool: Pool) -> str:
    return count_phrase(pool.cpus, "cpu") if pool.cpus else f"{count_phrase(pool.devices, 'device')} from {pool.first}"


def _group(group: Group) -> str:
    """Return e.g. `play vllm tp2 dp4`."""
    split = [f"{name}{size}" for name, size in reversed(group.mesh.axes) if size > 1]
    return " ".join([group.pool, group.engine, *split])


def _holding(holding: ModelHolding) -> str:
    """Return the options of a holding: `recompute, micro_tokens 4096`."""
    options = [
        (option.name, getattr(holding, option.name))
        for option in fields(holding)
        if option.name not in ("model", "group")
    ]
    shown = [name if value is True else f"{name} {value}" for name, value in options if value]
    return ", ".join(shown) or "as the engine does"


def _flat(section: object, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value of a section, with its path."""
    if isinstance(section, (Mapping, list)) and section:
        inner = section.items() if isinstance(section, Mapping) else enumerate(section)
        for name, value in inner:
            yield from _flat(value, f"{path}.{name}" if path else str(name))
    else:
        yield path, section
