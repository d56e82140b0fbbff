"""What changed between two plans, as a person wants to hear it: what moved, how it is split, seconds, GiB, devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from typing import Any, Literal

from rlgraph.catalog.clusters.cluster import Cluster
from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.catalog.clusters.units import format_seconds
from rlgraph.errors import count_phrase
from rlgraph.ir.plan import HOST, Group, ModelHolding, Plan, Pool
from rlgraph.passes.compilation.plan_file import PlanFile
from rlgraph.passes.cost.lengths import parse_lengths
from rlgraph.runs.planfiles.format import format_ranges

Kind = Literal["+", "-", "~"]
GRAPH = "graph"
"""The beginning of the titles of sections about graphs."""
_LONG = 80
"""The most characters of two values that stand on one line."""


@dataclass(frozen=True)
class Change:
    """One thing that is new (`+`), gone (`-`) or changed (`~`)."""

    kind: Kind
    name: str
    details: tuple[str, ...] = ()
    """What changed of it; empty for what is new or gone."""
    moved: bool = False
    """Whether it is work that is on other devices."""
    is_split_otherwise: bool = False
    """Whether it is work whose model is split in another way."""


@dataclass(frozen=True)
class Section:
    """The changes of one subject."""

    title: str
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class _Side:
    """One of the two plans, with what its parts are looked up in."""

    plan: Plan
    sections: Mapping[str, Mapping[str, Any]]
    cluster: Cluster | None

    @classmethod
    def of(cls, file: PlanFile) -> _Side:
        text = file.plan.cluster
        return cls(file.plan, file.sections, read_cluster(text) if text else None)

    def pool(self, name: str) -> Pool:
        return next(pool for pool in self.plan.pools if pool.name == name)

    def devices(self, pool: Pool) -> str:
        """Return the devices of a pool by name: `8 a100-80gb, node 1`."""
        if pool.cpus:
            return count_phrase(pool.cpus, "cpu")
        if self.cluster is None:
            return count_phrase(pool.devices, "device")
        numbers = range(pool.first, pool.first + pool.devices)
        parts = []
        for group, inside in groupby(numbers, self.cluster.node_group_number):
            members = list(inside)
            parts.append(f"{len(members)} {self.cluster.islands[group].device.name}, {self._nodes(members)}")
        return " and ".join(parts)

    def _nodes(self, numbers: Sequence[int]) -> str:
        """Return the nodes of devices that follow each other, and which of a node's devices where that is not all."""
        assert self.cluster is not None
        nodes = list(dict.fromkeys(map(self.cluster.node_of_device, numbers)))
        per_node = self.cluster.node_group_of_node(nodes[0]).per_node
        named = f"node {nodes[0]}" if len(nodes) == 1 else f"nodes {format_ranges(nodes)}"
        if len(numbers) == len(nodes) * per_node or len(nodes) > 1:
            return named
        before = [number for number in range(numbers[0]) if self.cluster.node_of_device(number) == nodes[0]]
        return f"{named}, devices {format_ranges(range(len(before), len(before) + len(numbers)))}"


def plan_changes(before: PlanFile, after: PlanFile) -> list[Section]:
    """Return what changed between two plans and what is predicted of them, by subject; subjects without a change are
    left out."""
    old, new = _Side.of(before), _Side.of(after)
    sections = {
        "program": _named(_program(before), _program(after)),
        "cluster": _named(_cluster(old), _cluster(new)),
        "step": list(_step(old.sections.get("predicted", {}), new.sections.get("predicted", {}))),
        "pools": _named(_pools(old), _pools(new)),
        "work": list(_work(old, new)),
        "streams": _named(_streams(old.plan), _streams(new.plan)),
        "shared pipelines": _named(_fused(old.plan), _fused(new.plan)),
        "memory": list(_memory(old, new)),
        "assumptions": _named(_assumptions(old), _assumptions(new)),
    }
    return [Section(title, tuple(changes)) for title, changes in sections.items() if changes]


def summary(sections: Sequence[Section], before: PlanFile, after: PlanFile) -> str:
    """Return the first line: `2 moved, 1 split changed, 0.84x as fast`."""
    work = [change for section in sections if section.title == "work" for change in section.changes]
    moved, split = sum(change.moved for change in work), sum(change.is_split_otherwise for change in work)
    kinds = {kind: sum(change.kind == kind for change in work) for kind in "+-~"}
    other = kinds["~"] - sum(change.moved or change.is_split_otherwise for change in work)
    parts = [f"{moved} moved"] * bool(moved)
    parts += [f"{count_phrase(split, 'split')} changed"] * bool(split)
    parts += [f"{other} held otherwise"] * bool(other)
    parts += [f"{kinds['+']} new"] * bool(kinds["+"]) + [f"{kinds['-']} gone"] * bool(kinds["-"])
    speed = _speed(before.sections.get("predicted", {}), after.sections.get("predicted", {}))
    in_graph = sum(len(section.changes) for section in sections if section.title.startswith(GRAPH))
    parts = parts or ["all work as before"]
    parts += [f"{count_phrase(in_graph, 'change')} in the graph"] * bool(in_graph) + [speed] * bool(speed)
    return ", ".join(parts)


def _speed(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return how fast the second plan is, by the first: `0.84x as fast`."""
    seconds = old.get("seconds"), new.get("seconds")
    if not seconds[0] or not seconds[1]:
        return ""
    ratio = seconds[0] / seconds[1]
    whose = _clock(old), _clock(new)
    by = "" if whose[0] == whose[1] else f" ({whose[0]} against {whose[1]})"
    return f"{ratio:.2f}x as fast{by}" if f"{ratio:.2f}" != "1.00" else f"as fast{by}"


# What is on both sides


def _named(old: Mapping[str, str], new: Mapping[str, str]) -> list[Change]:
    """Return the changes of things that a text says all about."""
    changes = []
    for name in dict.fromkeys([*old, *new]):
        if name not in new:
            changes.append(Change("-", name))
        elif name not in old:
            changes.append(Change("+", name))
        elif old[name] != new[name]:
            changes.append(Change("~", name, before_and_after(old[name], new[name])))
    return changes


def arrow(old: str, new: str) -> str:
    """Return `old -> new`."""
    return f"{old} -> {new}"


def before_and_after(old: str, new: str, word: str = "") -> tuple[str, ...]:
    """Return `word old -> new`; two lines where that is long. An empty text is a value that is not there."""
    if not old or not new:
        return (f"{word or old or new} is {'new' if new else 'gone'}",)
    before = f"{word} {old}".lstrip()
    return (arrow(before, new),) if len(before) + len(new) <= _LONG else (before, f"-> {new}")


def _program(file: PlanFile) -> dict[str, str]:
    return {"name": file.program.name, **{f"--set {name}": value for name, value in file.origin.set.items()}}


def _cluster(side: _Side) -> dict[str, str]:
    return {"cluster": side.plan.cluster} if side.plan.cluster else {}


def _pools(side: _Side) -> dict[str, str]:
    return {pool.name: side.devices(pool) for pool in side.plan.pools if pool.name != HOST or pool.cpus}


def _streams(plan: Plan) -> dict[str, str]:
    texts: dict[str, list[str]] = {}
    for table, rows in plan.blocks:
        texts.setdefault(table, []).append(
            f"blocks of {count_phrase(rows, 'row')}" + ", to who is free" * (table in plan.free)
        )
    for tail in plan.tails:
        texts.setdefault(tail.table, []).append(f"a tail under {tail.under:g} on {count_phrase(tail.on, 'replica')}")
    for admitted in plan.admits:
        texts.setdefault(admitted.table, []).append(f"the longest first, by {admitted.by} {admitted.name}".rstrip())
    return {table: "; ".join(parts) for table, parts in texts.items()}


def _fused(plan: Plan) -> dict[str, str]:
    return {
        " and ".join(item.models): f"stages of {', '.join(item.turned) or 'none'} in reverse order"
        for item in plan.fused
    }


_SAID = {"prompt_tokens": "prompt tokens", "response_tokens": "response tokens", "kept": "share of rows kept"}


def _assumptions(side: _Side) -> dict[str, str]:
    return {
        _SAID.get(name, name.replace("_", " ")): _assumed(value)
        for name, value in side.sections.get("assumptions", {}).items()
        if value is not None
    }


def _assumed(value: object) -> str:
    """Return a value as text; lengths that are given one by one by their mean and their longest."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    if not text.startswith("["):
        return text
    lengths = parse_lengths(text, files=False)
    return f"mean {lengths.mean:,.0f}, longest {lengths.longest:,.0f}"


# Work


def _work(old: _Side, new: _Side) -> Iterator[Change]:
    """Yield the changes of work. Work of one model that changed alike is named together."""
    groups = [_groups_of_work(side.plan) for side in (old, new)]
    changes: dict[tuple[str, Change], list[str]] = {}
    for work in dict.fromkeys([*groups[0], *groups[1]]):
        model, operation = work
        change = _work_change(model, *((side, group.get(work)) for side, group in zip((old, new), groups, strict=True)))
        if change is not None:
            changes.setdefault((model, change), []).append(operation)
    for (model, change), operations in changes.items():
        name = f"{model}.{', '.join(operations)}" if operations[0] else model
        yield Change(change.kind, name, change.details, change.moved, change.is_split_otherwise)


def _groups_of_work(plan: Plan) -> dict[tuple[str, str], Group]:
    """Return the group that does each piece of work, by model and operation; of the user's code by its name alone."""
    named = {group.name: group for group in plan.groups}
    code = {(name, ""): group for group in plan.groups for name in group.code}
    return {(role.model, role.operation): named[role.group] for role in plan.roles} | code


def _work_change(model: str, before: tuple[_Side, Group | None], after: tuple[_Side, Group | None]) -> Change | None:
    (old, was), (new, now) = before, after
    if was is None or now is None:
        return Change("-" if now is None else "+", "")
    pools = old.pool(was.pool), new.pool(now.pool)
    moved = _is_elsewhere((old, pools[0]), (new, pools[1]))
    details = [f"moved from {_place(old, pools[0])} to {_place(new, pools[1])}"] * moved
    if was.engine != now.engine:
        details.append(f"engine {arrow(was.engine, now.engine)}")
    split = was.mesh != now.mesh
    if split:
        details.append(f"split {arrow(_split(was), _split(now))}")
    elif was.devices != now.devices and pools[0].devices == pools[1].devices:
        details.append("its ranks are on the devices in another order")
    held = _holding(old.plan.holding(model, was.name)), _holding(new.plan.holding(model, now.name))
    details += [change for name in dict.fromkeys([*held[0], *held[1]]) if (change := _held(name, *held))]
    return Change("~", "", tuple(details), moved, split) if details else None


def _is_elsewhere(before: tuple[_Side, Pool], after: tuple[_Side, Pool]) -> bool:
    """Return whether the work of two pools is on other devices; a pool that is larger or smaller than it was is still
    the pool, and one that has another name and the same devices, too."""
    (old, was), (new, now) = before, after
    if was.name == now.name:
        return False
    if old.cluster is None or new.cluster is None:
        return True
    return (was.first, was.devices, was.cpus) != (now.first, now.devices, now.cpus)


def _place(side: _Side, pool: Pool) -> str:
    return f"`{pool.name}` ({side.devices(pool)})"


def _split(group: Group) -> str:
    """Return e.g. `tp2 dp4`."""
    return " ".join(f"{name}{size}" for name, size in reversed(group.mesh.axes) if size > 1) or "not split"


_WORDS: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "micro_tokens": ("micro-batches", lambda tokens: f"{tokens:,} tokens"),
    "kv_bytes": ("KV cache", lambda count: format_gib(count)),
    "share": ("share of a device", lambda share: f"{share:.0%}"),
    "max_len": ("longest row", lambda tokens: f"{tokens:,} tokens"),
    "offload": ("off-loaded", str),
    "recompute": ("activations recomputed", str),
}
"""How the options of a holding are called, and how their values are shown."""


def _holding(holding: ModelHolding) -> dict[str, Any]:
    """Return the options that differ from the engine's defaults."""
    names = [option.name for option in fields(holding) if option.name not in ("model", "group")]
    return {name: value for name in names if (value := getattr(holding, name))}


def _held(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return how an option changed, empty if it did not."""
    was, now = old.get(name), new.get(name)
    word, shown = _WORDS.get(name, (name.replace("_", " "), str))
    if was == now:
        return ""
    if isinstance(was or now, bool):
        return word if now else f"not {word} any more"
    return f"{word} {arrow(*('as the engine chooses' if value is None else shown(value) for value in (was, now)))}"


# What is predicted


def _clock(predicted: Mapping[str, Any]) -> str:
    """Return who computed the seconds of a step: the simulator where work overlaps, and else the search."""
    overlaps = not {"in_turn_seconds", "steady_seconds"}.isdisjoint(predicted)
    return "the simulator" if overlaps else "the search"


_SEARCHED = {
    "in_turn_seconds": "one work after the other, by the search",
    "steady_seconds": "in a steady state, by the search",
}


def _step(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    """Yield what changed of a step. The search's bound is one on its own seconds: where a step is the simulator's, the
    two are told apart, because work that overlaps may end before it."""
    if "seconds" in old and "seconds" in new and old["seconds"] != new["seconds"]:
        yield Change("~", "a step", (_seconds_change(old["seconds"], new["seconds"], _clock(old), _clock(new)),))
    for name, word in _SEARCHED.items():
        if name in old and name in new and old[name] != new[name]:
            yield Change("~", word, (_seconds_change(old[name], new[name]),))
    bounds = [side["bound_seconds"] for side in (old, new) if "bound_seconds" in side]
    if len(set(bounds)) == 2:
        simulated = "the simulator" in (_clock(old), _clock(new))
        word = "no plan is faster than" + ", one work after the other, by the search" * simulated
        yield Change("~", word, (_seconds_change(*bounds),))
    rates = [p["tokens"] / p["seconds"] if p.get("tokens") and p.get("seconds") else 0.0 for p in (old, new)]
    if all(rates) and rates[0] != rates[1]:
        shown = arrow(*(f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}" for rate in rates))
        yield Change("~", "tokens/s", (f"{shown}{change_percent(*rates)}",))


def _seconds_change(old: float, new: float, by: str = "", now_by: str = "") -> str:
    if by == now_by:
        whose = f" by {by}" if by else ""
        return f"{arrow(format_seconds(old), format_seconds(new))}{change_percent(old, new)}{whose}"
    return arrow(f"{format_seconds(old)} by {by}", f"{format_seconds(new)} by {now_by}") + change_percent(old, new)


def _memory(old: _Side, new: _Side) -> Iterator[Change]:
    """Yield what changed of the devices' fullest moment, of pools that both have."""
    peaks = [side.sections.get("predicted", {}).get("memory", {}) for side in (old, new)]
    for pool in peaks[0]:
        was, now = peaks[0][pool], peaks[1].get(pool)
        if now is None or _peak(was) == _peak(now):
            continue
        sizes = arrow(format_gib(was["bytes"]), format_gib(now["bytes"]))
        capacities = " -> ".join(dict.fromkeys(format_gib(side["capacity"]) for side in (was, now)))
        details = [f"{sizes}{change_percent(was['bytes'], now['bytes'])} of {capacities}"]
        if was["moment"] != now["moment"]:
            details.append(f"fullest during {arrow(was['moment'], now['moment'])}")
        hosts = was.get("host", 0), now.get("host", 0)
        if hosts[0] != hosts[1]:
            details.append(f"in the host's memory for each device {arrow(*map(format_gib, hosts))}")
        yield Change("~", pool, tuple(details))


def _peak(peak: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(peak.get(name) for name in ("bytes", "capacity", "moment", "host"))


def format_gib(count: float) -> str:
    """Return bytes in GiB, or in MiB where they are few."""
    if not count:
        return "0 GiB"
    return f"{count / 2**30:.3g} GiB" if count >= 2**29 else f"{count / 2**20:.3g} MiB"


def change_percent(old: float, new: float) -> str:
    """Return by how much a number changed: ` (+2.4%)`."""
    return f" ({(new - old) / abs(old):+.1%})" if old else ""
