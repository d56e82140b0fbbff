"""The data of a step's picture by time, as the simulator predicts it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rlgraph.catalog.clusters.units import format_seconds
from rlgraph.errors import RlgraphError
from rlgraph.explain.tables import percent_text, pool_size_text
from rlgraph.ops import model_work_of
from rlgraph.passes.compilation.compilation import Compilation
from rlgraph.viz.boxes import Role
from rlgraph.viz.time_plan import TimedWork, TimePlan

if TYPE_CHECKING:
    from rlgraph.explain.simulation import Simulation

MERGED = 1e-3
"""Pauses of this share of the step, or shorter ones, within the same work are not drawn."""
ROLES: dict[str, Role] = {"generates": "policy", "scores": "reward", "trains": "critic"}


def predicted_step(compiled: Compilation) -> Simulation | None:
    """Return a simulated step of a plan that was chosen for a cluster; None where nothing is predicted of it."""
    if compiled.target is None and "seconds" not in compiled.plan_file_sections.get("predicted", {}):
        return None
    # What simulates loads NumPy, which a picture of a program needs not.
    from rlgraph.explain.simulate import simulate

    try:
        return simulate(compiled)
    except RlgraphError:
        # A picture is no place to learn that a plan does not fit: `compile` and `simulate` say so.
        return None


def time_plan(sim: Simulation) -> TimePlan:
    """Return the last step of a simulation, to draw."""
    lane_of = {pool.name: at for at, pool in enumerate(sim.plan.pools)}
    critical, seconds = set(map(id, sim.critical_path)), sim.ends[-1] - sim.last_step_start
    works: list[TimedWork] = []
    for work in sim.works:
        if work.end <= sim.last_step_start or work.start >= sim.ends[-1]:
            continue
        start, end = max(0.0, work.start - sim.last_step_start), min(work.end, sim.ends[-1]) - sim.last_step_start
        role = ROLES.get(model_work_of(work.op) or "", "")
        if work.name.startswith("train "):
            # Of several that are trained, each has its own colour.
            role = sim.roles.get(work.name.removeprefix("train "), role)
        for pool in dict.fromkeys(work.pools):
            works.append(TimedWork("", lane_of[pool], work.name, start, end, role, critical=id(work) in critical))
    placed = tuple(
        replace(work, id=f"w{number}", seconds=format_seconds(work.end - work.start))
        for number, work in enumerate(_joined(works, MERGED * seconds), 1)
    )
    lanes = tuple(
        (
            pool.name,
            f"{pool_size_text(pool)}, {percent_text(time.busy, time.busy + time.idle)} busy",
        )
        for pool, time in zip(sim.plan.pools, sim.pools, strict=True)
    )
    work_s = format_seconds(sum(time.busy for time in sim.pools) / sim.steps)
    notes = (
        f"{format_seconds(seconds)} on the clock by the simulator, {sim.tokens_per_second:,.0f} tokens/s",
        f"{work_s} of work in all pools: they work at the same time, or wait",
    )
    return TimePlan(sim.program, notes, lanes, placed, seconds)


def _joined(works: list[TimedWork], pause: float) -> list[TimedWork]:
    """Return works of one name in a pool that follow one another as one: mini-batches, or replicas side by side."""
    joined: list[TimedWork] = []
    last: dict[tuple[int, str], int] = {}
    for work in sorted(works, key=lambda work: work.start):
        key = work.lane, work.title
        before = joined[last[key]] if key in last else None
        if before is not None and work.start <= before.end + pause:
            end, critical = max(before.end, work.end), before.critical or work.critical
            joined[last[key]] = replace(before, end=end, critical=critical)
        else:
            last[key] = len(joined)
            joined.append(work)
    return joined
