"""The result of a simulation: its figures, as data, as text and as pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from rlgraph.backends.sim.accounting import PoolTime, critical_path
from rlgraph.backends.sim.works import TimelineWriter, Work
from rlgraph.catalog.clusters.cluster import Cluster
from rlgraph.catalog.clusters.units import format_seconds
from rlgraph.errors import NO_SPAN, Diagnostic, UsageMistake, count_phrase
from rlgraph.explain.pipelines import makespan_text, pipeline_chart
from rlgraph.explain.tables import align_columns, percent_text, pool_size_text
from rlgraph.ir.plan import HOST, Plan, Pool
from rlgraph.ops import NODES, model_work_of
from rlgraph.passes.compilation.choose_plan import NOTED
from rlgraph.runs.timeline import Timeline
from rlgraph.viz.boxes import Role
from rlgraph.viz.gantt import Bar, Chart, GanttLane, gantt_svg
from rlgraph.viz.timeline import LOOKS, work_bar

NOTED_TRANSITIONS = 0.01
"""The share of a step from which what models take to leave their devices and come back is told."""
MILLION = 1e6
STAGED = 50_000
"""The most pipeline slices that a timeline has: some megabytes."""


@dataclass(frozen=True)
class Simulation:
    """A simulation of some steps of a plan, in seconds since it began."""

    program: str
    plan: Plan
    cluster: Cluster
    works: tuple[Work, ...] = field(repr=False)
    """The works of all these steps, in the order in which they ended."""
    pools: tuple[PoolTime, ...] = field(repr=False)
    """The times of each pool, over all steps."""
    began: float
    ends: tuple[float, ...]
    """The end of each step."""
    rows: float
    """The number of rows that were sampled or encoded in all steps."""
    tokens: float
    """The number of tokens of these rows, with their prompts."""
    trained: float
    """The number of rows that something was trained on."""
    ages: Mapping[int, float]
    """The number of trained rows that models sampled, by how many versions their weights were behind."""
    warm_up: int
    """The number of steps before these, which took until `began`."""
    steady: bool | None
    """Whether the two halves of the steps take the same time; None if they are too few to tell."""
    under_way: float
    """The average number of steps in flight."""
    untrained: float = 0.0
    """The average number of rows that were being sampled, or waited for that or to be trained on."""
    cycle: float | None = None
    """The seconds of a step whose works do not wait for turns; None if that was not asked."""
    source: str = ""
    """The source of the cost model's constants."""
    roles: Mapping[str, Role] = field(default_factory=dict, repr=False)
    """The roles of the models by name, for their colours."""
    interrupted: bool = False
    """Whether Ctrl-C has ended it before all steps were done."""

    @property
    def steps(self) -> int:
        """Return the number of steps."""
        return len(self.ends)

    @property
    def seconds(self) -> float:
        """Return the average seconds of a step."""
        return (self.ends[-1] - self.began) / self.steps

    @property
    def mean_batches_in_flight(self) -> float:
        """Return of how many steps, on average, rows were being sampled or waited to be trained on. By Little's law
        (Operations Research 9:383, 1961) rows are so many versions behind, to less than one: versions are counted."""
        return self.untrained / (sum(self.ages.values()) / self.steps) if self.ages else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Return the tokens of the batch, prompts included, over the time of the step: the throughput of HybridFlow
        (arXiv 2409.19256)."""
        return self.tokens / (self.ends[-1] - self.began)

    @property
    def rows_per_second(self) -> float:
        """Return the sampled and encoded rows over the time of the steps."""
        return self.rows / (self.ends[-1] - self.began)

    @property
    def price_per_hour(self) -> float:
        """Return the price of the devices that the plan uses, in US dollars an hour."""
        used = {pool.first + number for pool in self.plan.pools for number in range(pool.devices)}
        islands = self.cluster.islands
        return sum(islands[self.cluster.node_group_number(device)].device.price for device in used)

    @property
    def price_per_million(self) -> float:
        """Return the price of a million tokens in US dollars."""
        return self.price_per_hour / 3600 / self.tokens_per_second * MILLION

    @property
    def busiest_pool(self) -> PoolTime:
        """Return the pool that is at work for longest."""
        return max(self.pools, key=lambda pool: pool.busy)

    @property
    def least_step_seconds(self) -> float:
        """Return the least seconds that a step takes: what its fullest pool works for it, and its longest cycle."""
        return max(self.busiest_pool.busy / self.steps, self.cycle or 0.0)

    @cached_property
    def critical_path(self) -> tuple[Work, ...]:
        """Return the critical path of the last step."""
        return critical_path([work for work in self.works if work.end <= self.ends[-1]], self.last_step_start)

    def host_seconds(self, calls: bool) -> float:
        """Return the seconds of a step that one process works for all pools; of these only the calls of functions,
        which a pool of cpus could take over."""
        works = (work for work in self.works if HOST in work.pools and (not calls or NODES[work.op].foreign))
        return sum(work.seconds for work in works) / self.steps

    @property
    def transition_seconds(self) -> float:
        """Return the seconds of a step in which models come to the devices that others had, and leave them again, of
        the pool in which that takes the longest."""
        return max((self._pool_transition_s(time.pool) for time in self.pools), default=0.0)

    def _pool_transition_s(self, pool: str) -> float:
        works = (work for work in self.works if pool in work.pools and self.began <= work.start < self.ends[-1])
        return sum(work.parts.get("onload", 0.0) for work in works) / self.steps

    @property
    def last_step_start(self) -> float:
        """Return when the last step began."""
        return self.ends[-2] if self.steps > 1 else self.began

    # Shown

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data; times are in seconds."""
        return {
            "program": self.program,
            "cluster": self.cluster.text,
            "constants": self.source,
            "steps": self.steps,
            "warm_up": {"steps": self.warm_up, "seconds": self.began},
            "steady": self.steady,
            "under_way": self.under_way,
            "seconds": self.seconds,
            "bound": {
                "seconds": self.least_step_seconds,
                "pool": self.busiest_pool.pool,
                "load": self.busiest_pool.busy / self.steps,
                "cycle": self.cycle,
            },
            "step_seconds": [end - start for start, end in pairwise((self.began, *self.ends))],
            "tokens": self.tokens / self.steps,
            "rows": self.rows / self.steps,
            "trained_rows": self.trained / self.steps,
            "staleness": {
                "mean": mean_staleness_versions(self.ages),
                "most": max(self.ages, default=0),
                "batches": self.mean_batches_in_flight,
                "rows": {str(age): rows / self.steps for age, rows in sorted(self.ages.items())},
            },
            "tokens_per_second": self.tokens_per_second,
            "rows_per_second": self.rows_per_second,
            "price_per_hour": self.price_per_hour,
            "price_per_million_tokens": self.price_per_million,
            "pools": [
                {
                    "pool": time.pool,
                    "busy": time.busy / self.steps,
                    "idle": time.idle / self.steps,
                    "waited": [{**asdict(wait), "seconds": seconds / self.steps} for wait, seconds in time.waited],
                }
                for time in self.pools
            ],
            "transitions": {"seconds": self.transition_seconds},
            "host": {"seconds": self.host_seconds(calls=False), "functions": self.host_seconds(calls=True)},
            "critical_path": [
                {
                    "name": work.name,
                    "op": work.op,
                    "pools": list(work.pools),
                    "start": max(0.0, work.start - self.last_step_start),
                    "seconds": work.seconds_within(self.last_step_start, self.ends[-1]),
                    "parts": dict(work.parts),
                    "after": work.waited_for.name if work.waited_for else None,
                    "because": "pool" if work.waited_for_pool else "input",
                }
                for work in self.critical_path
            ],
        }

    def to_svg(self) -> str:
        """Return the last step as a Gantt chart."""
        critical = set(map(id, self.critical_path))
        bars = [
            work_bar(
                pool,
                work.name,
                _kind(work),
                max(0.0, work.start - self.last_step_start),
                min(work.end, self.ends[-1]) - self.last_step_start,
                id(work) in critical,
            )
            for work in self.works
            if work.start >= self.last_step_start or work.end > self.last_step_start
            for pool in dict.fromkeys(work.pools)
        ]
        several = {pool.name for pool in self.plan.pools if self.plan.works_independently(pool)}
        bars = [bar for bar in bars if bar.lane not in several] + _merged([bar for bar in bars if bar.lane in several])
        lanes = [
            GanttLane(pool.name, f"{_devices(pool)}, {percent_text(time.busy, time.busy + time.idle)} busy")
            for pool, time in zip(self.plan.pools, self.pools, strict=True)
        ]
        note = f"{format_seconds(self.seconds)} a step on {self.cluster.text}, {self.tokens_per_second:,.0f} tokens/s"
        step = Chart(lanes, bars, self.ends[-1] - self.last_step_start, [*LOOKS.values()])
        return gantt_svg(self.program, note, [step, *self._pipelines()])

    def _pipelines(self) -> Iterator[Chart]:
        """Yield, for each training on several stages, its longest work in the last step, stage by stage."""
        longest: dict[str, Work] = {}
        for work in self.works:
            if work.stages is not None and self.last_step_start <= work.start < self.ends[-1]:
                before = longest.setdefault(work.name, work)
                longest[work.name] = work if work.seconds > before.seconds else before
        for work in longest.values():
            assert work.stages is not None
            fusion = work.stages()
            entered = format_seconds(work.pipeline_start - self.last_step_start)
            yield pipeline_chart(
                fusion, self.roles, [f"{makespan_text(fusion)}; the longest of the step, from {entered} on"]
            )

    def write_trace(self, path: str | Path) -> None:
        """Write a timeline of all steps, which ui.perfetto.dev shows. Raise RunError where it cannot be written."""
        trace = Timeline()
        teller = TimelineWriter(trace, STAGED)
        for work in self.works:
            teller.write_work(work)
        trace.write_file(Path(path))

    def write_svg(self, path: str | Path) -> None:
        """Write the picture of the last step. Raise UsageMistake if it cannot be written."""
        try:
            Path(path).write_text(self.to_svg(), "utf-8")
        except OSError as error:
            message = f"the picture `{path}` cannot be written: {(error.strerror or str(error)).lower()}"
            raise UsageMistake(Diagnostic("E0963", message, NO_SPAN, "give another file with `--svg`")) from None

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"image/svg+xml": self.to_svg(), "text/plain": str(self)}


def _merged(bars: list[Bar]) -> list[Bar]:
    """Return the bars with those of one work, which workers of a pool do side by side, as one bar."""
    merged: list[Bar] = []
    for bar in sorted(bars, key=lambda bar: (bar.lane, bar.name, bar.start)):
        last = merged[-1] if merged else None
        if last is not None and (last.lane, last.name) == (bar.lane, bar.name) and bar.start <= last.end:
            merged[-1] = replace(last, end=max(last.end, bar.end), critical=last.critical or bar.critical)
        else:
            merged.append(bar)
    return merged


# For people


def _lines(sim: Simulation) -> Iterator[str]:
    """Yield the lines of the text."""
    state = " in steady state" if sim.steady else ""
    yield f"{sim.program} on {sim.cluster.text}: {format_seconds(sim.seconds)} a step{state} by the simulator"
    yield ""
    sizes = {pool.name: pool.devices or pool.cpus for pool in sim.plan.pools}
    rows = [("", "pool", "devices", "busy", "", "", "idle", "", "waiting for")]
    for time in sim.pools:
        total_s = time.busy + time.idle
        count = str(sizes[time.pool]) if time.pool != HOST else "-"
        busy, idle = format_seconds(time.busy / sim.steps), format_seconds(time.idle / sim.steps)
        shares = percent_text(time.busy, total_s), percent_text(time.idle, total_s)
        rows.append(("", time.pool, count, busy, shares[0], "", idle, shares[1], _waits(time, sim.steps)))
    yield from align_columns("><<>><>><", rows)
    calls = sim.host_seconds(calls=True)
    if calls > NOTED * sim.seconds:
        share = percent_text(calls, sim.seconds)
        call_seconds = format_seconds(calls)
        yield f"the host calls functions for {call_seconds} of a step ({share}): a pool of cpus takes them over"
    if sim.transition_seconds > NOTED_TRANSITIONS * sim.seconds:
        moved, share = format_seconds(sim.transition_seconds), percent_text(sim.transition_seconds, sim.seconds)
        yield f"models that take turns on their devices leave them and come back for {moved} of a step ({share})"
    yield ""
    total = sim.ends[-1] - sim.last_step_start
    path = [("", "start", "seconds", "", "critical path", "on", "began after")]
    for first, times, seconds in _folded(sim.critical_path, sim.last_step_start):
        name, on = first.name + (f" x{times}" if times > 1 else ""), " and ".join(dict.fromkeys(first.pools))
        began, took = format_seconds(max(0.0, first.start - sim.last_step_start)), format_seconds(seconds)
        path.append(("", began, took, percent_text(seconds, total), name, on, _because(first, sim.last_step_start)))
    yield from align_columns(">>>><<<", path)
    yield ""
    yield (
        f"{sim.tokens / sim.steps:,.0f} tokens in {sim.rows / sim.steps:,.0f} rows a step: "
        f"{sim.tokens_per_second:,.0f} tokens/s, {sim.rows_per_second:,.4g} rows/s"
    )
    if sim.price_per_hour:
        yield f"${sim.price_per_hour:,.2f} an hour: ${sim.price_per_million:,.4g} for a million tokens"
    if sim.cycle is not None:
        yield from _steady(sim)
    yield f"constants of the cost model: {sim.source}"


def _steady(sim: Simulation) -> Iterator[str]:
    """Yield the lines about a simulation of several steps."""
    judged = {None: "too few to say whether they are steady", False: "not steady: simulate more", True: "steady"}
    yield (
        f"{count_phrase(sim.steps, 'step')} after {sim.warm_up} of warm-up, which took {format_seconds(sim.began)}: "
        f"{judged[sim.steady]}; {sim.under_way:.2g} under way on average"
    )
    full, cycle = sim.busiest_pool, format_seconds(sim.cycle or 0.0)
    yield (
        f"bound: {format_seconds(sim.least_step_seconds)} a step, "
        f"{percent_text(sim.least_step_seconds, sim.seconds)} of it: `{full.pool}` works "
        f"{format_seconds(full.busy / sim.steps)} for it, the longest cycle of dependences takes {cycle}"
    )
    rows = sum(sim.ages.values())
    if rows:
        ages = ", ".join(f"{age} in {percent_text(sim.ages[age], rows)} of the rows" for age in sorted(sim.ages))
        age, batches = f"{mean_staleness_versions(sim.ages):.3g} on average", f"{sim.mean_batches_in_flight:.2g}"
        yield f"staleness: {ages}; {age}, with {batches} batches being sampled or waiting"
    if sim.trained != sim.rows:
        yield f"{sim.trained / sim.steps:,.0f} of {sim.rows / sim.steps:,.0f} rows a step are trained on"


def mean_staleness_versions(ages: Mapping[int, float]) -> float:
    """Return the mean of how many versions rows are behind."""
    rows = sum(ages.values())
    return sum(age * count for age, count in ages.items()) / rows if rows else 0.0


def _folded(path: tuple[Work, ...], began: float) -> list[tuple[Work, int, float]]:
    """Report works of one name in one place once: the first, how many there are, and their seconds of the step."""
    grouped: dict[tuple[str, tuple[str, ...]], list[Work]] = {}
    for work in path:
        grouped.setdefault((work.name, work.pools), []).append(work)
    return [
        (works[0], len(works), sum(work.seconds_within(began, work.end) for work in works))
        for works in grouped.values()
    ]


def _because(work: Work, began: float) -> str:
    """Return the reason why a work began when it did."""
    if work.waited_for is None or work.start <= began:
        return "the step's start"
    return f"{work.waited_for.name}, which had the pool" if work.waited_for_pool else work.waited_for.name


def _waits(time: PoolTime, steps: int) -> str:
    """Return the longest waits, down to a hundredth of the idle time."""
    longest = [(wait, seconds) for wait, seconds in time.waited[:3] if seconds > time.idle / 100]
    return ", ".join(f"{wait} {format_seconds(seconds / steps)}" for wait, seconds in longest)


def _devices(pool: Pool) -> str:
    return pool_size_text(pool) if pool.devices or pool.cpus else "no device"


def _kind(work: Work) -> str:
    """Return the kind of a work as the picture's legend has it."""
    kinds = {"generates": "generate", "scores": "forward", "trains": "train"}
    return kinds.get(model_work_of(work.op) or "", "sync" if work.op == "sync" else "host")
