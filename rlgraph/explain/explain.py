"""The explanation of a plan: what its step goes to, what other ways to share devices lose, and what would help."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from html import escape
from math import inf
from time import monotonic
from typing import Any

from rlgraph.catalog.clusters.units import shown_seconds
from rlgraph.explain.choice import show_choice
from rlgraph.explain.critical import BOUNDS, KINDS, Stretch, critical_path, goes_to
from rlgraph.explain.parted import show_parted
from rlgraph.explain.sharing import OVER, Sharing, pools, sharing, strategies
from rlgraph.explain.tables import table
from rlgraph.explain.variants import ONE_STEP_OFF, Other, others
from rlgraph.passes.compilation.blocks import unsaid
from rlgraph.passes.compilation.choosing import Hosted, hosted, tokens
from rlgraph.passes.compilation.compilation import Compilation
from rlgraph.passes.compilation.finalists import better
from rlgraph.passes.placement.choose import SPARE, Choice, candidates, how_fused, planned, problem_of
from rlgraph.passes.placement.search.incumbent import Found
from rlgraph.passes.placement.search.problem import Problem
from rlgraph.passes.placement.search.progress import OutOfTime
from rlgraph.passes.placement.search.search import Search
from rlgraph.viz.plot import Row, bars

COARSE = 0.03
"""The search gap, as a share, for a changed question: a change saves at least what is reported."""

LARGE = 64
"""The number of devices, or of ways to share them, beyond which only some ways are searched after a change: a search
of all takes seconds."""

WORTH = 0.01
"""The least saving that is reported, as a share."""

MOST = 3
"""The most changes that are reported."""

LONGEST = 8
"""The most works of the critical path that are reported."""

STEPS = 2
"""The number of steps that are simulated if steps overlap."""

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
class Change:
    """A change, and the best plan after it."""

    name: str
    detail: str
    seconds: float | None
    """The seconds of a step; None if nothing fits, or nothing was found."""
    price: float | None
    saves: float
    """The saved share of what is minimized; negative if that grows, and minus infinity if nothing fits."""
    over: bool = False
    """Whether the time was over before anything was found, so that the change may still fit, or help."""
    beside: float | None = None
    """The seconds of the step that it is compared with, if these are not the search's."""
    said: bool = False
    """Whether lines of a schedule are all that it takes: no other devices, no other algorithm."""


@dataclass(frozen=True)
class Explanation:
    """The reasons why a plan was chosen. Seconds and US dollars are those of a step."""

    program: str
    choice: Choice = field(repr=False)
    predicted: Mapping[str, Any] = field(repr=False)
    """The prediction as a plan file has it."""
    path: tuple[Stretch, ...]
    """The critical path."""
    alternatives: tuple[Alternative, ...]
    changes: tuple[Change, ...]
    """All changes that were tried, the one that saves most first."""

    @property
    def seconds(self) -> float:
        """Return the seconds of a step, with one work after the other on a pool as the search lays them out; if steps
        overlap, those of one of many."""
        return self.choice.found.seconds

    @property
    def price(self) -> float:
        return _price(self.choice.problem, self.choice.found)

    @property
    def goes_to(self) -> dict[str, float]:
        """Return the seconds by kind of work on the critical path, the most first."""
        return goes_to(self.path)

    @property
    def host(self) -> Hosted:
        """Return what one process does for all pools."""
        return hosted(self.choice)

    @property
    def helpful(self) -> list[Change]:
        """Return the changes that would help most, of those that leave the algorithm as it is; and as many of those
        that are made in a schedule."""
        helpful = [each for each in self.changes if each.saves > WORTH and each.name != ONE_STEP_OFF]
        said = [each for each in helpful if each.said]
        return [each for each in helpful if each in helpful[:MOST] or each in said[:MOST]]

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
            "price": self.price,
            "gap": self.choice.found.gap,
            "tokens_per_second": tokens(self.choice) / self.seconds if self.seconds else 0.0,
            "goes_to": self.goes_to,
            "host": {"seconds": self.host.seconds, "functions": dict(self.host.functions)},
            "critical_path": [
                {
                    "name": each.name,
                    "kind": each.kind,
                    "start": each.start,
                    "seconds": each.seconds,
                    "parts": dict(each.parts),
                }
                for each in self.path
            ],
            "alternatives": [
                {
                    "name": each.name,
                    "chosen": each.chosen,
                    "seconds": each.seconds,
                    "price": each.price,
                    "pools": each.pools,
                    "refused": each.refused or None,
                    "goes_to": dict(each.goes_to),
                }
                for each in self.alternatives
            ],
            "changes": [
                {
                    "name": each.name,
                    "detail": each.detail,
                    "seconds": each.seconds,
                    "price": each.price,
                    "saves": None if each.seconds is None else each.saves,
                    "over": each.over,
                    "said": each.said,
                }
                for each in self.changes
            ],
        }

    def to_svg(self) -> str:
        """Return an SVG with a bar for each way to share pools."""
        rows = []
        for each in self.alternatives:
            parts = tuple((kind, each.goes_to[kind]) for kind in KINDS if kind in each.goes_to)
            total = "" if each.seconds is None else shown_seconds(each.seconds)
            rows.append(Row(each.name, each.pools or each.refused, parts, total, each.chosen))
        note = f"a step on {self.choice.question.cluster.text}, by ways to share devices"
        return bars(self.program, note, rows, "s")

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        svg, text = self.to_svg(), str(self)
        return {"image/svg+xml": svg, "text/html": f"{svg}<pre>{escape(text)}</pre>", "text/plain": text}


def explain(compiled: Compilation, seconds: float | None = None) -> Explanation:
    """Explain the plan of a program that was compiled for a cluster. seconds: for all searches together; None: the
    limit of the search for its plan. Raise ProgramError if no plan fits."""
    choice = compiled.choice
    ends = monotonic() + (choice.question.search_seconds if seconds is None else seconds)
    alternatives = []
    known = strategies(choice, ends)
    for strategy in known:
        found = strategy.found
        if found is None:
            alternatives.append(Alternative(strategy.name, False, None, None, "", strategy.refused, {}))
            continue
        spent = goes_to(critical_path(strategy.problem, found))
        price, shared = _price(strategy.problem, found), pools(strategy.problem, found)
        alternatives.append(Alternative(strategy.name, strategy.chosen, found.seconds, price, shared, "", spent))
    large = max(choice.question.cluster.devices, len(candidates(choice.problem, choice.question))) > LARGE
    # What is best after a change mostly shares pools in one of the ways that are known by then.
    some = {strategy.shares for strategy in known if strategy.problem is choice.problem} if large else None
    told = compiled.told["predicted"]["seconds"]
    tried = [replace(changed(choice, other, some, ends, told), said=other.said) for other in others(choice)]
    # The rows of a large cluster take long to simulate.
    tried += [] if choice.question.cluster.devices > LARGE else _streamed(choice, ends)
    changes = sorted(tried, key=lambda each: -each.saves)
    path = critical_path(choice.problem, choice.found)
    return Explanation(compiled.name, choice, compiled.told["predicted"], path, tuple(alternatives), tuple(changes))


def changed(
    choice: Choice, other: Other, near: Set[Sharing] | None = None, ends: float = inf, told: float | None = None
) -> Change:
    """The best plan after a change; of some ways to share pools, where they are given, and as it is found until `ends`.
    told: seconds of a step of the choice by the simulator, where work overlaps in it."""
    problem = problem_of(other.question)
    every = candidates(problem, other.question)
    some = [blocks for blocks in every if near is None or sharing(blocks) in near]
    try:
        fuse = how_fused(problem, other.question)
        found = Search(problem, some, COARSE, ends - monotonic(), SPARE, fuse=fuse).best()
    except OutOfTime:
        return Change(other.name, other.detail, None, None, -inf, over=True)
    if other.helps and (found is None or found.value > choice.found.value):
        found, problem = choice.found, choice.problem
    if found is None:
        return Change(other.name, other.detail, None, None, -inf)
    if problem.older and not choice.problem.older and found.value < choice.found.value:
        # Beside a step that is alone: what a steady state leaves out is not told as a saving.
        made = Choice(planned(other.question, problem, found), found, problem, other.question)
        made = better(made, replace(choice, question=other.question), steps=STEPS)
        seconds = made.simulated or made.found.seconds
        value = problem.value(seconds, made.found.blocks, made.found.devices)
        found = replace(made.found, seconds=seconds, value=value)
        beside = told or choice.found.seconds
        was = choice.problem.value(beside, choice.found.blocks, choice.found.devices)
        return Change(other.name, other.detail, seconds, _price(problem, found), 1 - value / was, beside=beside)
    saves = 1 - found.value / choice.found.value if choice.found.value else 0.0
    return Change(other.name, other.detail, found.seconds, _price(problem, found), saves)


def _streamed(choice: Choice, ends: float) -> Iterator[Change]:
    """Yield a change for each table that could stream in the chosen plan."""
    problem, found = choice.problem, choice.found
    for each in unsaid(choice, ends):
        saves = 1 - each.seconds / each.whole if each.whole else 0.0
        price = _price(problem, replace(found, seconds=each.seconds))
        line = f"`stream {each.table}(block={each.block})`"
        yield Change(line, "", each.seconds, price, saves, beside=each.whole, said=True)


def _price(problem: Problem, found: Found) -> float:
    return found.seconds * problem.price(found.blocks, found.devices)


# For people


def _lines(found: Explanation) -> Iterator[str]:
    yield from show_choice(found.choice, found.predicted)
    yield ""
    whole = sum(found.goes_to.values())
    how = ", one work after the other" if "in_turn_seconds" in found.predicted else ""
    if (older := found.choice.problem.older) > 0:
        alone = whole > (1 + LEAST) * found.seconds
        how = f", of which {older + 1} are under way" if alone else " on the pool that has most to do"
    yield f"what the step goes to{how}: {_shares(found.goes_to, whole)}"
    yield from show_parted(found.choice)
    longest = sorted(found.path, key=lambda each: -each.seconds)[:LONGEST]
    rows = [
        (each.name, shown_seconds(each.seconds), _percent(each.seconds, whole), _bounds(each))
        for each in sorted(longest, key=lambda each: each.start)
        if each.seconds > LEAST * whole
    ]
    yield from table("<>><", [("critical path", "seconds", "", "bound by"), *rows])
    if len(found.alternatives) > 1:
        yield ""
        rows = [_alternative(found, each) for each in found.alternatives]
        yield from table("<>><", [("ways to share devices", "seconds", "", "pools (devices)"), *rows])
    yield ""
    yield from _advice(found)


def _alternative(found: Explanation, each: Alternative) -> tuple[str, str, str, str]:
    if each.seconds is None:
        return each.name, "-", "", each.refused
    if each.chosen:
        return each.name, shown_seconds(each.seconds), "chosen", each.pools
    value = each.seconds if found.choice.question.goal == "time" else each.price or 0.0
    best = found.choice.found.value
    # Of large clusters a plan that is near enough was chosen: what is looked at alone may come a little nearer.
    loses = max(0.0, value / best - 1) if best else 0.0
    unit = "" if found.choice.question.goal == "time" else " price"
    return each.name, shown_seconds(each.seconds), f"+{loses:.1%}{unit}", each.pools


def _advice(found: Explanation) -> Iterator[str]:
    helpful = found.helpful
    most, seconds = next(iter(found.goes_to.items()), ("", 0.0))
    if not helpful:
        tried = ", ".join(each.name for each in found.changes if each.seconds is not None)
        yield f"nothing that was tried saves more than {WORTH:.0%}: {tried}" if tried else "nothing was tried"
    else:
        of = "that" if found.choice.problem.older else "the step"
        yield f"{most} is {_percent(seconds, sum(found.goes_to.values()))} of {of}; what would help most:"
    for each in helpful:
        yield f"  {_called(each)} would {_effect(found, each)}"
    for each in found.changes:
        less = each.name.startswith("one node less") and found.choice.question.goal == "time"
        if (less or each.name == ONE_STEP_OFF) and each not in helpful and not each.over:
            yield f"{_called(each)} would {_effect(found, each)}"
    if over := [each.name for each in found.changes if each.over]:
        yield f"{OVER} before these were searched: {', '.join(over)}"


def _called(change: Change) -> str:
    return f"{change.name} ({change.detail})" if 0 < len(change.detail) <= LONG_TEXT else change.name


def _effect(found: Explanation, change: Change) -> str:
    """Return a change's effect as words: `save 14% of the time, and cost 3% more a step`."""
    if change.seconds is None or change.price is None:
        return "not fit"
    before = change.beside or found.seconds
    was = found.price * before / found.seconds
    time, price = 1 - change.seconds / before, 1 - change.price / was if was else 0.0
    slower = _told(time, "take as long", f"take {-time:.0%} longer", f"save {time:.0%} of the time")
    return f"{slower}, and {_told(price, 'cost as much', f'cost {-price:.0%} more', f'cost {price:.0%} less')} a step"


def _told(saved: float, same: str, more: str, less: str) -> str:
    return same if abs(saved) < LEAST else more if saved < 0 else less


def _bounds(stretch: Stretch) -> str:
    """Return what takes at least a tenth of a work's time, the most first."""
    told = sorted(stretch.parts.items(), key=lambda each: -each[1])
    most = [(name, seconds) for name, seconds in told if seconds > stretch.seconds / 10]
    return ", ".join(f"{BOUNDS[name]} {_percent(seconds, stretch.seconds)}" for name, seconds in most)


def _shares(spent: Mapping[str, float], whole: float) -> str:
    return ", ".join(f"{kind} {_percent(seconds, whole)}" for kind, seconds in spent.items() if seconds > LEAST * whole)


def _percent(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole else "0%"
