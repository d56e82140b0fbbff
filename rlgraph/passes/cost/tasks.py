"""The work of a step, one task for each node that costs time: on how many rows of which lengths, and after which
others.

Loops are laid out flat. A body that runs K times one after the other takes K times as long, so its tasks stand here
once and say how often they are done. A step is one in the middle of a run: what was trained in the last one is not yet
where it is generated with.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from rlgraph.ir.graph import Graph, Node, Phase, Program
from rlgraph.ir.types import Axis, Handle, Table, Type, axes_of, axis_of
from rlgraph.ops.nodes import NODES, at_once, attr, chosen_from, code_of, needed, rows_each
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.time import Batch


@dataclass(frozen=True, slots=True)
class Workload:
    """What the program cannot say: how long texts are, and how many rows a filter leaves."""

    prompt: Lengths = Lengths.lognormal(mean=256, p99=1024)
    response: Lengths | None = None
    """None: `usual`, of what the program allows."""
    kept: float = 1.0
    """Share of the rows that `keep` leaves."""
    alike: float = 0.0
    """How much the lengths of the answers to one prompt correlate, from 0 to 1: rank correlation, as normal scores."""
    foresight: float = 0.97
    """How much what is expected of a prompt, where rows begin by that, correlates with what its answers will be, as
    normal scores. With as much, of the longest fifth, tenth and twentieth of the rows 0.86, 0.83 and 0.80 are among
    those of which it is expected: StreamRL's ranker (arXiv 2504.15930) found 0.87, 0.82 and 0.76 of them."""

    def answers(self, limit: int) -> Lengths:
        """Of what is sampled with at most so many tokens."""
        return (self.response or usual(limit)).capped(limit)


LONGEST = 1 << 20
"""Tokens that models reach today."""


@cache
def usual(limit: int) -> Lengths:
    """Answers of which nothing is known but the limit: log-normal, and 1 of 100 is cut.

    The limit is twice the median up to 256 tokens, and sqrt(limit) / 8 times beyond: 4 times at 1,024, 16 times at
    16,384. docs/reference/clusters.md has the published lengths that this lies between.
    Of a limit beyond `LONGEST` answers are those of that limit.
    """
    if not limit:
        return Lengths((0.0,))
    limit = min(limit, LONGEST)
    return Lengths.lognormal(p50=limit / max(2.0, math.sqrt(limit) / 8), p99=limit)


Maker = tuple[str, str] | None
"""Who makes values: a model, and the operation that does; None: the host."""


@dataclass(frozen=True, slots=True)
class Read:
    """A value that a task reads, and that another operation has made. Where the two are done by the same processes, or
    it was read there before, nothing travels."""

    value: str
    """The table or tensor that lies where it was made, of which it may be a part."""
    maker: Maker
    tokens: float
    """In a step."""
    orders: float
    """In which it is fetched, in a step."""


@dataclass(frozen=True, slots=True)
class Task:
    name: str
    """As people see it: what the node makes, or `train actor`."""
    op: str
    model: str | None
    """None: the host does it."""
    batches: tuple[Batch, ...] = ()
    """Of work with a model, all rows that its calls read."""
    rows: float = 0.0
    """Of the host's work."""
    times: float = 1.0
    """How often it is done in a step; a share of 1 for what is not done in every one."""
    after: tuple[int, ...] = ()
    """The numbers of the tasks that it waits for."""
    code: str = ""
    """The function or the environment of the user's that it calls."""
    workers: int = 1
    """Processes over which its calls are spread, where the code has no pool of its own."""
    turns: int = 0
    """How often an environment may answer each row."""
    reads: tuple[Read, ...] = ()
    loops: tuple[tuple[int, float], ...] = ()
    """Those that it is in, the outermost first, by a number, and how often each is run: together `times`."""

    @property
    def tokens(self) -> float:
        """What a model reads or samples, each time."""
        return sum(batch.tokens().tokens for batch in self.batches)


def tasks(
    program: Program,
    phase: Phase,
    workload: Workload,
    elsewhere: Collection[str] = (),
    streamed: Collection[str] = (),
) -> tuple[Task, ...]:
    """In an order in which they can run. elsewhere: functions and environments that have a pool of cpus. streamed:
    tables whose rows are taken as they come: what is done row by row, or by groups, begins with them then, and what
    needs all rows waits for all that was done with them."""
    return _Laying(program, workload, elsewhere, streamed).phase(phase)


def stays(tasks: Sequence[Task], number: int, own: Collection[int]) -> float:
    """How often in a step who does a task comes to its devices for it, where it leaves them to others: once for each
    time that a loop is run in which anybody else works with a model. own: tasks that are done by the same."""
    others = [task.loops for at, task in enumerate(tasks) if task.model and at not in own]
    loops = tasks[number].loops
    shared = max(
        (depth for depth in range(1, len(loops) + 1) for each in others if loops[:depth] == each[:depth]), default=0
    )
    return math.prod(times if depth < shared else min(times, 1.0) for depth, (_, times) in enumerate(loops))


def main_step(program: Program) -> Phase:
    """The phase that goes on."""
    return next(phase for phase in program.phases if phase.steps is None)


@dataclass
class _Scope:
    """What is known inside of a loop."""

    times: float = 1.0
    shares: Mapping[str, float] = field(default_factory=dict)
    """For each axis that is sliced, how much of it there is."""
    after: frozenset[int] = frozenset()
    """Tasks that the loop waits for."""
    epochs: float = 1.0
    """How often it sees the same rows."""
    loops: tuple[tuple[int, float], ...] = ()


def turns_of(node: Node) -> int:
    """How often an environment may answer what a model says; 0 where there is none."""
    return int(node.attr("max_turns")) if NODES[node.op].generates and NODES[node.op].foreign else 0


def _by_rows(node: Node) -> bool:
    """Whether it can begin with the first rows: a training adds their gradients up."""
    op = NODES[node.op]
    if op.trains:
        return node.attr("micro") is not None
    return not op.loop and node.unit is not None and node.unit.axis is not None


def _is_number(kind: Type) -> bool:
    return not isinstance(kind, Handle) and axis_of(kind) is None


class _Laying:
    def __init__(
        self, program: Program, workload: Workload, elsewhere: Collection[str], streamed: Collection[str]
    ) -> None:
        self.program, self.workload, self.elsewhere, self.streamed = program, workload, elsewhere, streamed
        self.types: Mapping[str, Type] = {}
        self.found: list[Task] = []
        self.loops = 0
        """So many have been seen."""
        self.made: dict[str, frozenset[int]] = {}
        """For each value the tasks after which it is there."""
        self.coming: dict[str, frozenset[int]] = {}
        """For each value whose rows are taken as they come, the tasks after which the first ones do."""
        self.lies: dict[str, tuple[str, Maker]] = {}
        """For each value with rows the one that these were made as, and who made them."""
        self.readers: dict[Type, list[int]] = {}
        """For each model or other thing that lives across steps, who reads its present state."""
        self.rows: dict[str, float] = {}
        """For each row axis."""
        self.asked: dict[str, float] = {}
        """Rows of the data that a step asks on average, where it does not read a batch at a time."""
        self.lengths: dict[str, tuple[Lengths, Lengths]] = {}
        """For each axis of tokens those of prompts and of what carries loss."""

    def phase(self, phase: Phase) -> tuple[Task, ...]:
        self.types = phase.graph.values()
        self.graph(phase.graph, _Scope())
        return tuple(self.found)

    def graph(self, graph: Graph, scope: _Scope) -> None:
        for node in graph.nodes:
            self.node(node, scope)

    def node(self, node: Node, scope: _Scope) -> None:
        begun = {name: self.coming[name] for name in node.inputs if name in self.coming and _by_rows(node)}
        if begun and NODES[node.op].trains:
            # What sums are divided by it needs at the end.
            begun |= {name: frozenset() for name in node.inputs if name in self.made and _is_number(self.types[name])}
        after = scope.after.union(*(begun.get(name, self.made.get(name, frozenset())) for name in node.inputs))
        replaced = [value.type for value in node.outputs if isinstance(value.type, Handle)]
        last = {reader for kind in replaced for reader in self.readers.get(kind, ())}
        if begun:
            # It ends after all that it began with.
            last = last.union(*(self.made[name] for name in begun))
        else:
            after |= last
        self.measure(node, scope)
        if NODES[node.op].loop:
            done = self.loop(node, scope, after)
        elif NODES[node.op].free:
            done = after
        else:
            done = frozenset({self.add(node, scope, after)})
        if begun:
            done |= last
        comes = bool(begun) or NODES[node.op].generates and node.name.split(".")[0] in self.streamed
        for value in node.outputs:
            self.made[value.name] = done
            if comes and not isinstance(value.type, Handle):
                self.coming[value.name] = after
        self.lay(node)
        for name in node.inputs:
            kind = self.types[name]
            if isinstance(kind, Handle) and kind not in replaced:
                self.readers.setdefault(kind, []).extend(done)
        for kind in replaced:
            self.readers[kind] = []

    def loop(self, node: Node, scope: _Scope, after: frozenset[int]) -> frozenset[int]:
        region, first = node.region, len(self.found)
        times, shares, epochs = scope.times, dict(scope.shares), scope.epochs
        op = NODES[node.op]
        if op.loop == "slices":
            parts = min(node.attr("parts"), max(1, round(self.count(node.attr("axis"), scope))))
            times, epochs = times * parts * node.attr("epochs"), epochs * node.attr("epochs")
            shares[node.attr("axis")] = shares.get(node.attr("axis"), 1.0) / parts
        elif op.on_steps:
            times /= op.on_steps.period(node.attr("steps"))
        else:
            times *= self.rounds(node, scope)
        for value in region.inputs:
            self.made[value.name] = after
        self.loops += 1
        self.graph(region, _Scope(times, shares, after, epochs, (*scope.loops, (self.loops, times / scope.times))))
        made = frozenset(range(first, len(self.found)))
        for inner, outer in node.exported:
            self.adopt(self.types[inner], outer.type, 1.0)
            if inner in self.lies:
                self.lies[outer.name] = self.lies[inner]
        if op.loop == "rounds" and (kept := self.rows.get(node.attr("axis"), 0.0)):
            # However many batches it reads, what it gives is as many rows as were asked for.
            exported = {above.key for _, outer in node.exported for own in axes_of(outer.type) for above in own.path()}
            for key in exported & self.rows.keys():
                self.rows[key] *= node.attr("rows") / kept
        return made or after

    def rounds(self, node: Node, scope: _Scope) -> float:
        """How many batches `collect` reads until enough rows are kept. A surplus that is carried over spares them in
        later steps."""
        if attr(node, "rest") == "longest":
            # What is begun side by side is one batch. What waits of it is asked again in steps of their own, which ask
            # no more than they take: of all steps those ask new rows that are what is taken, as a share of what is
            # begun.
            begun, wanted = float(at_once(node, node.attr("rows")) * node.attr("batch")), float(node.attr("rows"))
            reader = next(each for each in node.region.nodes if NODES[each.op].place("cursor") is not None)
            self.asked[reader.name] = wanted * (2 - wanted / begun)
        for inner in node.region.nodes:
            self.measure(inner, scope)
        if attr(node, "rest") == "longest":
            return 1.0
        kept = self.rows.get(node.attr("axis"), 0.0)
        wanted = float(node.attr("rows"))
        if not kept or attr(node, "rest") == "carry":
            return wanted / kept if kept else 1.0
        read = 0
        while read * kept < wanted - 1e-9:
            read += at_once(node, wanted - read * kept)
        return read

    def add(self, node: Node, scope: _Scope, after: frozenset[int]) -> int:
        task = Task(node.name, node.op, None, times=scope.times, loops=scope.loops, after=tuple(sorted(after)))
        if NODES[node.op].with_model:
            held = self.types[node.inputs[0]]
            assert isinstance(held, Handle)
            name = f"train {held.name}" if NODES[node.op].trains else node.name
            task = replace(task, name=name, model=held.name, batches=tuple(self.read(node, scope)))
            task = replace(task, code=code_of(node), turns=turns_of(node))
        else:
            axes = [
                axis for name in (*node.inputs, *(v.name for v in node.outputs)) if (axis := axis_of(self.types[name]))
            ]
            rows = max((self.count(axis.row.key, scope) for axis in axes), default=1.0)
            task = replace(task, rows=rows, code=code_of(node), workers=self.program.workers(code_of(node)))
        self.found.append(replace(task, reads=tuple(self.sent(node, self.maker(node), scope))))
        return len(self.found) - 1

    # Where rows lie

    def maker(self, node: Node) -> Maker:
        """Who does a node's work."""
        if not NODES[node.op].with_model:
            return None
        held = self.types[node.inputs[0]]
        assert isinstance(held, Handle)
        return held.name, node.op

    def lay(self, node: Node) -> None:
        """Where what a node makes lies: with who makes it, but rows that are only chosen from stay where they are."""
        if NODES[node.op].loop:
            return
        old = chosen_from(node) if NODES[node.op].chooses is not None else node.inputs[: NODES[node.op].selects]
        for at, value in enumerate(node.outputs):
            if not isinstance(value.type, Handle):
                before = old[at] if old else value.name
                self.lies[value.name] = self.lies.get(before, (value.name, self.maker(node)))

    def sent(self, node: Node, own: Maker, scope: _Scope) -> Iterator[Read]:
        """What comes to who does a node's work, each value once."""
        times, seen = scope.times / scope.epochs, set[str]()
        for name in needed(node):
            root, maker = self.lies.get(name, (name, own))
            tokens = self.entries(self.types[name], scope)
            if tokens and maker != own and root not in seen:
                seen.add(root)
                yield Read(root, maker, tokens * times, times)

    def entries(self, kind: Type, scope: _Scope) -> float:
        """Tokens of a value; one that has a number for each row counts as one for each."""
        axis = axis_of(kind)
        if axis is None:
            return 0.0
        rows = self.count(axis.row.key, scope)
        if isinstance(kind, Table):
            known = self.lengths.get(kind.token.key) if kind.token else None
            return rows * sum(each.mean for each in known or (self.workload.prompt,))
        return rows * self.lengths[axis.key][1].mean if axis.key in self.lengths else rows

    # Rows

    def read(self, node: Node, scope: _Scope) -> Iterator[Batch]:
        """What a model works on: the prompts that it answers, the rows that it reads, those that a loss reads."""
        if NODES[node.op].generates:
            made = node.outputs[0].type
            assert isinstance(made, Table)
            asked, first = node.attr("n"), rows_each(node)
            batch = self.batch(made, scope, asked)
            if first < asked:
                sampled = self.workload.answers(node.attr("max_tokens")).until(first, asked)
                batch = replace(batch, rows=batch.rows * asked / first, response=sampled)
            if code_of(node) not in self.elsewhere:
                batch = replace(batch, answers=turns_of(node), workers=self.program.workers(code_of(node)))
            yield batch
            return
        nodes = [each for each in (node, *(node.region.nodes if node.regions else ())) if NODES[each.op].scores]
        for table in dict.fromkeys(each.inputs[1] for each in nodes):
            kind = self.types[table]
            assert isinstance(kind, Table)
            tokenwise = all(kind.token in axes_of(each.outputs[0].type) for each in nodes if each.inputs[1] == table)
            yield replace(self.batch(kind, scope), together=self.together(table, scope) if tokenwise else 1.0)

    def batch(self, kind: Table, scope: _Scope, samples: int = 1) -> Batch:
        assert kind.token
        return Batch(self.count(kind.axis.key, scope), *self.lengths[kind.token.key], samples)

    def together(self, table: str, scope: _Scope) -> float:
        """Rows of a table that were sampled for one prompt, on average; of those that a loop takes in parts, which may
        be any, it is not known."""
        kind, (_, maker) = self.types[table], self.lies.get(table, (table, None))
        assert isinstance(kind, Table)
        parent = self.above.get(kind.axis.key)
        if parent is None or maker is None or not NODES[maker[1]].generates or kind.axis.key in scope.shares:
            return 1.0
        return max(1.0, self.count(kind.axis.key, scope) / max(1.0, self.count(parent.key, scope)))

    def count(self, axis: str, scope: _Scope) -> float:
        """Rows of an axis, or of the slice that a loop sees of it."""
        share = scope.shares.get(axis, 1.0)
        known = self.above.get(axis)
        while known is not None:
            share = min(share, scope.shares.get(known.key, 1.0))
            known = known.parent
        return self.rows.get(axis, 1.0) * share

    @property
    def above(self) -> dict[str, Axis]:
        """The parent of each axis."""
        found = {}
        for kind in self.types.values():
            for own in axes_of(kind):
                found.update({axis.key: axis.parent for axis in own.path() if axis.parent})
        return found

    def measure(self, node: Node, scope: _Scope) -> None:
        """Rows and lengths of the axes that a node makes."""
        if node.op == "read":
            kind = node.outputs[0].type
            assert isinstance(kind, Table)
            source = next(each for each in self.program.outside if each.name == kind.axis.name)
            self.rows[kind.axis.key] = self.asked.get(node.name, float(source.record.option("batch") or 1))
        elif NODES[node.op].generates:
            kind, given = node.outputs[0].type, axis_of(self.types[node.inputs[1]])
            assert isinstance(kind, Table) and kind.token and given
            if kind.axis.key not in self.rows:
                self.rows[kind.axis.key] = self.rows.get(given.row.key, 1.0) * rows_each(node)
            answers, asked, first = self.workload.answers(node.attr("max_tokens")), node.attr("n"), rows_each(node)
            kept = answers.first(first, asked) if first < asked else answers
            self.lengths[kind.token.key] = (self.workload.prompt, kept)
        elif node.op == "encode":
            kind = node.outputs[0].type
            assert isinstance(kind, Table) and kind.token
            answer = self.workload.response or self.workload.prompt
            self.lengths[kind.token.key] = (self.workload.prompt, answer)
        elif node.op == "keep":
            for name, value in zip(node.inputs[1:], node.outputs, strict=True):
                self.adopt(self.types[name], value.type, self.workload.kept)
        elif node.op == "pick":
            self.adopt(self.types[node.inputs[0]], node.outputs[0].type, 1.0)
        elif node.op == "sample":
            kind = node.outputs[0].type
            assert isinstance(kind, Table) and kind.token
            self.rows[kind.axis.key] = float(node.attr("rows"))
            stored = [lengths for lengths in self.lengths.values()]
            self.lengths[kind.token.key] = stored[-1] if stored else (self.workload.prompt, self.workload.answers(512))

    def adopt(self, old: Type, new: Type, share: float) -> None:
        """Axes that a node replaces: as many rows, or a share of them, and as long."""
        for before, after in zip(axes_of(old), axes_of(new), strict=False):
            if before.key in self.lengths:
                self.lengths[after.key] = self.lengths[before.key]
            for down, up in zip(before.path(), after.path(), strict=False):
                if down.key in self.rows and up.key not in self.rows:
                    self.rows[up.key] = self.rows[down.key] * share
