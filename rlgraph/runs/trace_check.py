"""Checks a trace: whether a run did with its rows what its program grants.

It knows the program and the trace, and asks nothing of what runs programs. Every row that is sampled is of versions
that the program grants it, of whole groups, and is trained on in its step, as often as the program says, or dropped, or
left over by a `collect`; there it is dropped, or asked again, once it is too old, and not before. How many versions
there are is counted in the trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from rlgraph.backends.rows import show_id
from rlgraph.errors import NO_SPAN, Diagnostic, counted
from rlgraph.ir.graph import Graph, Node, axes
from rlgraph.ir.types import Axis, Handle, Table
from rlgraph.ops.nodes import NODES, attr, model_of, rows_each, sampler, table_of, way_to
from rlgraph.runs.trace import Row, Runs, Trace, TracedStep, read_trace


@dataclass
class TraceCheck:
    """What a trace says of a run, and what is wrong with it."""

    steps: int = 0
    cut: bool = False
    """The run was killed while it wrote: what came after these steps is not known."""
    sampled: int = 0
    """Rows."""
    trained: int = 0
    """Rows that something was trained on."""
    late: int = 0
    """Rows that a `collect` carried over until they were too old."""
    left: int = 0
    """Rows that a `collect` carries over, and nothing was trained on in the end."""
    ages: dict[int, int] = field(default_factory=dict)
    """Of the rows that were trained on: how many there are of each age, that of the oldest token."""
    diagnostics: list[Diagnostic] = field(default_factory=list)

    @property
    def accepted(self) -> bool:
        return not self.diagnostics

    def to_json(self) -> dict[str, Any]:
        """As plain data, without what is wrong."""
        said = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "diagnostics"}
        return {"accepted": self.accepted, **said}


def check_trace(folder: str | Path) -> TraceCheck:
    """Checks the trace in the folder of a run. Raises ProgramError where there is none, or it is damaged."""
    return checked(read_trace(Path(folder)))


def checked(trace: Trace) -> TraceCheck:
    """Whether a run did what its program grants."""
    found = _Checker(trace)
    found.check()
    told = {key: rows for key, rows in found.faults.items() if rows}
    found.result.diagnostics = [
        Diagnostic("E0824", f"step {step}: {_who(rows)} {what}", NO_SPAN, granted)
        for (step, what, granted), rows in sorted(told.items(), key=lambda item: item[0][0])
    ]
    return found.result


def _who(rows: list[Row]) -> str:
    more = len(rows) - 1
    return show_id(rows[0]) + (f" (and {counted(more, 'more row')})" if more else "")


# What the program says


LATE = "recent"
"""Who drops rows that are too old, as a trace calls it."""


@dataclass(frozen=True)
class _Training:
    """Something that is trained on the rows of a table."""

    key: tuple[str, str]
    """The weights that its body is given, and the table."""
    model: str
    source: str
    """The key of who samples the rows."""
    collect: Node | None
    """That which puts batches together on the way."""
    before: frozenset[str]
    """Who may drop rows before that."""
    after: frozenset[str]
    """Who may drop rows after that, or where there is no `collect`."""
    times: int | None
    """How often it is trained on a row."""
    always: bool
    """In each step of its phase."""


class _Ways:
    """How rows come from who samples them to who is trained on them."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.types = graph, graph.values()
        self.makers: dict[str, tuple[Node, int]] = {}
        for node in graph.walk():
            self.makers |= {value.name: (node, at) for at, value in enumerate(node.outputs)}

    def samplers(self) -> Iterator[tuple[str, tuple[Node, str]]]:
        """By its key each node that samples, and whose weights it does it with."""
        for node in self.graph.walk():
            model = self.types.get(model_of(node))
            if NODES[node.op].generates and isinstance(model, Handle):
                yield node.attr("key"), (node, model.name)

    def again(self, table: str) -> bool:
        """Whether the rows come from a buffer: they may come several times."""
        return any(NODES[node.op].place("buffer") is not None for node, _ in way_to(table, self.makers))

    def carrying(self) -> Iterator[tuple[Node, dict[str, Node]]]:
        """Each `collect` whose surplus may get too old, and by who samples it what looks at it."""
        for node in self.graph.walk():
            if NODES[node.op].loop == "rounds" and attr(node, "late") != "wait":
                looks = [each for each in node.region.nodes if each.op == LATE]
                sources = [sampler(each.inputs[0], self.makers) for each in looks]
                yield node, {source.attr("key"): each for source, each in zip(sources, looks, strict=True) if source}

    def trainings(self) -> Iterator[_Training]:
        yield from self._inside(self.graph, ())

    def _inside(self, graph: Graph, loops: tuple[Node, ...]) -> Iterator[_Training]:
        for node in graph.nodes:
            if not NODES[node.op].trains:
                for region in node.regions:
                    yield from self._inside(region, (*loops, node))
                continue
            always = not any(NODES[loop.op].loop == "steps" for loop in loops)
            for table in dict.fromkeys(table_of(inner) for inner in node.region.nodes if NODES[inner.op].scores):
                kind, way = self.types.get(table), self._way(table)
                if way is not None and isinstance(kind, Table) and not self.again(table):
                    weights = node.region.inputs[0]
                    assert isinstance(weights.type, Handle)
                    yield _Training((weights.name, table), weights.type.name, *way, _times(kind.axis, loops), always)

    def _way(self, table: str) -> tuple[str, Node | None, frozenset[str], frozenset[str]] | None:
        """Who samples a table's rows, and what is on the way from there; None of rows that no model samples."""
        collect: Node | None = None
        before, after = set[str](), set[str]()
        for node, _ in way_to(table, self.makers):
            op = NODES[node.op]
            if op.generates:
                return node.attr("key"), collect, frozenset(before), frozenset(after)
            if op.chooses is not None:
                (after if collect is None else before).add(node.name)
            elif not op.region:
                return None
            elif op.loop == "rounds":
                collect = node
        return None


def _data(collect: Node) -> str:
    """Whose rows it collects."""
    tables = [value.type for node in collect.region.nodes if node.op == "read" for value in node.outputs]
    return next(kind.axis.name for kind in tables if isinstance(kind, Table))


def _times(axis: Axis, loops: Iterable[Node]) -> int | None:
    """How often a row of an axis comes by in loops around it."""
    times = 1
    for loop in loops:
        if NODES[loop.op].loop == "slices":
            if all(above.key != loop.attr("axis") for above in axis.path()):
                return None
            times *= attr(loop, "epochs")
    return times


# What the run did


class _Checker:
    def __init__(self, trace: Trace) -> None:
        self.trace, self.result = trace, TraceCheck(len(trace.steps), trace.cut)
        self.faults: dict[tuple[int, str, str], list[Row]] = {}
        """By the step, what is wrong and what is granted: with whom."""
        self.versions: Counter[str] = Counter()
        """Of each model the last version that there is."""
        self.updates: dict[str, list[int]] = {}
        """Of each model how often it had been updated when it became version 1, 2, and so on."""
        self.places: dict[Row, int] = {}
        """Of rows of the data in the order in which they were read."""
        self.made: dict[tuple[str, Row], tuple[int, int]] = {}
        """For each row and who sampled it: in which step, and its oldest version."""
        self.used: dict[tuple[tuple[str, str], Row], int] = {}
        """For each row and what is trained on it: in which step."""
        self.waiting: dict[tuple[str, str], list[Row]] = {}
        """What a `collect` has left over for what is trained in the next step."""
        self.put_off: dict[str, set[Row]] = {}
        """By who samples with them: rows of the data that a `collect` has left over, to be asked again."""
        self.bounds = {phase.name: phase.staleness for phase in trace.program.phases}
        self.depths = {key: axis.depth for key, axis in axes(trace.program).items()}

    def fault(self, step: int, rows: Iterable[Row], what: str, granted: str) -> None:
        self.faults.setdefault((step, what, granted), []).extend(rows)

    def check(self) -> None:
        ways = {phase.name: _Ways(phase.graph) for phase in self.trace.program.phases}
        samplers = {name: dict(each.samplers()) for name, each in ways.items()}
        trainings = {name: list(each.trainings()) for name, each in ways.items()}
        carrying = {name: list(each.carrying()) for name, each in ways.items()}
        ages: dict[tuple[str, Row], int] = {}
        for number, step in enumerate(self.trace.steps, 1):
            for row in step.read:
                self.places.setdefault(row, len(self.places))
            for collect, looks in carrying[step.phase]:
                self.check_late(number, step, collect, looks, trainings[step.phase])
            for key, rows in step.sampled.items():
                node, model = samplers[step.phase][key]
                once = not ways[step.phase].again(node.name)
                again = self.put_off.pop(key, set()) if rows else set()
                self.check_sampled(number, step.phase, key, rows, node, model, again if once else None)
                dropped = (gone for name, gone in step.dropped.items() if name != LATE)
                lost = again.difference((row[:3] for row, _ in rows), *dropped)
                granted = "it is asked first in the next step, or as soon as it is too old"
                self.fault(number, sorted(lost), f"was left over for `{key}`, and not asked again", granted)
            for training in trainings[step.phase]:
                for row in self.check_trained(number, step, training):
                    _, model = samplers[step.phase][training.source]
                    age = self.versions[model] - self.made[training.source, row][1]
                    ages.setdefault((training.source, row), age)
                    self.check_age(number, step, training.source, row, model, age)
            for model, times in step.changed.items():
                self.versions[model] += 1
                known = self.updates.setdefault(model, [])
                known.append((known or [0])[-1] + times)
        self.result.sampled, self.result.trained = len(self.made), len(ages)
        self.result.left = sum(map(len, self.waiting.values()))
        self.result.ages = dict(sorted(Counter(ages.values()).items()))

    def check_late(
        self, step: int, done: TracedStep, collect: Node, looks: Mapping[str, Node], trainings: Iterable[_Training]
    ) -> None:
        """What a `collect` carries over is given up once it is too old. looks: by who samples what looks at it."""
        gone = {row for row in done.dropped.get(LATE, ()) if row[0] == _data(collect)}
        own = [each for each in trainings if each.collect is collect and each.source in looks]
        late, waiting, ran = set[Row](), set[Row](), bool(gone)

        def old(source: str, row: Row) -> bool:
            age = self.versions[looks[source].attr("model")] - self.made[source, row][1]
            return bool(age > looks[source].attr("oldest"))

        for training in own:
            ran |= training.always or training.key in done.trained
            rows = self.waiting.get(training.key, ())
            waiting.update(row[:3] for row in rows)
            late.update(row[:3] for row in rows if old(training.source, row))
        # It may be another row of theirs that is too old, on which nothing would have been trained.
        others = gone & waiting - late
        if others:
            late.update(row[:3] for key, row in self.made if key in looks and row[:3] in others and old(key, row))
        granted = f"`late={attr(collect, 'late')}` is about rows that wait, and are older than `staleness=` grants"
        if own:
            self.fault(step, sorted(gone - late), "was given up as too old, and is not", granted)
        if ran:
            self.fault(step, sorted(late - gone), "waits, is too old, and was not given up", granted)
        counts = set[tuple[str, Row]]()
        for training in own:
            rows = self.waiting.get(training.key, ())
            counts.update((training.source, row) for row in rows if row[:3] in gone)
            self.waiting[training.key] = [row for row in rows if row[:3] not in gone]
        self.result.late += len(counts)
        if attr(collect, "late") == "again":
            # They come before all others: they were read before.
            first = min(self.places.values(), default=0) - len(gone)
            self.places |= {row: first + at for at, row in enumerate(sorted(gone, key=self.place))}
            for source in looks:
                self.put_off.setdefault(source, set()).update(gone)

    def check_sampled(
        self,
        step: int,
        phase: str,
        key: str,
        rows: Iterable[tuple[Row, Runs]],
        node: Node,
        model: str,
        again: set[Row] | None,
    ) -> None:
        """again: rows of the data that may be asked although they have been before; None: all may."""
        now, lag, bound = self.versions[model], attr(node, "lag"), attr(node, "staleness")
        oldest = max(0, now - lag - bound)
        groups: Counter[Row] = Counter()
        for row, runs in rows:
            versions = [version for version, _ in runs]
            if again is not None and row[:3] not in again and (key, row) in self.made:
                before, _ = self.made[key, row]
                self.fault(step, [row], f"of `{key}` was sampled twice", f"it was in step {before} before")
            self.made[key, row] = step, min(versions)
            groups[row[:-1]] += 1
            newest = max(versions)
            if newest > now:
                what = f"of `{key}` has tokens of version {newest}, which did not exist yet"
                self.fault(step, [row], what, f"before this step `{model}` had changed {counted(now, 'time')}")
            elif lag and versions != [oldest]:
                what = f"of `{key}` is of version {_listed(versions)}"
                self.fault(step, [row], what, f"`lag={lag}` grants version {oldest} here, and no other")
            elif min(versions) < oldest and self.bounds[phase].updates is None:
                what = f"of `{key}` has tokens of version {min(versions)}: too old"
                granted = f"`staleness={bound}` grants versions {oldest} to {now} here"
                self.fault(step, [row], what, granted)
            if any(after <= before for before, after in pairwise(versions)):
                what = f"of `{key}` has tokens of versions {_listed(versions)}, one behind the other"
                self.fault(step, [row], what, "within a row versions rise")
            elif len(versions) > 1 and attr(node, "span") == "row":
                what = f"of `{key}` has tokens of versions {_listed(versions)}"
                self.fault(step, [row], what, "the program grants a row one version, unless it says `span=`")
        each = rows_each(node)
        for group, count in groups.items() if each > 1 else ():
            if count != each:
                what = f"has {counted(count, 'row')} of `{key}`"
                self.fault(step, [group], what, f"a group of it has {each}")

    def check_age(self, step: int, done: TracedStep, source: str, row: Row, model: str, age: int) -> None:
        """How old a row is that is trained on; where the program counts updates, at the last one of a step."""
        staleness, known = self.bounds[done.phase], [0, *self.updates.get(model, ())]
        bound = staleness.updates
        if bound is None:
            if age > staleness.steps and not staleness.exact:
                what = f"of `{source}` was {counted(age, 'step')} behind when it was trained on: too old"
                self.fault(step, [row], what, f"`staleness={staleness.steps}` grants {staleness.steps}")
            return
        behind = known[-1] + max(0, done.changed.get(model, 0) - 1) - known[self.made[source, row][1]]
        if behind > bound:
            what = f"of `{source}` was {counted(behind, 'update')} behind at the end: too old"
            self.fault(step, [row], what, f"`staleness={bound}, unit=update` grants {bound}")

    def check_trained(self, step: int, done: TracedStep, training: _Training) -> list[Row]:
        """The rows that it was rightly trained on."""
        key, who = training.key, training.model
        counts = Counter(done.trained.get(key, ()))
        fresh = [row for row, _ in done.sampled.get(training.source, ())]
        if not counts and not training.always:
            return []
        before, after = (_Dropped(done, names) for names in (training.before, training.after))
        here = [*self.waiting.pop(key, ()), *(row for row in fresh if row not in before)]
        there, rightly = set(here), []
        for row, count in counts.items():
            if (key, row) in self.used:
                what = f"was trained on twice for `{who}`"
                self.fault(step, [row], what, f"it was in step {self.used[key, row]} before")
            elif row in before or row in after:
                self.fault(
                    step, [row], f"was trained on for `{who}`, and had been dropped", "a row is one or the other"
                )
            elif row not in there:
                made = self.made.get((training.source, row))
                granted = f"it belongs to step {made[0]}" if made else f"`{training.source}` never sampled it"
                self.fault(step, [row], f"was trained on for `{who}`", granted)
            else:
                if training.times is not None and count != training.times:
                    what = f"was trained on {counted(count, 'time')} for `{who}`"
                    self.fault(step, [row], what, f"the program says {counted(training.times, 'time')}")
                self.used[key, row] = step
                rightly.append(row)
        self.check_missing(step, done, training, here, set(rightly), after)
        return rightly

    def check_missing(
        self, step: int, done: TracedStep, training: _Training, here: list[Row], used: set[Row], after: _Dropped
    ) -> None:
        """What became of the rows that it was not trained on."""
        who, collect = training.model, training.collect
        missing = [row for row in here if row not in used and row not in after]
        if collect is not None:
            reached = [row for row in here if row in used or row in after]
            last = max(map(self.place, reached), default=-1)
            surplus = [row for row in missing if self.place(row) > last]
            missing = [row for row in missing if self.place(row) <= last]
            if attr(collect, "rest") == "carry":
                fresh = {row for row, _ in done.sampled.get(training.source, ())}
                self.waiting[training.key] = [row for row in surplus if row in fresh or not attr(collect, "once")]
            elif attr(collect, "rest") == "later":
                self.put_off.setdefault(training.source, set()).update(row[:3] for row in surplus)
            length = self.depths[collect.attr("axis")] + 2
            found, wanted = len({row[:length] for row in (*reached, *missing)}), collect.attr("rows")
            if found < wanted:
                rows = surplus or here or list(done.read)
                what = (
                    f"was not trained on for `{who}`, nor were those behind it: {found} of {wanted} rows were collected"
                )
                self.fault(step, rows[:1], what, "only what is more than that is left over")
        groups = {row[:-1] for row in used}
        for row in missing:
            what = f"of `{training.source}` was lost: it was sampled, and neither trained on for `{who}` nor dropped"
            with_others = len(row) > 3 and row[:-1] in groups
            granted = "others of its group were trained on" if with_others else "nothing in the program drops it"
            self.fault(step, [row], what, granted)

    def place(self, row: Row) -> int:
        return self.places.get(row[:3], len(self.places))


class _Dropped:
    """The rows that some have dropped in a step, with all that lie in them."""

    def __init__(self, step: TracedStep, names: Iterable[str]) -> None:
        self.rows = {row for name in names for row in step.dropped.get(name, ())}

    def __contains__(self, row: Row) -> bool:
        return any(row[:length] in self.rows for length in range(3, len(row) + 1)) if self.rows else False


def _listed(versions: Iterable[int]) -> str:
    return ", ".join(map(str, versions))
