"""The explanation of a plan: what its step goes to, what other ways to share devices lose, and what would help."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from html import escape
from math import inf
from time import monotonic
from typing import Any

from rlgraph.catalog.clusters.units import format_seconds
from rlgraph.explain.chosen_plan import chosen_plan_lines
from rlgraph.explain.chunked_stages import chunked_stage_lines
from rlgraph.explain.critical_path import BOUNDS, KINDS, CriticalWork, critical_path, seconds_by_kind
from rlgraph.explain.evaluated_change import EvaluatedChange, evaluate_change, step_price, streamed_changes
from rlgraph.explain.placement_strategies import OVER, placement_strategies, pools_text
from rlgraph.explain.tables import align_columns, percent_text
from rlgraph.explain.variants import ONE_STEP_OFF, possible_variants
from rlgraph.passes.compilation.choose_plan import HostWork, host_work, tokens_per_step
from rlgraph.passes.compilation.compilation import Compilation
from rlgraph.passes.placement.choose import PlacementChoice, candidate_partitions
from rlgraph.passes.placement.search.progress import ProgressLine, SearchControl
from rlgraph.passes.placement.search.search import uncollected
from rlgraph.viz.plot import BarRow, bars_svg

LARGE = 64
"""The number of devices, or of ways to share them, beyond which only some ways are searched after a change: a search
of all takes seconds."""

WORTH = 0.01
"""The least saving that is reported, as a share."""

MOST = 3
"""The most changes that are reported."""

LONGEST = 8
"""The most works of the critical path that are reported."""

LONG_TEXT = 60
"""The most characters of a cluster's text that is written in a sentence."""

LEAST = 0.005
"""The least share of a step's time or price that is reported."""


@dataclass(frozen=True)
class Alternative:
    """The best plan of a way to share pools."""

    name: str
    chosen: bool
    seconds: float | None
    """The seconds of a step; None if nothing fits."""
    price: float | None
    """The price of a step in US dollars."""
    pools: str
    refused: str
    """The reason why nothing fits."""
    goes_to: Mapping[str, float]
    """The seconds of the critical path by kind of work."""


@dataclass(frozen=True)
class Explanation:
    """The reasons why a plan was chosen. Seconds and US dollars are those of a step."""

    program: str
    choice: PlacementChoice = field(repr=False)
    predicted: Mapping[str, Any] = field(repr=False)
    """The prediction as a plan file has it."""
    path: tuple[CriticalWork, ...]
    """The critical path."""
    alternatives: tuple[Alternative, ...]
    changes: tuple[EvaluatedChange, ...]
    """All changes that were tried, the one that saves most first."""

    @property
    def seconds(self) -> float:
        """Return the seconds of a step, with one work after the other on a pool as the search lays them out; if steps
        overlap, those of one of many."""
        return self.choice.search_result.seconds

    @property
    def step_price_dollars(self) -> float:
        """Return the price of a step in US dollars."""
        return step_price(self.choice.problem, self.choice.search_result)

    @property
    def seconds_by_kind(self) -> dict[str, float]:
        """Return the seconds by kind of work on the critical path, the most first."""
        return seconds_by_kind(self.path)

    @property
    def host_work(self) -> HostWork:
        """Return what one process does for all pools."""
        return host_work(self.choice)

    @property
    def most_helpful(self) -> list[EvaluatedChange]:
        """Return the changes that would help most, of those that leave the algorithm as it is; and as many of those
        that are made in a schedule."""
        helpful = [change for change in self.changes if change.saves > WORTH and change.name != ONE_STEP_OFF]
        in_schedule = [change for change in helpful if change.said]
        return [change for change in helpful if change in helpful[:MOST] or change in in_schedule[:MOST]]

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "program": self.program,
            "cluster": self.choice.question.cluster.text,
            "minimize": self.choice.question.goal,
            "seconds": self.seconds,
            "overlapped_seconds": self.predicted["seconds"]
            if {"in_turn_seconds", "steady_seconds"} & self.predicted.keys()
            else None,
            "price": self.step_price_dollars,
            "gap": self.choice.search_result.gap,
            "tokens_per_second": tokens_per_step(self.choice) / self.seconds if self.seconds else 0.0,
            "goes_to": self.seconds_by_kind,
            "host": {"seconds": self.host_work.seconds, "functions": dict(self.host_work.function_seconds)},
            "critical_path": [
                {
                    "name": stretch.name,
                    "kind": stretch.kind,
                    "start": stretch.start,
                    "seconds": stretch.seconds,
                    "parts": dict(stretch.parts),
                }
                for stretch in self.path
            ],
            "alternatives": [
                {
                    "name": alternative.name,
                    "chosen": alternative.chosen,
                    "seconds": alternative.seconds,
                    "price": alternative.price,
                    "pools": alternative.pools,
                    "refused": alternative.refused or None,
                    "goes_to": dict(alternative.goes_to),
                }
                for alternative in self.alternatives
            ],
            "changes": [
                {
                    "name": change.name,
                    "detail": change.detail,
                    "seconds": change.seconds,
                    "price": change.price,
                    "saves": None if change.seconds is None else change.saves,
                    "over": change.over,
                    "said": change.said,
                }
                for change in self.changes
            ],
        }

    def to_svg(self) -> str:
        """Return an SVG with a bar for each way to share pools."""
        rows = []
        for alternative in self.alternatives:
            parts = tuple((kind, alternative.goes_to[kind]) for kind in KINDS if kind in alternative.goes_to)
            total = "" if alternative.seconds is None else format_seconds(alternative.seconds)
            rows.append(
                BarRow(alternative.name, alternative.pools or alternative.refused, parts, total, alternative.chosen)
            )
        note = f"a step on {self.choice.question.cluster.text}, by ways to share devices"
        return bars_svg(self.program, note, rows, "s")

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        svg, text = self.to_svg(), str(self)
        return {"image/svg+xml": svg, "text/html": f"{svg}<pre>{escape(text)}</pre>", "text/plain": text}


def explain(compiled: Compilation, seconds: float | None = None) -> Explanation:
    """Explain the plan of a program that was compiled for a cluster. seconds: for all searches together; None: the
    limit of the search for its plan. Raise ProgramError if no plan fits."""
    with closing(ProgressLine("explaining")) as line, uncollected():
        # The searches for an explanation end together, and not with that for the plan.
        control = SearchControl(line)
        question = replace(compiled.choice.question, control=control)
        return _explain(compiled, replace(compiled.choice, question=question), control, seconds)


def _explain(
    compiled: Compilation, choice: PlacementChoice, control: SearchControl, seconds: float | None
) -> Explanation:
    ends = monotonic() + (choice.question.search_seconds if seconds is None else seconds)
    alternatives = []
    tried_strategies = placement_strategies(choice, ends)
    for strategy in tried_strategies:
        best = strategy.found
        if best is None:
            alternatives.append(Alternative(strategy.name, False, None, None, "", strategy.refused, {}))
            continue
        spent = seconds_by_kind(critical_path(strategy.problem, best))
        price, shared = step_price(strategy.problem, best), pools_text(strategy.problem, best)
        alternatives.append(Alternative(strategy.name, strategy.chosen, best.seconds, price, shared, "", spent))
    large = (
        max(choice.question.cluster.device_count, len(candidate_partitions(choice.problem, choice.question))) > LARGE
    )
    # The best plan after a change mostly shares pools in one of the ways that were searched.
    near = {strategy.shares for strategy in tried_strategies if strategy.problem is choice.problem} if large else None
    simulated_s = compiled.plan_file_sections["predicted"]["seconds"]
    tried = list[EvaluatedChange]()
    for other in possible_variants(choice):
        best_saved = max((change.saves for change in tried), default=0.0)
        control.doing = f"{len(tried)} changes searched, the best saves {max(best_saved, 0.0):.0%}; {other.name}"
        try:
            change = evaluate_change(choice, other, near, ends, simulated_s)
        except KeyboardInterrupt:
            control.stop("what was not searched by now is left out")
            change = EvaluatedChange(other.name, other.detail, None, None, -inf, over=True)
        tried.append(replace(change, said=other.said))
    # The rows of a large cluster take long to simulate.
    if choice.question.cluster.device_count <= LARGE and not control.stopped:
        try:
            tried.extend(streamed_changes(choice, ends))
        except KeyboardInterrupt:
            control.stop("what was not simulated by now is left out")
    changes = sorted(tried, key=lambda change: -change.saves)
    path = critical_path(choice.problem, choice.search_result)
    return Explanation(
        compiled.name, choice, compiled.plan_file_sections["predicted"], path, tuple(alternatives), tuple(changes)
    )


# For people


def _lines(explanation: Explanation) -> Iterator[str]:
    """Yield the lines of an explanation."""
    yield from chosen_plan_lines(explanation.choice, explanation.predicted)
    yield ""
    total = sum(explanation.seconds_by_kind.values())
    overlap = ", one work after the other" if "in_turn_seconds" in explanation.predicted else ""
    if (older := explanation.choice.problem.staleness_steps) > 0:
        alone = total > (1 + LEAST) * explanation.seconds
        overlap = f", of which {older + 1} are under way" if alone else " on the pool that has most to do"
    yield f"what the step goes to{overlap}: {_shares(explanation.seconds_by_kind, total)}"
    yield from chunked_stage_lines(explanation.choice)
    longest = sorted(explanation.path, key=lambda stretch: -stretch.seconds)[:LONGEST]
    rows = [
        (stretch.name, format_seconds(stretch.seconds), percent_text(stretch.seconds, total), _bounds(stretch))
        for stretch in sorted(longest, key=lambda stretch: stretch.start)
        if stretch.seconds > LEAST * total
    ]
    yield from align_columns("<>><", [("critical path", "seconds", "", "bound by"), *rows])
    if len(explanation.alternatives) > 1:
        yield ""
        rows = [_alternative(explanation, alternative) for alternative in explanation.alternatives]
        yield from align_columns("<>><", [("ways to share devices", "seconds", "", "pools (devices)"), *rows])
    yield ""
    yield from _advice(explanation)


def _alternative(explanation: Explanation, alternative: Alternative) -> tuple[str, str, str, str]:
    """Return the row of an alternative in a table."""
    if alternative.seconds is None:
        return alternative.name, "-", "", alternative.refused
    if alternative.chosen:
        return alternative.name, format_seconds(alternative.seconds), "chosen", alternative.pools
    value = alternative.seconds if explanation.choice.question.goal == "time" else alternative.price or 0.0
    best = explanation.choice.search_result.value
    # For large clusters the search stops at a plan that is near enough; an alternative may come a little nearer.
    loses = max(0.0, value / best - 1) if best else 0.0
    unit = "" if explanation.choice.question.goal == "time" else " price"
    return alternative.name, format_seconds(alternative.seconds), f"+{loses:.1%}{unit}", alternative.pools


def _advice(explanation: Explanation) -> Iterator[str]:
    """Yield the lines about what would help."""
    helpful = explanation.most_helpful
    most, seconds = next(iter(explanation.seconds_by_kind.items()), ("", 0.0))
    if not helpful:
        tried = ", ".join(change.name for change in explanation.changes if change.seconds is not None)
        yield f"nothing that was tried saves more than {WORTH:.0%}: {tried}" if tried else "nothing was tried"
    else:
        of = "that" if explanation.choice.problem.staleness_steps else "the step"
        share = percent_text(seconds, sum(explanation.seconds_by_kind.values()))
        yield f"{most} is {share} of {of}; what would help most:"
    for change in helpful:
        yield f"  {_change_name(change)} would {_effect(explanation, change)}"
    for change in explanation.changes:
        less = change.name.startswith("one node less") and explanation.choice.question.goal == "time"
        if (less or change.name == ONE_STEP_OFF) and change not in helpful and not change.over:
            yield f"{_change_name(change)} would {_effect(explanation, change)}"
    if over := [change.name for change in explanation.changes if change.over]:
        yield f"{OVER} before these were searched: {', '.join(over)}"


def _change_name(change: EvaluatedChange) -> str:
    """Return the name of a change, with its detail if that is short."""
    return f"{change.name} ({change.detail})" if 0 < len(change.detail) <= LONG_TEXT else change.name


def _effect(explanation: Explanation, change: EvaluatedChange) -> str:
    """Return a change's effect as words: `save 14% of the time, and cost 3% more a step`."""
    if change.seconds is None or change.price is None:
        return "not fit"
    before = change.beside or explanation.seconds
    price_before = explanation.step_price_dollars * before / explanation.seconds
    time, price = 1 - change.seconds / before, 1 - change.price / price_before if price_before else 0.0
    slower = _compare(time, "take as long", f"take {-time:.0%} longer", f"save {time:.0%} of the time")
    return (
        f"{slower}, and {_compare(price, 'cost as much', f'cost {-price:.0%} more', f'cost {price:.0%} less')} a step"
    )


def _compare(saved: float, same: str, more: str, less: str) -> str:
    """Return the words for a saved share of something."""
    return same if abs(saved) < LEAST else more if saved < 0 else less


def _bounds(stretch: CriticalWork) -> str:
    """Return what takes at least a tenth of a work's time, the most first."""
    parts = sorted(stretch.parts.items(), key=lambda item: -item[1])
    most = [(name, seconds) for name, seconds in parts if seconds > stretch.seconds / 10]
    return ", ".join(f"{BOUNDS[name]} {percent_text(seconds, stretch.seconds)}" for name, seconds in most)


def _shares(spent: Mapping[str, float], total: float) -> str:
    return ", ".join(
        f"{kind} {percent_text(seconds, total)}" for kind, seconds in spent.items() if seconds > LEAST * total
    )
