"""Lists the work of a step, one task for each node that costs time: on how many rows of which lengths, and after which
other tasks.

Loops are flat. A body that runs K times in sequence takes K times as long, so its tasks are listed once and say how
often they are done. A step is one in the middle of a run: the weights that were trained in the last step have not yet
reached the group that generates.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

from rlgraph.ir.graph import Graph, Node, Phase, Program
from rlgraph.ir.types import Axis, StateHandle, Table, Tensor, Type, axes_of, axis_of
from rlgraph.ops.nodes import (
    NODES,
    attribute_value,
    concurrent_batches,
    inputs_read,
    pairs_beside,
    rows_per_input,
    selected_inputs,
    sliced_axes,
    user_code_of,
    works_on_shares,
)
from rlgraph.ops.program_work import BESIDE, other_players_models
from rlgraph.passes.cost.batch import ROW_BYTES, Batch
from rlgraph.passes.cost.episodes import Episodes
from rlgraph.passes.cost.kept_tokens import KeptBytes, kept_bytes, read_bytes_by_table
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.pieces import lengths_of_pieces, prompt_lengths
from rlgraph.passes.cost.row_bytes import HeldRows, MadeRows, RowBytes
from rlgraph.passes.cost.task import Maker, ReadValue, Task
from rlgraph.passes.cost.workload import Workload


def phase_tasks(
    program: Program,
    phase: Phase,
    workload: Workload,
    elsewhere: Mapping[str, int] = MappingProxyType({}),
    streamed: Collection[str] = (),
) -> tuple[Task, ...]:
    """Return the tasks of a phase in an order in which they can run. elsewhere: of functions and environments that
    have a pool of CPUs, how many these are. streamed: tables whose rows are used as they arrive: work by rows or by
    groups begins with the first rows, and work that needs all rows waits for all that was done with them."""
    return _TaskList(program, workload, elsewhere, streamed).phase_tasks(phase)


def made_rows(
    program: Program, phase: Phase, workload: Workload, route_bytes: Mapping[str, float] = MappingProxyType({})
) -> tuple[tuple[Task, ...], tuple[MadeRows, ...]]:
    """Return the tasks of a phase, and all rows that are made in it. route_bytes: of each model whose routers are
    replayed the bytes of the experts of a token."""
    listed = _TaskList(program, workload, {}, ())
    listed.held = RowBytes(KeptBytes(0.0), route_bytes)
    return listed.phase_tasks(phase), tuple(listed.made)


def main_phase(program: Program) -> Phase:
    """Return the phase without a fixed number of steps."""
    return next(phase for phase in program.phases if phase.steps is None)


@dataclass
class _Scope:
    """The surroundings of a node inside of loops."""

    times: float = 1.0
    shares: Mapping[str, float] = field(default_factory=dict)
    """The share of each sliced axis that is visible."""
    after: frozenset[int] = frozenset()
    """The tasks that the loop waits for."""
    epochs: float = 1.0
    """How often the loop sees the same rows."""
    loops: tuple[tuple[int, float], ...] = ()


def max_turns(node: Node) -> int:
    """Return how often an environment may answer what a model says; 0 without an environment."""
    return int(node.attr("max_turns")) if NODES[node.op].generates and NODES[node.op].foreign else 0


def node_episodes(node: Node, program: Program, workload: Workload, cpus: int = 0) -> Episodes | None:
    """Return how what a node samples is episodes; None for what no environment answers. cpus: of a pool that its
    environment has."""
    turns = max_turns(node)
    if not turns:
        return None
    workers = cpus or program.worker_count(user_code_of(node))
    answers = workload.turn_counts(turns), workload.environment_s, workload.observed_tokens
    return Episodes(*answers, workers, bool(cpus), bool(attribute_value(node, "models")))


def _by_rows(node: Node) -> bool:
    """Return whether a node can begin with the first rows: a training accumulates their gradients."""
    op = NODES[node.op]
    if op.trains:
        return node.attr("micro") is not None
    return not op.loop and node.unit is not None and node.unit.axis is not None


def _is_number(kind: Type) -> bool:
    """Return whether a value is a number without rows."""
    return not isinstance(kind, StateHandle) and axis_of(kind) is None


class _TaskList:
    """Builds the tasks of a phase, node by node."""

    def __init__(
        self, program: Program, workload: Workload, elsewhere: Mapping[str, int], streamed: Collection[str]
    ) -> None:
        self.program, self.workload, self.elsewhere, self.streamed = program, workload, elsewhere, streamed
        self.types: Mapping[str, Type] = {}
        self.held = RowBytes(KeptBytes(0.0), {})
        self.made: list[MadeRows] = []
        self.listed: list[Task] = []
        self.loops = 0
        """How many loops have been seen."""
        self.ready: dict[str, frozenset[int]] = {}
        """For each value, the tasks after which it is complete."""
        self.first_rows: dict[str, frozenset[int]] = {}
        """For each value whose rows are used as they arrive, the tasks after which the first rows exist."""
        self.origins: dict[str, tuple[str, Maker]] = {}
        """For each value with rows, the value in which they were made, and its maker."""
        self.readers: dict[Type, list[int]] = {}
        """For each model or other state that lives across steps, the tasks that read its present version."""
        self.rows: dict[str, float] = {}
        """The number of rows of each row axis."""
        self.batch_rows: dict[str, float] = {}
        """For each reader, the rows of the data that a step uses on average, if not one batch at a time."""
        self.lengths: dict[str, tuple[Lengths, Lengths]] = {}
        """For each axis of tokens, the lengths of prompts and of what carries loss."""

    def phase_tasks(self, phase: Phase) -> tuple[Task, ...]:
        """Return the tasks of a phase."""
        self.types = phase.graph.value_types()
        self.held = replace(self.held, kept=kept_bytes(phase, self.workload.kept_tokens))
        self.add_graph_tasks(phase.graph, _Scope())
        return tuple(self.listed)

    def add_graph_tasks(self, graph: Graph, scope: _Scope) -> None:
        """Add the tasks of the nodes of a graph."""
        for node in graph.nodes:
            self.add_node_tasks(node, scope)

    def add_node_tasks(self, node: Node, scope: _Scope) -> None:
        """Add the tasks of a node, and record after which tasks its outputs exist."""
        begun = {name: self.first_rows[name] for name in node.inputs if name in self.first_rows and _by_rows(node)}
        if begun and NODES[node.op].trains:
            # It needs the denominators of sums only at the end.
            begun |= {name: frozenset() for name in node.inputs if name in self.ready and _is_number(self.types[name])}
        after = scope.after.union(*(begun.get(name, self.ready.get(name, frozenset())) for name in node.inputs))
        replaced = [value.type for value in node.outputs if isinstance(value.type, StateHandle)]
        ends_after = {reader for kind in replaced for reader in self.readers.get(kind, ())}
        if begun:
            # It ends after the tasks of all inputs whose first rows it began with.
            ends_after = ends_after.union(*(self.ready[name] for name in begun))
        else:
            after |= ends_after
        self.set_output_sizes(node, scope)
        after |= self.add_tasks_beside(node, scope, after)
        if NODES[node.op].loop:
            finished = self.add_loop_tasks(node, scope, after)
        elif NODES[node.op].free:
            finished = after
        else:
            finished = frozenset({self.add_task(node, scope, after), *self.add_other_players(node, scope, after)})
        if begun:
            finished |= ends_after
        streams = bool(begun) or NODES[node.op].generates and node.name.split(".")[0] in self.streamed
        for value in node.outputs:
            self.ready[value.name] = finished
            if streams and not isinstance(value.type, StateHandle):
                self.first_rows[value.name] = after
        self.record_output_location(node)
        self.add_made_rows(node, scope)
        for name in node.inputs:
            kind = self.types[name]
            if isinstance(kind, StateHandle) and kind not in replaced:
                self.readers.setdefault(kind, []).extend(finished)
        for kind in replaced:
            self.readers[kind] = []

    def add_loop_tasks(self, node: Node, scope: _Scope, after: frozenset[int]) -> frozenset[int]:
        """Add the tasks of a loop, and return those after which it has ended."""
        region, first = node.region, len(self.listed)
        times, shares, epochs = scope.times, dict(scope.shares), scope.epochs
        op = NODES[node.op]
        if op.loop == "slices":
            parts = min(node.attr("parts"), max(1, round(self.row_count(node.attr("axis"), scope))))
            times, epochs = times * parts * node.attr("epochs"), epochs * node.attr("epochs")
            for axis in sliced_axes(node):
                shares[axis] = shares.get(axis, 1.0) / parts
        elif op.on_steps:
            times /= op.on_steps.period(node.attr("steps"))
        elif op.loop == "rounds":
            times *= self.collect_rounds(node, scope)
        for value in region.inputs:
            self.ready[value.name] = after
        self.loops += 1
        self.add_graph_tasks(
            region, _Scope(times, shares, after, epochs, (*scope.loops, (self.loops, times / scope.times)))
        )
        body = frozenset(range(first, len(self.listed)))
        for inner, outer in node.exported_values:
            self.copy_axis_sizes(self.types[inner], outer.type, 1.0)
            if inner in self.origins:
                self.origins[outer.name] = self.origins[inner]
        if op.loop == "rounds" and (kept_rows := self.rows.get(node.attr("axis"), 0.0)):
            # However many batches it reads, it returns as many rows as were asked for.
            exported = {
                ancestor.key
                for _, outer in node.exported_values
                for axis in axes_of(outer.type)
                for ancestor in axis.path_to_root()
            }
            for key in exported & self.rows.keys():
                self.rows[key] *= node.attr("rows") / kept_rows
        return body or after

    def collect_rounds(self, node: Node, scope: _Scope) -> float:
        """Return how many batches `collect` reads until enough rows are kept. Surplus rows that are carried over save
        batches in later steps."""
        if attribute_value(node, "rest") == "longest":
            # All rows that begin side by side are one batch. Those that are left over are sampled again in steps of
            # their own, which begin no more rows than they take: the share of steps that read new rows is the rows
            # taken divided by the rows begun.
            begun, wanted = (
                float(concurrent_batches(node, node.attr("rows")) * node.attr("batch")),
                float(node.attr("rows")),
            )
            reader = next(inner for inner in node.region.nodes if NODES[inner.op].input_index("cursor") is not None)
            self.batch_rows[reader.name] = wanted * (2 - wanted / begun)
        for inner in node.region.nodes:
            self.set_output_sizes(inner, scope)
        if attribute_value(node, "rest") == "longest":
            return 1.0
        kept_rows = self.rows.get(node.attr("axis"), 0.0)
        wanted = float(node.attr("rows"))
        if not kept_rows or attribute_value(node, "rest") == "carry":
            return wanted / kept_rows if kept_rows else 1.0
        read = 0
        while read * kept_rows < wanted - 1e-9:
            read += concurrent_batches(node, wanted - read * kept_rows)
        return read

    def add_task(self, node: Node, scope: _Scope, after: frozenset[int]) -> int:
        """Add the task of a node, and return its number."""
        task = Task(
            node.name, node.op, None, repetitions=scope.times, loops=scope.loops, waits_for=tuple(sorted(after))
        )
        if NODES[node.op].uses_model:
            model = self.types[node.inputs[0]]
            assert isinstance(model, StateHandle)
            name = f"train {model.name}" if NODES[node.op].trains else node.name
            task = replace(task, name=name, model=model.name, batches=tuple(self.batches_read(node, scope)))
            task = replace(task, code=user_code_of(node))
        else:
            axes = [
                axis for name in (*node.inputs, *(v.name for v in node.outputs)) if (axis := axis_of(self.types[name]))
            ]
            rows = max((self.row_count(axis.row_axis.key, scope) for axis in axes), default=1.0)
            workers = self.program.worker_count(user_code_of(node))
            task = replace(task, rows=rows, code=user_code_of(node), workers=workers, shared=works_on_shares(node))
        self.listed.append(replace(task, reads=tuple(self.values_to_fetch(node, self.maker_of_node(node), scope))))
        return len(self.listed) - 1

    def add_tasks_beside(self, node: Node, scope: _Scope, after: frozenset[int]) -> frozenset[int]:
        """Add the tasks of other models that a node, or the loss of one that trains, reads beside its own, and return
        them."""
        inner = node.region.nodes if NODES[node.op].trains and node.regions else ()
        readings = [reading for reading in (node, *inner) if NODES[reading.op].joint]
        beside = [pairs_beside(reading) for reading in readings]
        pairs = [pair for names in beside for pair in zip(names[::2], names[1::2], strict=True)]
        first = len(self.listed)
        for weights, table in dict.fromkeys(pairs):
            model, kind = self.types[weights], self.types[table]
            assert isinstance(model, StateHandle) and isinstance(kind, Table)
            task = Task(f"{model.name}.{BESIDE}", BESIDE, model.name, (self.table_batch(kind, scope),))
            self.listed.append(
                replace(task, repetitions=scope.times, loops=scope.loops, waits_for=tuple(sorted(after)))
            )
        return frozenset(range(first, len(self.listed)))

    def add_other_players(self, node: Node, scope: _Scope, after: frozenset[int]) -> Iterator[int]:
        """Add the work of the models that play in a node's episodes besides its first one, and yield the numbers of
        the tasks."""
        for model in other_players_models(node, self.types):
            [batch, *_] = self.batches_read(node, scope)
            batches = (replace(batch, episodes=None),) * attribute_value(node, "models").count(model)
            name, waits = f"{node.name} by {model}", tuple(sorted(after))
            task = Task(name, node.op, model, batches, repetitions=scope.times, loops=scope.loops, waits_for=waits)
            self.listed.append(task)
            yield len(self.listed) - 1

    # Where rows lie

    def maker_of_node(self, node: Node) -> Maker:
        """Return who does a node's work."""
        if not NODES[node.op].uses_model:
            return None
        model = self.types[node.inputs[0]]
        assert isinstance(model, StateHandle)
        return model.name, node.op

    def record_output_location(self, node: Node) -> None:
        """Record where the outputs of a node are stored: with their maker; but rows that a node only selects stay
        where they are."""
        if NODES[node.op].loop:
            return
        selected = selected_inputs(node)
        for at, value in enumerate(node.outputs):
            if not isinstance(value.type, StateHandle):
                source = selected[at] if selected else value.name
                self.origins[value.name] = self.origins.get(source, (value.name, self.maker_of_node(node)))

    def add_made_rows(self, node: Node, scope: _Scope) -> None:
        """Add the rows that a node makes or puts into a buffer."""
        if NODES[node.op].loop or selected_inputs(node):
            return
        maker, times = self.maker_of_node(node), max(1.0, scope.times)
        self.held.note_routes(node, maker)
        for value in node.outputs:
            if not isinstance(value.type, StateHandle):
                self.made.append(MadeRows(value.name, maker, self.held_rows(value.name, value.type, scope) * times))
            elif node.op == "push":
                inputs = [(name, kind) for name in node.inputs if not isinstance(kind := self.types[name], StateHandle)]
                record = next(outside.record for outside in self.program.outside if outside.name == value.type.name)
                axis = axis_of(inputs[0][1])
                assert axis
                times = float(record.option("capacity")) / max(1.0, self.row_count(axis.key, scope))
                held = sum((self.held_rows(*named, scope) for named in inputs), HeldRows())
                self.made.append(MadeRows(value.name, maker, held * times, stays=True))

    def held_rows(self, name: str, kind: Tensor | Table, scope: _Scope) -> HeldRows:
        """Return what a value has in memory."""
        return self.held.held_rows(name, kind, lambda axis: self.entries(axis, scope), self.value_tokens(kind, scope))

    def values_to_fetch(self, node: Node, here: Maker, scope: _Scope) -> Iterator[ReadValue]:
        """Yield what a node's maker has to get from elsewhere, each value once."""
        times, roots = scope.times / scope.epochs, set[str]()
        for name in inputs_read(node):
            root, maker = self.origins.get(name, (name, here))
            if name in self.held.kept.of_values:
                # Who fetches other columns does not get them.
                root = name
            tokens = (
                self.value_tokens(self.types[name], scope) * self.held.kept.of_values.get(name, ROW_BYTES) / ROW_BYTES
            )
            if tokens and maker != here and root not in roots:
                roots.add(root)
                yield ReadValue(root, maker, tokens * times, times, name in self.held.kept.of_values)

    def value_tokens(self, kind: Type, scope: _Scope) -> float:
        """Return the tokens of a value; a value with one number for each row counts as one token for each."""
        axis = axis_of(kind)
        if axis is None:
            return 0.0
        rows = self.row_count(axis.row_axis.key, scope)
        if isinstance(kind, Table):
            lengths = self.lengths.get(kind.token.key) if kind.token else None
            return rows * sum(of_text.mean for of_text in lengths or (self.workload.prompt,))
        return self.entries(axis, scope)

    def entries(self, axis: Axis, scope: _Scope) -> float:
        """Return how many entries an axis has: tokens that carry loss, or rows."""
        rows = self.row_count(axis.row_axis.key, scope)
        return rows * self.lengths[axis.key][1].mean if axis.key in self.lengths else rows

    # Rows

    def batches_read(self, node: Node, scope: _Scope) -> Iterator[Batch]:
        """Yield what a model works on: the prompts that it answers, the rows that it reads, those that a loss
        reads."""
        if NODES[node.op].generates:
            answered = node.outputs[0].type
            assert isinstance(answered, Table)
            samples, first = node.attr("n"), rows_per_input(node)
            batch = self.table_batch(answered, scope, samples)
            if first < samples:
                sampled = self.workload.answer_lengths(node.attr("max_tokens")).group_lengths_cut_after(first, samples)
                batch = replace(batch, rows=batch.rows * samples / first, response=sampled)
            played = list(attribute_value(node, "models")) if NODES[node.op].foreign else []
            episodes = node_episodes(node, self.program, self.workload, self.elsewhere.get(user_code_of(node), 0))
            asked = prompt_lengths(self.types[node.inputs[1]], self.lengths, self.workload.prompt)
            ranks = node.attr("top_k") > 0 or node.attr("top_p") < 1
            batch = replace(batch, prompt=asked, episodes=episodes, ranks=ranks)
            yield batch
            # A model plays each of its players in a sequence of its own; the environment answers once.
            yield from [replace(batch, episodes=None)] * (played.count(played[0]) - 1 if played else 0)
            return
        nodes = [
            reading for reading in (node, *(node.region.nodes if node.regions else ())) if NODES[reading.op].scores
        ]
        beside = read_bytes_by_table(node, self.held.kept.of_values)
        for table in dict.fromkeys(reading.inputs[1] for reading in nodes):
            kind = self.types[table]
            assert isinstance(kind, Table)
            tokenwise = all(
                kind.token in axes_of(reading.outputs[0].type) for reading in nodes if reading.inputs[1] == table
            )
            yield replace(
                self.table_batch(kind, scope),
                together=self.samples_per_prompt(table, scope) if tokenwise else 1.0,
                kept_bytes=beside.get(table, 0.0),
            )

    def table_batch(self, kind: Table, scope: _Scope, samples: int = 1) -> Batch:
        """Return the rows of a table as a batch."""
        assert kind.token
        return Batch(self.row_count(kind.axis.key, scope), *self.lengths[kind.token.key], samples)

    def samples_per_prompt(self, table: str, scope: _Scope) -> float:
        """Return how many adjacent rows of a table were sampled for one prompt, on average; this is unknown for rows
        of a loop that takes any part of them."""
        kind, (_, maker) = self.types[table], self.origins.get(table, (table, None))
        assert isinstance(kind, Table)
        parent = self.parent_axes.get(kind.axis.key)
        if parent is None or maker is None or not NODES[maker[1]].generates or kind.axis.key in scope.shares:
            return 1.0
        return max(1.0, self.row_count(kind.axis.key, scope) / max(1.0, self.row_count(parent.key, scope)))

    def row_count(self, axis: str, scope: _Scope) -> float:
        """Return the rows of an axis, or of the slice of it that a loop sees."""
        share = scope.shares.get(axis, 1.0)
        parent = self.parent_axes.get(axis)
        while parent is not None:
            share = min(share, scope.shares.get(parent.key, 1.0))
            parent = parent.parent
        return self.rows.get(axis, 1.0) * share

    @cached_property
    def parent_axes(self) -> dict[str, Axis]:
        """The parent of each axis."""
        parents = {}
        for kind in self.types.values():
            for inner_axis in axes_of(kind):
                parents.update({axis.key: axis.parent for axis in inner_axis.path_to_root() if axis.parent})
        return parents

    def set_output_sizes(self, node: Node, scope: _Scope) -> None:
        """Set the rows and lengths of the axes that a node makes."""
        if node.op == "read":
            kind = node.outputs[0].type
            assert isinstance(kind, Table)
            source = next(record for record in self.program.outside if record.name == kind.axis.name)
            self.rows[kind.axis.key] = self.batch_rows.get(node.name, float(source.record.option("batch") or 1))
        elif NODES[node.op].generates:
            kind, prompts = node.outputs[0].type, axis_of(self.types[node.inputs[1]])
            assert isinstance(kind, Table) and kind.token and prompts
            if kind.axis.key not in self.rows:
                self.rows[kind.axis.key] = self.rows.get(prompts.row_axis.key, 1.0) * rows_per_input(node)
            answers, samples, first = (
                self.workload.answer_lengths(node.attr("max_tokens")),
                node.attr("n"),
                rows_per_input(node),
            )
            finished = answers.shortest_of_groups(first, samples) if first < samples else answers
            asked = prompt_lengths(self.types[node.inputs[1]], self.lengths, self.workload.prompt)
            if episodes := node_episodes(node, self.program, self.workload):
                # What an environment says is read like a prompt, and carries no loss.
                asked = asked.longer(episodes.observed_tokens)
            self.lengths[kind.token.key] = (asked, finished)
        elif node.op == "encode":
            kind = node.outputs[0].type
            assert isinstance(kind, Table) and kind.token
            answer = self.workload.response or self.workload.prompt
            self.lengths[kind.token.key] = (self.workload.prompt, answer)
        elif node.op == "keep":
            for name, value in zip(node.inputs[1:], node.outputs, strict=True):
                self.copy_axis_sizes(self.types[name], value.type, self.workload.kept)
        elif node.op == "resample":
            axis = self.rows[node.attr("axis")]
            groups = self.rows[node.attr("group")] if node.attr("group") else 1.0
            drawn = groups * node.attr("rows")
            share = (drawn if node.attr("replace") else min(drawn, axis)) / max(1.0, axis)
            for name, value in zip(node.inputs[1:], node.outputs, strict=True):
                self.copy_axis_sizes(self.types[name], value.type, share)
        elif node.op in ("pick", "player", "branch"):
            self.copy_axis_sizes(self.types[node.inputs[0]], node.outputs[0].type, 1.0)
        elif node.op == "pairs":
            pairs = axis_of(node.outputs[0].type)
            assert pairs and pairs.parent
            rows = self.rows.get(pairs.parent.key, 1.0)
            self.rows[pairs.key] = rows * max(0.0, rows / max(1.0, self.rows.get(node.attr("axis"), 1.0)) - 1)
        elif node.op in ("sample", "recall"):
            kind = node.outputs[0].type
            assert isinstance(kind, Table) and kind.token
            self.rows[kind.axis.key] = self.rows_of_buffer(node, kind)
            stored = list(self.lengths.values())
            self.lengths[kind.token.key] = (
                stored[-1] if stored else (self.workload.prompt, self.workload.answer_lengths(512))
            )
        else:
            self.lengths |= lengths_of_pieces(node, self.types, self.lengths, self.workload.prompt)

    def rows_of_buffer(self, node: Node, kind: Table) -> float:
        """Return how many rows a node takes from a buffer: of a key as many as there may be, and where nobody says
        that, one."""
        if node.op == "sample":
            return float(node.attr("rows"))
        buffer = self.types[node.inputs[0]]
        assert isinstance(buffer, StateHandle) and kind.axis.parent
        record = next(outside.record for outside in self.program.outside if outside.name == buffer.name)
        return self.rows.get(kind.axis.parent.key, 1.0) * float(record.option("last") or 1)

    def copy_axis_sizes(self, old: Type, new: Type, share: float) -> None:
        """Set the rows and lengths of axes that replace others: as many rows, or a share of them, and as long."""
        for before, after in zip(axes_of(old), axes_of(new), strict=False):
            if before.key in self.lengths:
                self.lengths[after.key] = self.lengths[before.key]
            self.held.copy_routes(before.key, after.key)
            for down, up in zip(before.path_to_root(), after.path_to_root(), strict=False):
                if down.key in self.rows and up.key not in self.rows:
                    self.rows[up.key] = self.rows[down.key] * share
