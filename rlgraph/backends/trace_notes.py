"""This module keeps the trace of a run: what is done with its rows where `async` lets steps overlap.

Whoever works on rows notes what is done with them: which node reads, samples, drops or trains on them. The notes of a
step are put together when it is over, as plain data:

    {"step": 3, "phase": "step", "changed": {"actor": 8}, "ended": [["prompts", 2, 1], ["prompts", 3, 0]],
     "read":    [{"node": "prompts", "rows": [["prompts", 0, 17], ...]}],
     "sampled": [{"node": "rollout", "rows": [["prompts", 0, 17, 0], ...], "versions": [[[2, 64]], ...]}],
     "dropped": [{"node": "kept", "rows": [["prompts", 0, 21], ...]}],
     "trained": [{"node": "actor@2", "table": "rollout", "rows": [["prompts", 0, 17, 0], ...]}]}

A row is its identity: the data, the pass, the row, the sample. `versions` has for each row which weights made how many
of its tokens, one after the other. Rows inside of dropped ones are dropped, too; a row that is trained on twice is
listed twice, by the weights that the body of the `train` is given. `recent` drops what a `collect` has carried over
until it was too old. Samples that `first=` gives up never were rows.
`changed` are the models that have a new version after the step, with how often they were updated in it: 0 where an
`if` left that out, and the version has the weights of the one before. `ended` is there
where a `collect` takes batches as they end: those whose end it saw in this step, one after the other, each by the data,
the step that began it and its number there. A note of such a batch says so, `"batch": [2, 1]`; it may be in the trace
of a later step than the one that began it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal

from rlgraph.backends.rows import RowId
from rlgraph.backends.step import Ended, Step
from rlgraph.backends.weight_versions import Runs
from rlgraph.ir.graph import Program
from rlgraph.ir.step_edges import trains_on_stale_rows

KINDS = ("read", "sampled", "dropped", "trained")
Kind = Literal["read", "sampled", "dropped", "trained"]


@dataclass(frozen=True)
class TraceNote:
    """A note that something was done with rows."""

    step: int
    kind: Kind
    node: str
    """The node that did it: for sampling its key, for training the weights that its body is given."""
    rows: tuple[RowId, ...]
    versions: tuple[Runs, ...] = ()
    """The versions that made the tokens of sampled rows."""
    table: str = ""
    """The value that has the rows that are trained on."""
    batch: int | None = None
    """The batch of a `collect`, as the step has it."""


class TraceNotes:
    """The notes of one process, until somebody takes them; in the one that runs the steps, until these are over."""

    def __init__(self, program: Program) -> None:
        self.wanted = trains_on_stale_rows(program)
        self._notes: list[TraceNote] = []
        self._changed: Counter[tuple[int, str]] = Counter()
        self._ended: dict[int, list[tuple[str, int, int]]] = {}
        self._lock = Lock()

    def add_note(
        self,
        step: Step,
        kind: Kind,
        node: str,
        rows: Sequence[RowId],
        versions: Sequence[Runs] = (),
        table: str = "",
    ) -> None:
        """Note that something was done with rows, if a trace is wanted."""
        if self.wanted and rows:
            self.add_notes([TraceNote(step.number, kind, node, tuple(rows), tuple(versions), table, step.batch)])

    def add_notes(self, notes: Iterable[TraceNote]) -> None:
        """Add notes of other processes."""
        with self._lock:
            self._notes += notes

    def note_weights_changed(self, step: Step, model: str, times: int = 1) -> None:
        """Note that a model has a new version: of new weights, or with times=0 of the same."""
        with self._lock:
            self._changed[step.number, model] += times

    def note_batches_ended(self, step: Step, data: str, batches: Iterable[Ended]) -> None:
        """Note the batches of a `collect` that takes them as they end, in the order in which they ended; [] counts,
        too."""
        with self._lock:
            self._ended.setdefault(step.number, []).extend((data, *batch) for batch in batches)

    def pop_notes(self, step: int | None = None) -> tuple[TraceNote, ...]:
        """Return all notes, or those of a step, and forget them here."""
        with self._lock:
            taken = tuple(note for note in self._notes if step in (None, note.step))
            self._notes = [note for note in self._notes if step not in (None, note.step)]
        return taken

    def clear(self) -> None:
        """Forget all notes: no step in flight will be over."""
        self.pop_notes()
        with self._lock:
            self._changed.clear()
            self._ended.clear()

    def pop_step_trace(self, step: Step) -> dict[str, Any] | None:
        """Return what was done in a step that is over, as plain data; None where no trace is wanted."""
        with self._lock:
            # A batch that an earlier step has begun may be at work in this one.
            notes = [note for note in self._notes if note.step <= step.number]
            self._notes = [note for note in self._notes if note.step > step.number]
            changed = {model: times for (number, model), times in self._changed.items() if number == step.number}
            for model in changed:
                del self._changed[step.number, model]
            ended = self._ended.pop(step.number, None)
        if not self.wanted:
            return None
        trace: dict[str, Any] = {"step": step.number, "phase": step.phase, "changed": dict(sorted(changed.items()))}
        trace |= {} if ended is None else {"ended": ended}
        return trace | {kind: _merged(note for note in notes if note.kind == kind) for kind in KINDS}


def _merged(notes: Iterable[TraceNote]) -> list[dict[str, Any]]:
    """Merge the notes of the same node, table and batch."""
    entries: dict[tuple[str, str, Ended | None], dict[str, Any]] = {}
    for note in notes:
        batch = None if note.batch is None else (note.step, note.batch)
        more = ({"table": note.table} if note.table else {}) | ({"batch": batch} if batch else {})
        entry = entries.setdefault((note.node, note.table, batch), {"node": note.node, **more, "rows": []})
        entry["rows"] += note.rows
        if note.versions:
            entry.setdefault("versions", []).extend(note.versions)
    return list(entries.values())
