"""The data of a plan's picture: pools as lanes, work where it runs, and what travels between groups.

The figures are those that `compile` prints and `--emit transfers` lists: they are taken from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from rlgraph.catalog.clusters.units import format_quantity, format_seconds
from rlgraph.errors import count_phrase
from rlgraph.explain.chosen_plan import step_lines
from rlgraph.explain.engine_choices import engine_choice_texts
from rlgraph.explain.fused_pipelines import fused_pipeline_lines
from rlgraph.explain.tables import pool_size_text
from rlgraph.explain.transfers import PlannedWeightTransfer, value_size_texts, weight_transfers
from rlgraph.ir.graph import Graph, Node, Phase
from rlgraph.ir.plan import HOST, Group, Pool
from rlgraph.ir.text.program_text import node_lines
from rlgraph.ir.types import StateHandle
from rlgraph.ir.work_names import work_key
from rlgraph.ops import NODES
from rlgraph.passes.compilation.assumed_workload import assumed_workload
from rlgraph.passes.compilation.compilation import Compilation
from rlgraph.passes.compilation.plan_times import main_step_task_seconds
from rlgraph.passes.cost.task import Task
from rlgraph.passes.cost.tasks import main_phase, phase_tasks
from rlgraph.passes.resharding.describe import format_bytes
from rlgraph.passes.resharding.group_edges import GroupEdge, PhaseWork, trace_phase_work
from rlgraph.viz import captions
from rlgraph.viz.boxes import BoxKind
from rlgraph.viz.lanes import DeployedModel, LaneEdge, LanePhase, Lanes, LaneWork, PoolLane
from rlgraph.viz.scene import report_only_nodes, role_of_model, source_lines

COLUMNS = 34
"""The most characters of a line on a box."""


def plan_lanes(compiled: Compilation) -> Lanes:
    """Return the plan of a compiled program, be it chosen, given by a schedule or read from a file. Raise ProgramError
    if there is none."""
    return _LanesBuilder(compiled).build_lanes()


@dataclass
class _PhaseDrawing:
    """A phase's picture while it is being made."""

    phase: Phase
    works: list[LaneWork] = field(default_factory=list)
    ways: list[LaneEdge] = field(default_factory=list)
    boxes: dict[int, str] = field(default_factory=dict)
    """The box's id for each work that has one."""
    who: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    """The model, operation and group of each box that works with a model."""


class _LanesBuilder:
    """Builds the picture of a plan."""

    def __init__(self, compiled: Compilation) -> None:
        self.compiled, self.program, self.plan = compiled, compiled.program, compiled.plan
        self.models = {model.name: model for model in self.program.models}
        self.types = {name: kind for phase in self.program.phases for name, kind in phase.graph.value_types().items()}
        self.place = {pool.name: at for at, pool in enumerate(self.plan.pools)}
        self.lane_of = {group.name: self.place[group.pool] for group in self.plan.groups}
        predicted = compiled.plan_file_sections.get("predicted", {})
        self.predicted = predicted if {"seconds", "gap", "tokens"} <= predicted.keys() else {}
        self.count = 0
        self.busy: dict[tuple[str, str], float] = {}
        """The seconds of a step in which a group works with a model."""

    def build_lanes(self) -> Lanes:
        """Return the picture of all phases and pools."""
        drawings = [self.draw_phase(phase) for phase in self.program.phases]
        for moved in weight_transfers(self.program, self.compiled.placed):
            self.add_weight_transfers(moved, drawings)
        stages = [_stage(drawing) for drawing in drawings]
        pools = tuple(self.pool_lane(pool) for pool in self.plan.pools)
        return Lanes(self.program.name, tuple(self.title_notes()), pools, tuple(stages))

    def new_box_id(self) -> str:
        """Return a new id of a box."""
        self.count += 1
        return f"w{self.count}"

    def title_notes(self) -> Iterator[str]:
        """Yield the notes below the title."""
        used = sum(pool.devices for pool in self.plan.pools)
        if self.predicted:
            yield from step_lines(self.plan.cluster, used, self.predicted)
            if self.busy:
                work_s = format_seconds(sum(self.busy.values()))
                yield f"seconds in boxes are of work, {work_s} in all; those of the step are on the clock"
        else:
            yield count_phrase(used, "device")
        yield from fused_pipeline_lines(self.plan, self.predicted)

    # Lanes

    def pool_lane(self, pool: Pool) -> PoolLane:
        """Return the lane of a pool."""
        if pool.name == HOST:
            return PoolLane(HOST, pool_size_text(pool))
        note = pool_size_text(pool)
        if self.plan.cluster and pool.devices:
            last = pool.first + pool.devices - 1
            note += f", {pool.first}" + (f"-{last}" if last > pool.first else "")
        groups = [group for group in self.plan.groups if group.pool == pool.name]
        held = tuple(self.deployed_model(model, group, pool) for group in groups for model in group.models)
        held += tuple(DeployedModel(name, (group.engine, "row by row")) for group in groups for name in group.code)
        full = self.predicted.get("memory", {}).get(pool.name)
        if not full:
            return PoolLane(pool.name, note, deployed=held)
        filled = f"at most {format_quantity(full['bytes'], 'bytes')} of {format_quantity(full['capacity'], 'bytes')}"
        during = f", during {full['moment']}" if full["moment"] else ""
        return PoolLane(pool.name, note, (filled + during,), full["bytes"] / full["capacity"], held)

    def deployed_model(self, model: str, group: Group, pool: Pool) -> DeployedModel:
        """Return a model on a group as its lane shows it."""
        title = self.plan.describe_model_work(model, group.name)
        details = [f"{group.engine}, {group.mesh}"]
        if group.mesh.rank_count < pool.devices:
            details[0] += f" on {group.mesh.rank_count} of {pool.devices}"
        holding = self.plan.holding(model, group.name)
        more = [f"micro-batches of {holding.micro_tokens} tokens"] if holding.micro_tokens else []
        more += engine_choice_texts(holding)
        more += ["recomputed"] * holding.recompute + ["off-loaded"] * holding.offload
        details += [", ".join(more)] if more else []
        seconds = self.busy.get((model, group.name))
        duration = "" if seconds is None else format_seconds(seconds)
        return DeployedModel(title, tuple(details), duration, role_of_model(self.models[model]))

    # Work

    def draw_phase(self, phase: Phase) -> _PhaseDrawing:
        """Return the drawing of a phase with its works and ways."""
        walk = trace_phase_work(phase, self.plan)
        drawing = _PhaseDrawing(phase)
        small = {name for graph in _graphs(phase.graph) for name in report_only_nodes(graph)}
        step = phase_tasks(self.program, phase, assumed_workload(self.compiled), self.compiled.plan.cpus_of_code)
        # The cost model has a task for each work, except for works that take no time.
        number_of = {at: n for n, at in enumerate(a for a, (w, _) in enumerate(walk.works) if not NODES[w.op].free)}
        seconds = self.seconds_by_task(step) if phase is main_phase(self.program) else {}
        maker_of = {value.name: at for at, (node, _) in enumerate(walk.works) for value in node.outputs}
        for at, (node, group) in enumerate(walk.works):
            reports = node.op == "report"
            if node.name in small or (NODES[node.op].free and not reports):
                continue
            task = step[number_of[at]] if at in number_of else None
            took = seconds.get(number_of[at]) if at in number_of else None
            work = self.work_box(node, group, task, took)
            drawing.works.append(work)
            drawing.boxes[at] = work.id
            if task and task.model:
                drawing.who[work.id] = task.model, task.op, group
                if took is not None:
                    key = task.model, group
                    self.busy[key] = self.busy.get(key, 0.0) + took
            if reports:
                drawing.boxes |= dict.fromkeys((maker_of[name] for name in node.inputs if name in small), work.id)
            if node.op == "update":
                source = self.state_input_name(node, 1)
                trained = [box for box, who in drawing.who.items() if who[:2] == (source, "train")]
                lane = self.lane_of[self.plan.owner(source).name]
                role = role_of_model(self.models[source])
                drawing.ways += [LaneEdge(box, work.id, lane, line="weights", role=role) for box in trained[-1:]]
        drawing.ways += self.transfer_edges(drawing, walk)
        return drawing

    def work_box(self, node: Node, group: str, task: Task | None, seconds: float | None) -> LaneWork:
        """Return the box of a work."""
        lane = self.lane_of[group]
        kind, title, note = self.box_labels(node, task)
        if node.op == "update":
            target, source = (self.state_input_name(node, at) for at in (0, 1))
            lane, title, note = self.lane_of[self.plan.owner(target).name], f"update {target}", f"from {source}"
        often = _often(task.repetitions) if task else ""
        share = seconds / self.predicted["seconds"] if seconds else 0.0
        owner = task.model if task else None
        owner = self.state_input_name(node, 0) if node.op == "update" else owner
        role = role_of_model(self.models[owner]) if owner else ""
        text = "\n".join(node_lines(node))
        caption = captions.shorten_text(", ".join(part for part in (note, often) if part), COLUMNS)
        return LaneWork(
            self.new_box_id(),
            lane,
            captions.shorten_text(title, COLUMNS),
            caption,
            kind,
            role,
            "" if seconds is None else format_seconds(seconds),
            share,
            text,
            source_lines(node),
            node.span.source.path,
            key=work_key(node.name, node.op),
        )

    def box_labels(self, node: Node, task: Task | None) -> tuple[BoxKind, str, str]:
        """Return the kind, title and note of a box."""
        if task and task.model:
            return "op", task.name, "" if node.op == "train" else f"{task.model}.{node.op}"
        if node.op == "report":
            names = node.attr("names", ())
            return "report", "report", ", ".join(map(str, names if isinstance(names, tuple) else ()))
        outputs = (
            ", ".join(value.name for value in node.outputs if not isinstance(value.type, StateHandle)) or node.name
        )
        if node.op == "call":
            return "call", outputs, str(node.attr("func"))
        if node.op in ("read", "tensor"):
            return ("data", outputs, "") if node.op == "read" else ("tensor", outputs, "")
        return "table", outputs, node.op

    def state_input_name(self, node: Node, at: int) -> str:
        """Return the name of the model or other state that is an input of a node."""
        kind = self.types[node.inputs[at]]
        assert isinstance(kind, StateHandle)
        return kind.name

    # Seconds

    def seconds_by_task(self, step: Sequence[Task]) -> dict[int, float]:
        """Return the seconds of the main step's works by number, with all repetitions; empty if nothing is
        predicted."""
        if self.compiled.target is None and not self.predicted:
            return {}
        return main_step_task_seconds(self.compiled, step)

    # Ways

    def transfer_edges(self, drawing: _PhaseDrawing, walk: PhaseWork) -> Iterator[LaneEdge]:
        """Yield what is transferred, once to each group, and also what waits for what within a group."""
        sent: dict[tuple[str, str], list[GroupEdge]] = {}
        near: dict[tuple[str, str], None] = {}
        seen: set[GroupEdge] = set()
        for chooser, later in walk.row_choice_waits:
            if chooser in drawing.boxes and later in drawing.boxes:
                near[drawing.boxes[chooser], drawing.boxes[later]] = None
        for use in walk.uses:
            ends = drawing.boxes.get(-1 if use.maker is None else use.maker, ""), drawing.boxes.get(use.user, "")
            if not all(ends) or ends[0] == ends[1]:
                continue
            if use.edge.source == use.edge.target:
                near[ends] = None
            elif use.edge not in seen:
                seen.add(use.edge)
                sent.setdefault(ends, []).append(use.edge)
        lane = {work.id: work.lane for work in drawing.works}
        for (maker, user), edges in sent.items():
            volumes = tuple(value_size_texts([edge.type for edge in edges]))
            yield LaneEdge(maker, user, lane[maker], tuple(edge.value for edge in edges), volumes)
        for maker, user in _shortest(near, sent):
            yield LaneEdge(maker, user, lane[maker])

    def add_weight_transfers(self, sent: PlannedWeightTransfer, drawings: Sequence[_PhaseDrawing]) -> None:
        """Add the weights that are transferred before the first work that needs them, or to the `update` that sends
        them."""
        role = role_of_model(self.models[sent.model])
        caption = "of unknown size"
        if not isinstance(sent.moves, str):
            volume = format_bytes(sent.moves.moved) if sent.moves.moved else "copied on its devices"
            # No seconds without a cluster's devices, and no bytes where the dtype is only assumed.
            figures = [] if sent.assumed and sent.moves.moved else [volume]
            figures += [format_seconds(sent.moves.seconds)] if self.plan.cluster else []
            caption = ", ".join(figures)
        for stage in drawings:
            goal = next((box for box, who in stage.who.items() if (who[0], who[2]) == (sent.model, sent.target)), None)
            if sent.title.startswith("update") or goal is None:
                continue
            at = next(at for at, work in enumerate(stage.works) if work.id == goal)
            text = f"{sent.title}: {sent.source} -> {sent.target}"
            lane, key = self.lane_of[sent.target], f"{sent.model} -> {sent.target}"
            work = LaneWork(self.new_box_id(), lane, sent.title, caption, "next", role, text=text, key=key)
            stage.works.insert(at, work)
            stage.ways.append(LaneEdge("", work.id, self.lane_of[sent.source], line="weights", role=role))
            stage.ways.append(LaneEdge(work.id, goal, work.lane, line="weights", role=role))
            return
        for stage in drawings:
            for at, work in enumerate(stage.works):
                if work.title == f"update {sent.model}":
                    stage.works[at] = replace(work, note=": ".join(filter(None, (work.note, caption))))


def _stage(drawing: _PhaseDrawing) -> LanePhase:
    """Return a phase as its picture needs it."""
    works = tuple(replace(work, text="\n".join([work.text, *_transferred(work, drawing)])) for work in drawing.works)
    return LanePhase(drawing.phase.name, captions.phase_text(drawing.phase), works, tuple(drawing.ways))


def _transferred(work: LaneWork, drawing: _PhaseDrawing) -> Iterator[str]:
    """Yield what is transferred to a box, for its tooltip."""
    titles = {box.id: box.title for box in drawing.works}
    for way in drawing.ways:
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
        return any(follower == goal or reaches(follower, goal) for follower in after.get(start, ()))

    for maker, user in near:
        if (maker, user) not in sent and not any(
            reaches(follower, user) for follower in after[maker] if follower != user
        ):
            yield maker, user


def _often(times: float) -> str:
    """Return how often a task is done as words; empty for once a step."""
    if times == 1:
        return ""
    return f"{times:.3g} times" if times > 1 else f"every {1 / times:.3g} steps"
