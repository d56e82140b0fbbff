"""Checks a trace: whether a run did with its rows what its program grants.

It knows the program and the trace, and asks nothing of what runs programs. Every row that is sampled is of versions
that the program grants it, of whole groups, and is trained on in its step, as often as the program says, or dropped, or
left over by a `collect`; there it is dropped, or asked again, once it is too old, and not before. How many versions
there are is counted in the trace. Where a `collect` takes batches as they end, the trace says in what order they did,
and no row that was there then is passed over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from rlgraph.backends.rows import show_id
from rlgraph.backends.step import Ended
from rlgraph.errors import NO_SPAN, Diagnostic, counted
from rlgraph.ir.graph import Node, axes
from rlgraph.ops.nodes import attr, rows_each
from rlgraph.runs.trace import Batch, Row, Runs, Trace, TracedStep, read_trace
from rlgraph.runs.trace_ways import LATE, Training, Ways, data_of


@dataclass
class TraceCheck:
    """The summary of a run's trace, and what is wrong with it."""

    steps: int = 0
    cut: bool = False
    """Whether the run was killed while it wrote, so that what came after these steps is not known."""
    sampled: int = 0
    """The number of rows that were sampled."""
    trained: int = 0
    """The number of rows that something was trained on."""
    late: int = 0
    """The number of rows that a `collect` carried over until they were too old."""
    left: int = 0
    """The number of rows that a `collect` carries over, and nothing was trained on in the end."""
    ages: dict[int, int] = field(default_factory=dict)
    """The number of rows that were trained on, by the age of their oldest token."""
    diagnostics: list[Diagnostic] = field(default_factory=list)

    @property
    def accepted(self) -> bool:
        return not self.diagnostics

    def to_json(self) -> dict[str, Any]:
        """Return the summary as plain data, without what is wrong."""
        said = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "diagnostics"}
        return {"accepted": self.accepted, **said}


def check_trace(folder: str | Path) -> TraceCheck:
    """Check the trace in the folder of a run. Raise ProgramError where there is none, or it is damaged."""
    return checked(read_trace(Path(folder)))


def checked(trace: Trace) -> TraceCheck:
    """Check whether a run did what its program allows."""
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


class _Checker:
    def __init__(self, trace: Trace) -> None:
        self.trace, self.result = trace, TraceCheck(len(trace.steps), trace.cut)
        self.faults: dict[tuple[int, str, str], list[Row]] = {}
        """By the step, what is wrong and what is granted: with whom."""
        self.versions: Counter[str] = Counter()
        """The last version of each model."""
        self.updates: dict[str, list[int]] = {}
        """Of each model how often it had been updated when it became version 1, 2, and so on."""
        self.places: dict[Row, int] = {}
        """Of rows of the data in the order in which they were read."""
        self.ends: dict[Row, tuple[int, int, int]] = {}
        """Of rows of the data whose batch is taken when it ends: in which step it did, behind how many others, and the
        place there."""
        self.over = set[Batch]()
        """Batches that have ended."""
        self.at: list[Mapping[str, int]] = [{}]
        """The versions that there were before each step; of step 0 nobody asks."""
        self.batches: dict[Batch, dict[Row, None]] = {}
        """The rows of those that are taken when they end."""
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
        ways = {phase.name: Ways(phase.graph) for phase in self.trace.program.phases}
        samplers = {name: dict(each.samplers()) for name, each in ways.items()}
        trainings = {name: list(each.trainings()) for name, each in ways.items()}
        carrying = {name: list(each.carrying()) for name, each in ways.items()}
        self.sources = {id(each): way.sources(each) for way in ways.values() for each in way.ending().values()}
        ages: dict[tuple[str, Row], int] = {}
        for number, step in enumerate(self.trace.steps, 1):
            self.at.append(dict(self.versions))
            ending = ways[step.phase].ending()
            for row in step.read:
                if row[0] not in ending:
                    self.places.setdefault(row, len(self.places))
            for collect, looks in carrying[step.phase]:
                if data_of(collect) not in ending:
                    self.check_late(number, step, collect, looks, trainings[step.phase])
            for key, rows in step.sampled.items():
                node, model = samplers[step.phase][key]
                once = not ways[step.phase].again(node.name)
                plain = [each for each in rows if each[2] is None]
                again = self.put_off.pop(key, set()) if plain else set()
                self.check_sampled(number, step, key, plain, node, model, again if once else None)
                dropped = (gone for name, gone in step.dropped.items() if name != LATE)
                lost = again.difference((row[:3] for row, *_ in plain), *dropped)
                wanted = next((each.rests for each in trainings[step.phase] if each.source == key), 0)
                if len(again) < wanted or (wanted and len(again) - len(lost) >= wanted):
                    # They wait until as many do as a step takes.
                    self.put_off[key], lost = lost, set()
                granted = "it is asked first in the next step, or as soon as it is too old"
                self.fault(number, sorted(lost), f"was left over for `{key}`, and not asked again", granted)
            self.batches |= {batch: dict.fromkeys(rows) for batch, rows in step.begun.items()}
            # What is given up in this step can be asked again in it.
            for asked_now in (False, True) if ending else ():
                for key, (node, model) in samplers[step.phase].items():
                    mine = [each for each in step.sampled.get(key, ()) if _asked_in(each[2], number) == asked_now]
                    again = self.put_off.setdefault(key, set())
                    self.check_sampled(number, step, key, mine, node, model, again)
                    again.difference_update(row[:3] for row, *_ in mine)
                    for training in trainings[step.phase]:
                        if training.source == key and training.as_they_end:
                            self.waiting.setdefault(training.key, []).extend(row for row, *_ in mine)
                self.check_ended(number, step, ending, asked_now)
                for collect, looks in carrying[step.phase] if not asked_now else ():
                    if data_of(collect) in ending:
                        self.check_late(number, step, collect, looks, trainings[step.phase])
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
        self, step: int, done: TracedStep, collect: Node, looks: Mapping[str, Node], trainings: Iterable[Training]
    ) -> None:
        """What a `collect` carries over is given up once it is too old. looks: by who samples what looks at it."""
        gone = {row for row in done.dropped.get(LATE, ()) if row[0] == data_of(collect)}
        own = [each for each in trainings if each.collect is collect and each.source in looks]
        late, waiting, ran = set[Row](), set[Row](), bool(gone)

        def old(source: str, row: Row) -> bool:
            age = self.versions[looks[source].attr("model")] - self.made[source, row][1]
            return bool(age > looks[source].attr("oldest"))

        for training in own:
            ran |= training.always or training.key in done.trained
            rows = list(self.waiting.get(training.key, ()))
            if training.as_they_end:
                rows = [row for row in rows if row[:3] in self.ends and self.made[training.source, row][0] < step]
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
            waited = self.waiting.get(training.key, ())
            counts.update((training.source, row) for row in waited if row[:3] in gone)
            self.waiting[training.key] = [row for row in waited if row[:3] not in gone]
        self.result.late += len(counts)
        for row in gone:
            self.ends.pop(row, None)
        if attr(collect, "late") == "again":
            # They come before all others: they were read before.
            first = min(self.places.values(), default=0) - len(gone)
            self.places |= {row: first + at for at, row in enumerate(sorted(gone, key=self.place))}
            for source in looks:
                self.put_off.setdefault(source, set()).update(gone)

    def check_sampled(
        self,
        step: int,
        done: TracedStep,
        key: str,
        rows: Iterable[tuple[Row, Runs, Ended | None]],
        node: Node,
        model: str,
        again: set[Row] | None,
    ) -> None:
        """again: rows of the data that may be asked although they have been before; None: all may."""
        lag, bound = attr(node, "lag"), attr(node, "staleness")
        groups: Counter[Row] = Counter()
        for row, runs, batch in rows:
            # What goes on in a later step may be of the weights that this one has made.
            began = step if batch is None else min(step, batch[0])
            now = self.versions[model] + (1 if batch is not None and model in done.changed else 0)
            oldest = max(0, self.at[began].get(model, 0) - lag - bound)
            versions = [version for version, _ in runs]
            if again is not None and row[:3] not in again and (key, row) in self.made:
                before, _ = self.made[key, row]
                self.fault(step, [row], f"of `{key}` was sampled twice", f"it was in step {before} before")
            self.made[key, row] = began, min(versions)
            if batch is not None:
                self.batches.setdefault((row[0], *batch), {})[row[:3]] = None
            groups[row[:-1]] += 1
            newest = max(versions)
            if newest > now:
                what = f"of `{key}` has tokens of version {newest}, which did not exist yet"
                self.fault(step, [row], what, f"before this step `{model}` had changed {counted(now, 'time')}")
            elif lag and versions != [oldest]:
                what = f"of `{key}` is of version {_listed(versions)}"
                self.fault(step, [row], what, f"`lag={lag}` grants version {oldest} here, and no other")
            elif min(versions) < oldest and self.bounds[done.phase].updates is None:
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

    def check_ended(self, step: int, done: TracedStep, ending: Mapping[str, Node], asked_now: bool) -> None:
        """The batches that have ended. asked_now: of rows that were given up in this step; they come last."""
        for position, batch in enumerate(done.ended):
            data, began, number = batch
            if asked_now != (began == step and number < 0):
                continue
            rows = self.batches.get(batch, {})
            if batch in self.over or number >= 0 and not rows or data not in ending:
                what = "of a batch that is told to have ended" + (" twice" if batch in self.over else "")
                self.fault(step, rows or [(data, 0, 0)], what, "a batch ends once, and is begun before")
            self.over.add(batch)
            self.ends |= {row: (step, position, place) for place, row in enumerate(rows)}
        for batch, rows in self.batches.items() if asked_now else ():
            data, began, _ = batch
            if began < step and batch not in self.over and data in ending and attr(ending[data], "once"):
                what = f"is of a batch that step {began} began, and that has not ended"
                self.fault(step, rows, what, "`late=wait` lets it go on for one step")

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

    def check_trained(self, step: int, done: TracedStep, training: Training) -> list[Row]:
        """The rows that it was rightly trained on."""
        key, who = training.key, training.model
        counts = Counter(done.trained.get(key, ()))
        fresh = [row for row, *_ in done.sampled.get(training.source, ())]
        before, after = (_Dropped(done, names) for names in (training.before, training.after))
        if training.as_they_end:
            # They wait already, all of them.
            fresh, self.waiting[key] = [], [row for row in self.waiting.get(key, ()) if row not in before]
        if not counts and not training.always:
            if training.as_they_end:
                self.take_unseen(training)
            return []
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
            elif training.as_they_end and row in there and row[:3] not in self.ends:
                granted = "it goes on with its batch, which has not ended"
                self.fault(step, [row], f"was trained on for `{who}`", granted)
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
        self, step: int, done: TracedStep, training: Training, here: list[Row], used: set[Row], after: _Dropped
    ) -> None:
        """What became of the rows that it was not trained on."""
        who, collect = training.model, training.collect
        missing = [row for row in here if row not in used and row not in after]
        if collect is not None:
            reached = [row for row in here if row in used or row in after]
            place = self.turns(training, here) if training.as_they_end else self.place
            if attr(collect, "rest") == "longest":
                # A trace does not tell how long rows are that nobody kept: any of them may be left over.
                place = None
            surplus = missing
            if place is not None:
                last = max(map(place, reached), default=())
                surplus = [row for row in missing if place(row) > last]
            missing = [row for row in missing if row not in set(surplus)]
            if training.as_they_end:
                made = {row: self.made[training.source, row][0] for row in surplus}
                self.waiting[training.key] = [
                    row for row in surplus if made[row] == step or not attr(collect, "once") or row[:3] not in self.ends
                ]
            elif attr(collect, "rest") == "carry":
                fresh = {row for row, *_ in done.sampled.get(training.source, ())}
                self.waiting[training.key] = [row for row in surplus if row in fresh or not attr(collect, "once")]
            elif attr(collect, "rest") in ("later", "longest"):
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

    def place(self, row: Row) -> tuple[int, ...]:
        return (self.places.get(row[:3], len(self.places)),)

    def turns(self, training: Training, rows: Iterable[Row]) -> Callable[[Row], tuple[int, ...]] | None:
        """When it is whose turn, of rows whose batches are taken as they end: those come last that have not ended.
        None: the trace does not tell, since several tables have a say in how old they are."""
        collect = training.collect
        assert collect is not None
        oldest: dict[Row, int] = {}
        if attr(collect, "order") == "deadline":
            for row in rows:
                version = self.made[training.source, row][1]
                oldest[row[:3]] = min(version, oldest.get(row[:3], version))
            if self.sources[id(collect)] != {training.source}:
                return None

        def turn(row: Row) -> tuple[int, ...]:
            end = self.ends.get(row[:3])
            return (1,) if end is None else (0, oldest.get(row[:3], 0), *end)

        return turn

    def take_unseen(self, training: Training) -> None:
        """Rows are collected in a step that does not train on them."""
        rows = self.waiting[training.key]
        assert training.collect is not None
        length, place = self.depths[training.collect.attr("axis")] + 2, self.turns(training, rows)
        groups = dict.fromkeys(row[:length] for row in sorted(rows, key=place)) if place else {}
        taken = set(islice(groups, training.collect.attr("rows")))
        self.waiting[training.key] = [row for row in rows if row[:length] not in taken]


class _Dropped:
    """The rows that some have dropped in a step, with all that lie in them."""

    def __init__(self, step: TracedStep, names: Iterable[str]) -> None:
        self.rows = {row for name in names for row in step.dropped.get(name, ())}

    def __contains__(self, row: Row) -> bool:
        return any(row[:length] in self.rows for length in range(3, len(row) + 1)) if self.rows else False


def _asked_in(batch: Ended | None, step: int) -> bool | None:
    """Whether a batch is of rows that were given up in a step; None: it is none."""
    return None if batch is None else batch[0] == step and batch[1] < 0


def _listed(versions: Iterable[int]) -> str:
    return ", ".join(map(str, versions))
