"""The picture of the plan that a run follows, kept in its folder, and the same with what was measured beside what was
predicted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from rlgraph.catalog.clusters.units import format_quantity, format_seconds
from rlgraph.errors import ProgramError
from rlgraph.ir.plan import HOST
from rlgraph.passes.compilation.compilation import Compilation
from rlgraph.runs.options import LOCAL

if TYPE_CHECKING:
    from rlgraph.viz.lanes import Lanes, LaneWork

PICTURE = "plan_picture.json"
FORMAT = 1
Record = TypeVar("Record")


@runtime_checkable
class DrawsPlan(Protocol):
    """A compiled program that knows the picture of its plan, as those of the API do."""

    def lanes(self) -> Lanes:
        """Return the plan as data for a picture. Raise ProgramError if there is no plan."""
        ...


@dataclass(frozen=True)
class Measured:
    """What was measured of a run, as its picture shows it."""

    step_s: float = 0.0
    """The seconds of a step."""
    work_s: Mapping[str, float] = field(default_factory=dict)
    received_bytes: Mapping[str, float] = field(default_factory=dict)
    weights_sent: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Seconds and bytes of a step, by model and group."""
    memory: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """The peak bytes of processes, by pool."""


def picture_text(compiled: Compilation, backend: str) -> str:
    """Return the picture of what a run does where, as JSON; empty for a program that has no plan.

    A run in one process of a program that has no plan is drawn as that: none of the pools there would be has worked.
    """
    if not isinstance(compiled, DrawsPlan):
        return ""
    try:
        lanes = compiled.lanes()
    except ProgramError:
        return ""
    if backend == LOCAL.name:
        lanes = (
            replace(lanes, notes=(*lanes.notes, "run in one process, whatever the plan"))
            if compiled.planned
            else (_in_one_process(lanes))
        )
    predicted = compiled.plan_file_sections.get("predicted", {})
    memory = {
        pool: {"bytes": full["bytes"], "capacity": full["capacity"]}
        for pool, full in predicted.get("memory", {}).items()
    }
    plain = {"format": FORMAT, "step_s": predicted.get("seconds"), "memory": memory, "lanes": asdict(lanes)}
    return json.dumps(plain) + "\n"


def _in_one_process(lanes: Lanes) -> Lanes:
    from rlgraph.viz.lanes import PoolLane

    stages = []
    for stage in lanes.stages:
        works = tuple(replace(work, lane=0) for work in stage.works if work.kind != "next")
        there = {work.id for work in works}
        ways = tuple(
            replace(way, lane=0, names=(), sizes=()) for way in stage.ways if {way.source, way.target} <= there
        )
        stages.append(replace(stage, works=works, ways=ways))
    return replace(lanes, notes=(), lanes=(PoolLane(LOCAL.name, "1 process"),), stages=tuple(stages))


@dataclass(frozen=True)
class PlanPicture:
    """A picture that was read from a run's folder."""

    lanes: Lanes
    step_s: float | None
    """The seconds that a step was predicted to take; None without a prediction."""
    memory: Mapping[str, Mapping[str, float]]
    """The predicted peak and the capacity of a device of each pool, in bytes."""

    @classmethod
    def from_json(cls, text: str) -> PlanPicture:
        """Read a picture. Raise LookupError, TypeError or ValueError for what no run writes."""
        from rlgraph.viz.lanes import DeployedModel, LaneEdge, LanePhase, Lanes, LaneWork, PoolLane

        plain = json.loads(text)
        if plain["format"] != FORMAT:
            raise ValueError("a picture of another version")
        drawn = plain["lanes"]
        lanes = tuple(
            _record(PoolLane, {**lane, "deployed": tuple(_record(DeployedModel, model) for model in lane["deployed"])})
            for lane in drawn["lanes"]
        )
        stages = tuple(
            LanePhase(
                str(stage["title"]),
                str(stage["note"]),
                tuple(_record(LaneWork, work) for work in stage["works"]),
                tuple(_record(LaneEdge, way) for way in stage["ways"]),
            )
            for stage in drawn["stages"]
        )
        seconds = plain["step_s"]
        memory = {pool: {name: float(size) for name, size in full.items()} for pool, full in plain["memory"].items()}
        picture = Lanes(str(drawn["title"]), tuple(map(str, drawn["notes"])), lanes, stages)
        return cls(picture, None if seconds is None else float(seconds), memory)

    def to_svg(self, measured: Measured, prefix: str) -> str:
        """Return the picture with what was measured. prefix: that of all ids."""
        from rlgraph.viz import lanes_svg

        return lanes_svg.to_svg(self.with_measured(measured), prefix, embed=False)

    def with_measured(self, measured: Measured) -> Lanes:
        """Return the picture with what was measured beside what was predicted."""
        if not measured.work_s:
            return self.lanes
        notes = list(self.lanes.notes)
        if measured.step_s:
            predicted = "" if self.step_s is None else f", predicted {format_seconds(self.step_s)}"
            notes.append(f"measured {format_seconds(measured.step_s)} a step{predicted}; seconds in boxes are of work")
        stages = tuple(
            replace(stage, works=tuple(_measured_work(work, measured, self.step_s) for work in stage.works))
            for stage in self.lanes.stages
        )
        lanes = []
        for head in self.lanes.lanes:
            lane = replace(
                head,
                deployed=tuple(
                    replace(model, seconds=f"predicted {model.seconds}") if model.seconds else model
                    for model in head.deployed
                ),
            )
            peaks = measured.memory.get(lane.name, {})
            if not peaks:
                lanes.append(lane)
                continue
            whose, most = max(peaks.items(), key=lambda item: item[1])
            text = f"measured at most {format_quantity(most, 'bytes')}, of {whose}"
            full = self.memory.get(lane.name, {}).get("capacity", 0.0)
            # A process on a CPU shares the memory of its machine: there is nothing that it would fill.
            on_device = lane.name not in (HOST, LOCAL.name) and bool(full)
            share = most / full if on_device else 0.0
            foretold = tuple(f"predicted {line}" for line in lane.memory)
            lanes.append(replace(lane, memory=foretold, measured_memory=(text,), measured_full=share))
        return replace(self.lanes, notes=tuple(notes), lanes=tuple(lanes), stages=stages)


def _measured_work(work: LaneWork, measured: Measured, predicted_step_s: float | None) -> LaneWork:
    if work.kind == "next":
        sent = measured.weights_sent.get(work.key)
        if sent is None:
            return work
        seconds, size = sent
        told = f"measured {format_quantity(size, 'bytes')}, {format_seconds(seconds)}"
        note = f"predicted {work.note}" if work.note else ""
        return replace(work, note=told, measured_note=note)
    took = measured.work_s.get(work.key)
    if took is None:
        return work
    received = measured.received_bytes.get(work.key)
    note = "" if not received else f"received {format_quantity(received, 'bytes')}"
    share = took / measured.step_s if measured.step_s else 0.0
    return replace(
        work, measured=format_seconds(took), measured_share=min(share, 1.0), measured_note=note, share=work.share
    )


def _record(kind: type[Record], plain: Mapping[str, Any]) -> Record:
    """Return a frozen record of plain data; JSON has made lists of its tuples."""
    names = {entry.name for entry in fields(kind)}  # type: ignore[arg-type]
    return kind(
        **{name: tuple(value) if isinstance(value, list) else value for name, value in plain.items() if name in names}
    )
