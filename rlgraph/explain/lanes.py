"""The data of a plan's picture: pools as lanes, work where it runs, and what travels between groups.

The figures are those that `compile` prints and `--emit transfers` lists: they are taken from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from rlgraph.catalog.clusters.units import show, shown_seconds
from rlgraph.errors import counted
from rlgraph.explain.choice import headline
from rlgraph.explain.fused import show_fused
from rlgraph.explain.plan_times import seconds_of
from rlgraph.explain.tables import sized
from rlgraph.explain.transfers import Weights, sizes, weights
from rlgraph.ir.graph import Graph, Node, Phase
from rlgraph.ir.plan import HOST, Group, Pool
from rlgraph.ir.text.text import print_node
from rlgraph.ir.types import Handle
from rlgraph.ops import NODES
from rlgraph.passes.compilation.compilation import Compilation
from rlgraph.passes.compilation.target import assumed
from rlgraph.passes.cost.tasks import Task, main_step, tasks
from rlgraph.passes.resharding.describe import size
from rlgraph.passes.resharding.edges import Edge, Walked, walked
from rlgraph.viz import captions
from rlgraph.viz.boxes import BoxKind
from rlgraph.viz.lanes import Deployed, Lane, Lanes, Stage, Way, Work
from rlgraph.viz.scene import minor, role_of, rows_of

COLUMNS = 34
"""The most characters of a line on a box."""


def lanes(compiled: Compilation) -> Lanes:
    """Return the plan of a compiled program, be it chosen, given by a schedule or read from a file. Raise ProgramError
    if there is none."""
    return _Maker(compiled).lanes()


@dataclass
class _Drawn:
    """A phase's picture while it is being made."""

    phase: Phase
    works: list[Work] = field(default_factory=list)
    ways: list[Way] = field(default_factory=list)
    boxes: dict[int, str] = field(default_factory=dict)
    """The box's id for each work that has one."""
    who: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    """The model, operation and group of each box that works with a model."""


class _Maker:
    def __init__(self, compiled: Compilation) -> None:
        self.compiled, self.program, self.plan = compiled, compiled.program, compiled.plan
        self.models = {model.name: model for model in self.program.models}
        self.types = {name: kind for phase in self.program.phases for name, kind in phase.graph.values().items()}
        self.place = {pool.name: at for at, pool in enumerate(self.plan.pools)}
        self.lane_of = {group.name: self.place[group.pool] for group in self.plan.groups}
        told = compiled.told.get("predicted", {})
        self.predicted = told if {"seconds", "gap", "tokens"} <= told.keys() else {}
        self.count = 0
        self.busy: dict[tuple[str, str], float] = {}
        """The seconds of a step in which a group works with a model."""

    def lanes(self) -> Lanes:
        drawn = [self.phase(phase) for phase in self.program.phases]
        for each in weights(self.program, self.compiled.placed):
            self.weights(each, drawn)
        stages = [_stage(each) for each in drawn]
        pools = tuple(self.lane(pool) for pool in self.plan.pools)
        return Lanes(self.program.name, tuple(self.notes()), pools, tuple(stages))

    def id(self) -> str:
        self.count += 1
        return f"w{self.count}"

    def notes(self) -> Iterator[str]:
        used = sum(pool.devices for pool in self.plan.pools)
        if self.predicted:
            yield from headline(self.plan.cluster, used, self.predicted)
        else:
            yield counted(used, "device")
        yield from show_fused(self.plan, self.predicted)

    # Lanes

    def lane(self, pool: Pool) -> Lane:
        if pool.name == HOST:
            return Lane(HOST, "1 process")
        note = sized(pool)
        if self.plan.cluster and pool.devices:
            last = pool.first + pool.devices - 1
            note += f", {pool.first}" + (f"-{last}" if last > pool.first else "")
        groups = [group for group in self.plan.groups if group.pool == pool.name]
        held = tuple(self.deployed(model, group, pool) for group in groups for model in group.models)
        held += tuple(Deployed(name, (group.engine, "row by row")) for group in groups for name in group.code)
        full = self.predicted.get("memory", {}).get(pool.name)
        if not full:
            return Lane(pool.name, note, deployed=held)
        filled = f"at most {show(full['bytes'], 'bytes')} of {show(full['capacity'], 'bytes')}"
        during = f", during {full['moment']}" if full["moment"] else ""
        return Lane(pool.name, note, (filled + during,), full["bytes"] / full["capacity"], held)

    def deployed(self, model: str, group: Group, pool: Pool) -> Deployed:
        title = self.plan.part(model, group.name)
        how = [f"{group.engine}, {group.mesh}"]
        if group.mesh.size < pool.devices:
            how[0] += f" on {group.mesh.size} of {pool.devices}"
        holding = self.plan.holding(model, group.name)
        more = [f"micro-batches of {holding.micro_tokens} tokens"] if holding.micro_tokens else []
        more += [f"attention by {holding.attention}"] if holding.attention else []
        more += [f"adapters {holding.adapters}"] if holding.adapters else []
        more += [f"gathered by {holding.gather}"] if holding.gather else []
        more += ["recomputed"] * holding.recompute + ["off-loaded"] * holding.offload
        how += [", ".join(more)] if more else []
        seconds = self.busy.get((model, group.name))
        told = "" if seconds is None else shown_seconds(seconds)
        return Deployed(title, tuple(how), told, role_of(self.models[model]))

    # Work

    def phase(self, phase: Phase) -> _Drawn:
        found = walked(phase, self.plan)
        drawn = _Drawn(phase)
        small = {name for graph in _graphs(phase.graph) for name in minor(graph)}
        elsewhere = {name for group in self.compiled.plan.groups for name in group.code}
        step = tasks(self.program, phase, assumed(self.compiled), elsewhere)
        # The cost model has a task for each work but those that take no time.
        number_of = {at: n for n, at in enumerate(a for a, (w, _) in enumerate(found.works) if not NODES[w.op].free)}
        seconds = self.seconds(step) if phase is main_step(self.program) else {}
        made = {value.name: at for at, (node, _) in enumerate(found.works) for value in node.outputs}
        for at, (node, group) in enumerate(found.works):
            reports = node.op == "report"
            if node.name in small or (NODES[node.op].free and not reports):
                continue
            task = step[number_of[at]] if at in number_of else None
            took = seconds.get(number_of[at]) if at in number_of else None
            work = self.work(node, group, task, took)
            drawn.works.append(work)
            drawn.boxes[at] = work.id
            if task and task.model:
                drawn.who[work.id] = task.model, task.op, group
                if took is not None:
                    key = task.model, group
                    self.busy[key] = self.busy.get(key, 0.0) + took
            if reports:
                drawn.boxes |= dict.fromkeys((made[name] for name in node.inputs if name in small), work.id)
            if node.op == "update":
                source = self.handle(node, 1)
                trained = [box for box, who in drawn.who.items() if who[:2] == (source, "train")]
                lane = self.lane_of[self.plan.owner(source).name]
                role = role_of(self.models[source])
                drawn.ways += [Way(box, work.id, lane, line="weights", role=role) for box in trained[-1:]]
        drawn.ways += self.ways(drawn, found)
        return drawn

    def work(self, node: Node, group: str, task: Task | None, seconds: float | None) -> Work:
        lane = self.lane_of[group]
        kind, title, note = self.said(node, task)
        if node.op == "update":
            target, source = (self.handle(node, at) for at in (0, 1))
            lane, title, note = self.lane_of[self.plan.owner(target).name], f"update {target}", f"from {source}"
        often = _often(task.times) if task else ""
        share = seconds / self.predicted["seconds"] if seconds else 0.0
        owner = task.model if task else None
        owner = self.handle(node, 0) if node.op == "update" else owner
        role = role_of(self.models[owner]) if owner else ""
        text = "\n".join(print_node(node))
        told = captions.short(", ".join(part for part in (note, often) if part), COLUMNS)
        return Work(
            self.id(),
            lane,
            captions.short(title, COLUMNS),
            told,
            kind,
            role,
            "" if seconds is None else shown_seconds(seconds),
            share,
            text,
            rows_of(node),
            node.span.source.path,
        )

    def said(self, node: Node, task: Task | None) -> tuple[BoxKind, str, str]:
        """Return the kind, title and note of a box."""
        if task and task.model:
            return "op", task.name, "" if node.op == "train" else f"{task.model}.{node.op}"
        if node.op == "report":
            names = node.attr("names", ())
            return "report", "report", ", ".join(map(str, names if isinstance(names, tuple) else ()))
        made = ", ".join(value.name for value in node.outputs if not isinstance(value.type, Handle)) or node.name
        if node.op == "call":
            return "call", made, str(node.attr("func"))
        if node.op in ("read", "tensor"):
            return ("data", made, "") if node.op == "read" else ("tensor", made, "")
        return "table", made, node.op

    def handle(self, node: Node, at: int) -> str:
        kind = self.types[node.inputs[at]]
        assert isinstance(kind, Handle)
        return kind.name

    # Seconds

    def seconds(self, step: Sequence[Task]) -> dict[int, float]:
        """Return the seconds of the main step's works by number, with all repetitions; empty if nothing is
        predicted."""
        if self.compiled.target is not None:
            choice = self.compiled.choice
            parts = zip(choice.problem.components, choice.found.options, strict=True)
            return {
                number: took
                for component, option in parts
                for number, took in zip(component.tasks, option.seconds, strict=True)
            }
        if not self.predicted:
            return {}
        return seconds_of(self.compiled, step)

    # Ways

    def ways(self, drawn: _Drawn, found: Walked) -> Iterator[Way]:
        """Yield what is transferred, once to each group, and also what waits for what within a group."""
        sent: dict[tuple[str, str], list[Edge]] = {}
        near: dict[tuple[str, str], None] = {}
        seen: set[Edge] = set()
        for chooser, later in found.waits:
            if chooser in drawn.boxes and later in drawn.boxes:
                near[drawn.boxes[chooser], drawn.boxes[later]] = None
        for use in found.uses:
            ends = drawn.boxes.get(-1 if use.maker is None else use.maker, ""), drawn.boxes.get(use.user, "")
            if not all(ends) or ends[0] == ends[1]:
                continue
            if use.edge.source == use.edge.target:
                near[ends] = None
            elif use.edge not in seen:
                seen.add(use.edge)
                sent.setdefault(ends, []).append(use.edge)
        lane = {work.id: work.lane for work in drawn.works}
        for (maker, user), edges in sent.items():
            told = tuple(sizes([edge.type for edge in edges]))
            yield Way(maker, user, lane[maker], tuple(edge.value for edge in edges), told)
        for maker, user in _shortest(near, sent):
            yield Way(maker, user, lane[maker])

    def weights(self, each: Weights, drawn: Sequence[_Drawn]) -> None:
        """Add the weights that are transferred before the first work that needs them, or to the `update` that sends
        them."""
        role = role_of(self.models[each.model])
        told = "of unknown size"
        if not isinstance(each.moves, str):
            moved = size(each.moves.moved) if each.moves.moved else "copied on its devices"
            # Nothing of a device that nobody has named, nor in a dtype that nobody has.
            known = [] if each.assumed and each.moves.moved else [moved]
            known += [shown_seconds(each.moves.seconds)] if self.plan.cluster else []
            told = ", ".join(known)
        for stage in drawn:
            goal = next((box for box, who in stage.who.items() if (who[0], who[2]) == (each.model, each.target)), None)
            if each.title.startswith("update") or goal is None:
                continue
            at = next(at for at, work in enumerate(stage.works) if work.id == goal)
            text = f"{each.title}: {each.source} -> {each.target}"
            work = Work(self.id(), self.lane_of[each.target], each.title, told, "next", role, text=text)
            stage.works.insert(at, work)
            stage.ways.append(Way("", work.id, self.lane_of[each.source], line="weights", role=role))
            stage.ways.append(Way(work.id, goal, work.lane, line="weights", role=role))
            return
        for stage in drawn:
            for at, work in enumerate(stage.works):
                if work.title == f"update {each.model}":
                    stage.works[at] = replace(work, note=": ".join(filter(None, (work.note, told))))


def _stage(drawn: _Drawn) -> Stage:
    works = tuple(replace(work, text="\n".join([work.text, *_given(work, drawn)])) for work in drawn.works)
    return Stage(drawn.phase.name, captions.phase(drawn.phase), works, tuple(drawn.ways))


def _given(work: Work, drawn: _Drawn) -> Iterator[str]:
    """Yield what is transferred to a box, for its tooltip."""
    titles = {each.id: each.title for each in drawn.works}
    for way in drawn.ways:
        if way.target == work.id and way.names:
            yield f"from `{titles[way.source]}`: {', '.join(way.names)} ({', '.join(way.sizes)})"


def _graphs(graph: Graph) -> Iterator[Graph]:
    """Yield a graph and those of its loops."""
    yield graph
    for node in graph.nodes:
        if NODES[node.op].loop:
            yield from _graphs(node.region)


def _shortest(near: Iterable[tuple[str, str]], sent: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the edges that do not follow from others: for A before B before C not A before C."""
    after: dict[str, set[str]] = {}
    for maker, user in (*near, *sent):
        after.setdefault(maker, set()).add(user)

    def reaches(start: str, goal: str) -> bool:
        return any(each == goal or reaches(each, goal) for each in after.get(start, ()))

    for maker, user in near:
        if (maker, user) not in sent and not any(reaches(each, user) for each in after[maker] if each != user):
            yield maker, user


def _often(times: float) -> str:
    if times == 1:
        return ""
    return f"{times:.3g} times" if times > 1 else f"every {1 / times:.3g} steps"
