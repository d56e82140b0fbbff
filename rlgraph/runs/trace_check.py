"""Checks a trace: whether a run did with its rows what its program allows.

It uses only the program and the trace, and no code that runs programs. Every sampled row must be of versions that the
program allows and of a complete group, and must be trained on in its step, as often as the program says, or dropped, or
left over by a `collect`; there it is dropped, or asked again, once it is too old, and not before. The number of
versions is counted in the trace. Where a `collect` takes batches as they end, the trace gives their order, and no row
that had ended then is passed over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from rlgraph.backends.rows import row_label
from rlgraph.backends.step import Ended
from rlgraph.backends.weight_versions import Runs
from rlgraph.errors import NO_SPAN, Diagnostic, count_phrase
from rlgraph.errors.arguments import check_arguments
from rlgraph.ir.graph import Node, program_axes
from rlgraph.ir.types import axis_of
from rlgraph.ops.nodes import attribute_value, rows_per_input
from rlgraph.runs.row_paths import LATE, RowPaths, TrainingPath, collected_data
from rlgraph.runs.trace import Batch, Row, Trace, TracedStep, read_trace


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
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "diagnostics"}
        return {"accepted": self.accepted, **values}


def check_trace(folder: str | Path) -> TraceCheck:
    """Return whether a run did with its rows what its program grants, by the trace in its folder.

    The result counts the rows that were sampled and trained on, and has `diagnostics`, which are empty if all is as
    the program grants it. Raise ProgramError where there is no trace, or it is damaged.
    """
    check_arguments(folder=folder)
    return check_loaded_trace(read_trace(Path(folder)))


def check_loaded_trace(trace: Trace) -> TraceCheck:
    """Check whether a run did what its program allows."""
    checker = _Checker(trace)
    checker.check_steps()
    faults = {key: rows for key, rows in checker.faults.items() if rows}
    checker.result.diagnostics = [
        Diagnostic("E0824", f"step {step}: {_who(rows)} {what}", NO_SPAN, granted)
        for (step, what, granted), rows in sorted(faults.items(), key=lambda item: item[0][0])
    ]
    return checker.result


def _who(rows: list[Row]) -> str:
    more = len(rows) - 1
    return row_label(rows[0]) + (f" (and {count_phrase(more, 'more row')})" if more else "")


class _Checker:
    """Goes through the steps of a trace and collects faults."""

    def __init__(self, trace: Trace) -> None:
        self.trace, self.result = trace, TraceCheck(len(trace.steps), trace.cut)
        self.faults: dict[tuple[int, str, str], list[Row]] = {}
        """The rows of each fault, by the step, what is wrong, and what is allowed."""
        self.versions: Counter[str] = Counter()
        """The latest version of each model."""
        self.updates: dict[str, list[int]] = {}
        """For each model, how often it had been updated when it became version 1, 2, and so on."""
        self.places: dict[Row, int] = {}
        """The position of each row of the data in the order of reading."""
        self.ends: dict[Row, tuple[int, int, int]] = {}
        """For rows whose batch is taken when it ends: the step in which it ended, how many batches ended before it in
        that step, and the row's place in it."""
        self.over = set[Batch]()
        """Batches that have ended."""
        self.at: list[Mapping[str, int]] = [{}]
        """The versions before each step, counted from 1."""
        self.batches: dict[Batch, dict[Row, None]] = {}
        """The rows of batches that are taken when they end."""
        self.made: dict[tuple[str, Row], tuple[int, int]] = {}
        """For each sampled row and its sampler, the step of sampling and the oldest version."""
        self.used: dict[tuple[tuple[str, str], Row], int] = {}
        """For each row and what is trained on it, the step."""
        self.waiting: dict[tuple[str, str], list[Row]] = {}
        """For each training, the rows that a `collect` has left over for its next step."""
        self.put_off: dict[str, set[Row]] = {}
        """For each sampler, rows of the data that a `collect` has left over to be asked again."""
        self.samplers: dict[str, dict[str, tuple[Node, str]]] = {}
        """The nodes that sample of each phase by their keys, each with the model that it samples from."""
        self.bounds = {phase.name: phase.staleness for phase in trace.program.phases}
        self.depths = {key: axis.depth for key, axis in program_axes(trace.program).items()}

    def add_fault(self, step: int, rows: Iterable[Row], what: str, granted: str) -> None:
        """Add rows to a fault."""
        self.faults.setdefault((step, what, granted), []).extend(rows)

    def check_steps(self) -> None:
        """Check every step."""
        ways = {phase.name: RowPaths(phase.graph) for phase in self.trace.program.phases}
        samplers = self.samplers = {name: dict(way.sampling_nodes()) for name, way in ways.items()}
        trainings = {name: list(way.possible_trainings()) for name, way in ways.items()}
        carrying = {name: list(way.collects_with_surplus()) for name, way in ways.items()}
        self.sources = {
            id(collect): way.samplers_deciding_order(collect)
            for way in ways.values()
            for collect in way.collects_in_end_order().values()
        }
        ages: dict[tuple[str, Row], int] = {}
        for number, step in enumerate(self.trace.steps, 1):
            self.at.append(dict(self.versions))
            ending = ways[step.phase].collects_in_end_order()
            for row in step.read:
                if row[0] not in ending:
                    self.places.setdefault(row, len(self.places))
            for collect, age_checks in carrying[step.phase]:
                if collected_data(collect) not in ending:
                    self.check_late_rows(number, step, collect, age_checks, trainings[step.phase])
            for key, rows in step.sampled.items():
                node, model = samplers[step.phase][key]
                once = not ways[step.phase].is_repeatable(node.name)
                plain = [entry for entry in rows if entry[2] is None]
                again = self.put_off.pop(key, set()) if plain else set()
                self.check_sampled_rows(number, step, key, plain, node, model, again if once else None)
                dropped = (gone for name, gone in step.dropped.items() if name != LATE)
                lost = again.difference((row[:3] for row, *_ in plain), *dropped)
                wanted = next(
                    (training.waiting_row_count for training in trainings[step.phase] if training.source == key), 0
                )
                if len(again) < wanted or (wanted and len(again) - len(lost) >= wanted):
                    # They wait until there are as many as a step takes.
                    self.put_off[key], lost = lost, set()
                granted = "it is asked first in the next step, or as soon as it is too old"
                self.add_fault(number, sorted(lost), f"was left over for `{key}`, and not asked again", granted)
            self.batches |= {batch: dict.fromkeys(rows) for batch, rows in step.begun.items()}
            # Rows that are given up in this step may be asked again in it.
            for asked_now in (False, True) if ending else ():
                for key, (node, model) in samplers[step.phase].items():
                    entries = [entry for entry in step.sampled.get(key, ()) if _asked_in(entry[2], number) == asked_now]
                    again = self.put_off.setdefault(key, set())
                    self.check_sampled_rows(number, step, key, entries, node, model, again)
                    again.difference_update(row[:3] for row, *_ in entries)
                    for training in trainings[step.phase]:
                        if training.source == key and training.takes_batches_as_ended:
                            queued = self.waiting.setdefault(training.key, [])
                            queued += [row for row, *_ in entries if _is_nested(row, node) == training.nested]
                self.check_ended_batches(number, step, ending, asked_now)
                for collect, age_checks in carrying[step.phase] if not asked_now else ():
                    if collected_data(collect) in ending:
                        self.check_late_rows(number, step, collect, age_checks, trainings[step.phase])
            for training in trainings[step.phase]:
                for row in self.check_trained_rows(number, step, training):
                    _, model = samplers[step.phase][training.source]
                    age = self.versions[model] - self.made[training.source, row][1]
                    ages.setdefault((training.source, row), age)
                    self.check_row_age(number, step, training.source, row, model, age)
            for model, times in step.changed.items():
                self.versions[model] += 1
                counts = self.updates.setdefault(model, [])
                counts.append((counts or [0])[-1] + times)
        self.result.sampled, self.result.trained = len(self.made), len(ages)
        self.result.left = sum(map(len, self.waiting.values()))
        self.result.ages = dict(sorted(Counter(ages.values()).items()))

    def check_late_rows(
        self,
        step: int,
        traced: TracedStep,
        collect: Node,
        age_checks: Mapping[str, Node],
        trainings: Iterable[TrainingPath],
    ) -> None:
        """Check that rows which a `collect` carries over are given up once they are too old, and not before. looks: for
        each sampler, the node that checks the age of its rows."""
        gone = {row for row in traced.dropped.get(LATE, ()) if row[0] == collected_data(collect)}
        concerned = [
            training for training in trainings if training.collect is collect and training.source in age_checks
        ]
        late, waiting, ran = set[Row](), set[Row](), bool(gone)

        def is_too_old(source: str, row: Row) -> bool:
            age = self.versions[age_checks[source].attr("model")] - self.made[source, row][1]
            return bool(age > age_checks[source].attr("oldest"))

        for training in concerned:
            ran |= training.always or training.key in traced.trained
            rows = list(self.waiting.get(training.key, ()))
            if training.takes_batches_as_ended:
                rows = [row for row in rows if row[:3] in self.ends and self.made[training.source, row][0] < step]
            waiting.update(row[:3] for row in rows)
            late.update(row[:3] for row in rows if is_too_old(training.source, row))
        # A row is also given up for a sibling that is too old and is never trained on.
        siblings = gone & waiting - late
        if siblings:
            late.update(
                row[:3] for key, row in self.made if key in age_checks and row[:3] in siblings and is_too_old(key, row)
            )
        granted = (
            f"`late={attribute_value(collect, 'late')}` is about rows that wait, and are older than `staleness=` grants"
        )
        if concerned:
            self.add_fault(step, sorted(gone - late), "was given up as too old, and is not", granted)
        if ran:
            self.add_fault(step, sorted(late - gone), "waits, is too old, and was not given up", granted)
        counts = set[tuple[str, Row]]()
        for training in concerned:
            waited = self.waiting.get(training.key, ())
            counts.update((training.source, row) for row in waited if row[:3] in gone)
            self.waiting[training.key] = [row for row in waited if row[:3] not in gone]
        self.result.late += len(counts)
        for row in gone:
            self.ends.pop(row, None)
        if attribute_value(collect, "late") == "again":
            # They come before all others, because they were read earlier.
            first = min(self.places.values(), default=0) - len(gone)
            self.places |= {row: first + offset for offset, row in enumerate(sorted(gone, key=self.row_position))}
            for source in age_checks:
                self.put_off.setdefault(source, set()).update(gone)

    def check_sampled_rows(
        self,
        step: int,
        traced: TracedStep,
        key: str,
        rows: Iterable[tuple[Row, Runs, Ended | None]],
        node: Node,
        model: str,
        again: set[Row] | None,
    ) -> None:
        """Check the versions and the groups of sampled rows. again: rows of the data that may be asked although they
        were sampled before; None allows all."""
        lag, bound = attribute_value(node, "lag"), attribute_value(node, "staleness")
        groups: Counter[Row] = Counter()
        for row, runs, batch in rows:
            # Rows that go on in a later step may be of the weights that this step made.
            began = step if batch is None else min(step, batch[0])
            now = self.versions[model] + (1 if batch is not None and model in traced.changed else 0)
            oldest = max(0, self.at[began].get(model, 0) - lag - bound)
            versions = [version for version, _ in runs]
            if again is not None and row[:3] not in again and (key, row) in self.made:
                before, _ = self.made[key, row]
                self.add_fault(step, [row], f"of `{key}` was sampled twice", f"it was in step {before} before")
            self.made[key, row] = began, min(versions)
            if batch is not None:
                self.batches.setdefault((row[0], *batch), {})[row[:3]] = None
            if not _is_nested(row, node):
                groups[row[:-1]] += 1
            newest = max(versions)
            if newest > now:
                what = f"of `{key}` has tokens of version {newest}, which did not exist yet"
                self.add_fault(step, [row], what, f"before this step `{model}` had changed {count_phrase(now, 'time')}")
            elif lag and versions != [oldest]:
                what = f"of `{key}` is of version {_listed(versions)}"
                self.add_fault(step, [row], what, f"`lag={lag}` grants version {oldest} here, and no other")
            elif min(versions) < oldest and self.bounds[traced.phase].updates is None:
                what = f"of `{key}` has tokens of version {min(versions)}: too old"
                granted = f"`staleness={bound}` grants versions {oldest} to {now} here"
                self.add_fault(step, [row], what, granted)
            if any(after <= before for before, after in pairwise(versions)):
                what = f"of `{key}` has tokens of versions {_listed(versions)}, one behind the other"
                self.add_fault(step, [row], what, "within a row versions rise")
            elif len(versions) > 1 and attribute_value(node, "span") == "row":
                what = f"of `{key}` has tokens of versions {_listed(versions)}"
                self.add_fault(step, [row], what, "the program grants a row one version, unless it says `span=`")
        group_size = rows_per_input(node)
        for group, count in groups.items() if group_size > 1 else ():
            if count != group_size:
                what = f"has {count_phrase(count, 'row')} of `{key}`"
                self.add_fault(step, [group], what, f"a group of it has {group_size}")

    def check_ended_batches(self, step: int, traced: TracedStep, ending: Mapping[str, Node], asked_now: bool) -> None:
        """Check the batches that have ended. asked_now: those of rows that were given up in this step, which come
        last."""
        for position, batch in enumerate(traced.ended):
            data, began, number = batch
            if asked_now != (began == step and number < 0):
                continue
            rows = self.batches.get(batch, {})
            if batch in self.over or number >= 0 and not rows or data not in ending:
                what = "of a batch that is told to have ended" + (" twice" if batch in self.over else "")
                self.add_fault(step, rows or [(data, 0, 0)], what, "a batch ends once, and is begun before")
            self.over.add(batch)
            self.ends |= {row: (step, position, place) for place, row in enumerate(rows)}
        for batch, rows in self.batches.items() if asked_now else ():
            data, began, _ = batch
            if began < step and batch not in self.over and data in ending and attribute_value(ending[data], "once"):
                what = f"is of a batch that step {began} began, and that has not ended"
                self.add_fault(step, rows, what, "`late=wait` lets it go on for one step")

    def check_row_age(self, step: int, traced: TracedStep, source: str, row: Row, model: str, age: int) -> None:
        """Check the age of a row that is trained on; if the program counts updates, at the last update of a step."""
        staleness, updates = self.bounds[traced.phase], [0, *self.updates.get(model, ())]
        bound = staleness.updates
        if bound is None:
            if age > staleness.steps and not staleness.exact:
                what = f"of `{source}` was {count_phrase(age, 'step')} behind when it was trained on: too old"
                self.add_fault(step, [row], what, f"`staleness={staleness.steps}` grants {staleness.steps}")
            return
        behind = updates[-1] + max(0, traced.changed.get(model, 0) - 1) - updates[self.made[source, row][1]]
        if behind > bound:
            what = f"of `{source}` was {count_phrase(behind, 'update')} behind at the end: too old"
            self.add_fault(step, [row], what, f"`staleness={bound}, unit=update` grants {bound}")

    def check_trained_rows(self, step: int, traced: TracedStep, training: TrainingPath) -> list[Row]:
        """Check the rows that something was trained on, and return those that it was allowed to train on."""
        key, model = training.key, training.model
        counts = Counter(traced.trained.get(key, ()))
        node = self.samplers[traced.phase][training.source][0]
        sampled = traced.sampled.get(training.source, ())
        fresh = [row for row, *_ in sampled if _is_nested(row, node) == training.nested]
        before, after = (_Dropped(traced, names) for names in (training.before, training.after))
        if training.takes_batches_as_ended:
            # All of its rows are waiting already.
            fresh, self.waiting[key] = [], [row for row in self.waiting.get(key, ()) if row not in before]
        if not counts and not training.always:
            if training.takes_batches_as_ended:
                self.skip_untrained_rows(training)
            return []
        candidates = [*self.waiting.pop(key, ()), *(row for row in fresh if row not in before)]
        candidate_set, allowed = set(candidates), []
        for row, count in counts.items():
            if (key, row) in self.used:
                what = f"was trained on twice for `{model}`"
                self.add_fault(step, [row], what, f"it was in step {self.used[key, row]} before")
            elif row in before or row in after:
                self.add_fault(
                    step, [row], f"was trained on for `{model}`, and had been dropped", "a row is one or the other"
                )
            elif training.takes_batches_as_ended and row in candidate_set and row[:3] not in self.ends:
                granted = "it goes on with its batch, which has not ended"
                self.add_fault(step, [row], f"was trained on for `{model}`", granted)
            elif row not in candidate_set:
                made = self.made.get((training.source, row))
                granted = f"it belongs to step {made[0]}" if made else f"`{training.source}` never sampled it"
                self.add_fault(step, [row], f"was trained on for `{model}`", granted)
            else:
                if training.times is not None and count != training.times:
                    what = f"was trained on {count_phrase(count, 'time')} for `{model}`"
                    self.add_fault(step, [row], what, f"the program says {count_phrase(training.times, 'time')}")
                self.used[key, row] = step
                allowed.append(row)
        self.check_missing_rows(step, traced, training, candidates, set(allowed), after)
        return allowed

    def check_missing_rows(
        self,
        step: int,
        traced: TracedStep,
        training: TrainingPath,
        candidates: list[Row],
        used: set[Row],
        after: _Dropped,
    ) -> None:
        """Check what became of the rows that it was not trained on."""
        model, collect = training.model, training.collect
        missing = [row for row in candidates if row not in used and row not in after]
        if collect is not None:
            reached = [row for row in candidates if row in used or row in after]
            place = self.training_order(training, candidates) if training.takes_batches_as_ended else self.row_position
            if attribute_value(collect, "rest") == "longest":
                # A trace does not have the lengths of rows that were not kept, so any of them may be left over.
                place = None
            surplus = missing
            if place is not None:
                last = max(map(place, reached), default=())
                surplus = [row for row in missing if place(row) > last]
            missing = [row for row in missing if row not in set(surplus)]
            if training.takes_batches_as_ended:
                made = {row: self.made[training.source, row][0] for row in surplus}
                self.waiting[training.key] = [
                    row
                    for row in surplus
                    if made[row] == step or not attribute_value(collect, "once") or row[:3] not in self.ends
                ]
            elif attribute_value(collect, "rest") == "carry":
                fresh = {row for row, *_ in traced.sampled.get(training.source, ())}
                self.waiting[training.key] = [
                    row for row in surplus if row in fresh or not attribute_value(collect, "once")
                ]
            elif attribute_value(collect, "rest") in ("later", "longest"):
                self.put_off.setdefault(training.source, set()).update(row[:3] for row in surplus)
            length = self.depths[collect.attr("axis")] + 2
            taken, wanted = len({row[:length] for row in (*reached, *missing)}), collect.attr("rows")
            if taken < wanted:
                rows = surplus or candidates or list(traced.read)
                what = (
                    f"was not trained on for `{model}`, nor were those behind it: "
                    f"{taken} of {wanted} rows were collected"
                )
                self.add_fault(step, rows[:1], what, "only what is more than that is left over")
        groups = {row[:-1] for row in used}
        for row in missing:
            what = f"of `{training.source}` was lost: it was sampled, and neither trained on for `{model}` nor dropped"
            with_others = len(row) > 3 and row[:-1] in groups
            granted = "others of its group were trained on" if with_others else "nothing in the program drops it"
            self.add_fault(step, [row], what, granted)

    def row_position(self, row: Row) -> tuple[int, ...]:
        return (self.places.get(row[:3], len(self.places)),)

    def training_order(self, training: TrainingPath, rows: Iterable[Row]) -> Callable[[Row], tuple[int, ...]] | None:
        """Return the order in which rows are taken whose batches are taken as they end, with unfinished ones last. None
        if the trace does not determine it, because several tables decide how old they are."""
        collect = training.collect
        assert collect is not None
        oldest: dict[Row, int] = {}
        if attribute_value(collect, "order") == "deadline":
            for row in rows:
                version = self.made[training.source, row][1]
                oldest[row[:3]] = min(version, oldest.get(row[:3], version))
            if self.sources[id(collect)] != {training.source}:
                return None

        def order_key(row: Row) -> tuple[int, ...]:
            end = self.ends.get(row[:3])
            return (1,) if end is None else (0, oldest.get(row[:3], 0), *end)

        return order_key

    def skip_untrained_rows(self, training: TrainingPath) -> None:
        """Take the rows that are collected in a step that does not train on them."""
        rows = self.waiting[training.key]
        assert training.collect is not None
        length, place = self.depths[training.collect.attr("axis")] + 2, self.training_order(training, rows)
        groups = dict.fromkeys(row[:length] for row in sorted(rows, key=place)) if place else {}
        taken = set(islice(groups, training.collect.attr("rows")))
        self.waiting[training.key] = [row for row in rows if row[:length] not in taken]


class _Dropped:
    """The rows that some nodes dropped in a step, with all rows inside them."""

    def __init__(self, step: TracedStep, names: Iterable[str]) -> None:
        self.rows = {row for name in names for row in step.dropped.get(name, ())}

    def __contains__(self, row: Row) -> bool:
        return any(row[:length] in self.rows for length in range(3, len(row) + 1)) if self.rows else False


def _is_nested(row: Row, sampler: Node) -> bool:
    """Return whether a row is one of those in a row of the table that a node samples."""
    axis = axis_of(sampler.outputs[0].type)
    assert axis is not None
    return len(row) > axis.depth + 2


def _asked_in(batch: Ended | None, step: int) -> bool | None:
    """Return whether a batch is of rows that were given up in a step; None if there is no batch."""
    return None if batch is None else batch[0] == step and batch[1] < 0


def _listed(versions: Iterable[int]) -> str:
    return ", ".join(map(str, versions))
