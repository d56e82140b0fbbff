"""Finds the best plan for each value of a property of the cluster or the rows, in the sweeps of `what_if`.

    devices=16,32,64         of the whole cluster, as whole nodes of its first group; or nodes=2,4,8
    network=100Gb/s,400Gb/s  of each device; memory=40GB,80GB the same
    device=a100-80gb,h100-80gb
    prompt_tokens=256,512    response_tokens=mean=200,p99=900; mean=400,p99=1800: lengths with commas go with semicolons
    turns=2,8                environment_seconds=1,10: of episodes, written as lengths are
    kept=0.25,0.5,1

Everything else stays as the program was compiled for it, and each plan is searched for anew.

"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from html import escape
from time import monotonic
from typing import Any

from rlgraph.catalog.clusters.devices import device_names_by_alias, known_devices
from rlgraph.catalog.clusters.read import MOST_DEVICES
from rlgraph.catalog.clusters.text import PlacedWord
from rlgraph.catalog.clusters.units import QuantityKind, parse_quantity
from rlgraph.errors import Diagnostic, ProgramError, Source, Span, did_you_mean
from rlgraph.explain.placement_strategies import OVER, pools_text
from rlgraph.explain.tables import align_columns
from rlgraph.explain.variants import with_device_kind, with_device_memory, with_lengths, with_network, with_node_count
from rlgraph.passes.compilation.choose_plan import tokens_per_step
from rlgraph.passes.compilation.compilation import Compilation
from rlgraph.passes.cost.lengths import Lengths, parse_lengths
from rlgraph.passes.placement.choose import choose_before_deadline
from rlgraph.passes.placement.query import PlacementQuery
from rlgraph.passes.placement.search.progress import OutOfTime, ProgressLine, SearchControl
from rlgraph.viz.plot import Panel, PanelAxis, lines_svg

BAD = "E0936"
MILLION = 1e6
LOGARITHMIC = ("devices", "nodes", "network", "memory")


@dataclass(frozen=True)
class SweepPoint:
    """The best plan for a value; if `seconds` is None, nothing fits."""

    value: str
    """The value as the user wrote it."""
    number: float | None
    """The value in base units; None if it is no number."""
    seconds: float | None = None
    """The seconds of a step."""
    price: float | None = None
    """The price of a step in US dollars."""
    tokens: float = 0.0
    """Tokens of the rows that a step samples or encodes, with their prompts."""
    devices: int = 0
    """The number of devices that the plan uses."""
    gap: float = 0.0
    pools: str = ""
    """Which parts share how many devices."""
    over: bool = False
    """Whether the time was over before anything was found, so that something may still fit."""

    @property
    def tokens_per_second(self) -> float | None:
        """Return the tokens of a step over its seconds."""
        return self.tokens / self.seconds if self.seconds else None

    @property
    def price_per_million(self) -> float | None:
        """Return the price of a million tokens in US dollars."""
        return self.price / self.tokens * MILLION if self.price is not None and self.tokens else None


@dataclass(frozen=True)
class Sweep:
    """The best plans over the values of one property."""

    program: str
    cluster: str
    """The cluster that the program was compiled for."""
    name: str
    points: tuple[SweepPoint, ...]
    goal: str = field(default="time")

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "program": self.program,
            "cluster": self.cluster,
            "minimize": self.goal,
            "name": self.name,
            "points": [
                {
                    "value": point.value,
                    "fits": None if point.over else point.seconds is not None,
                    "seconds": point.seconds,
                    "tokens_per_second": point.tokens_per_second,
                    "price": point.price,
                    "price_per_million_tokens": point.price_per_million,
                    "devices": point.devices,
                    "gap": point.gap,
                    "pools": point.pools,
                }
                for point in self.points
            ],
        }

    def to_svg(self) -> str:
        """Return a picture of seconds and price over the values."""
        numbers = [point.number for point in self.points if point.number is not None]
        places = tuple(numbers) if len(numbers) == len(self.points) else ()
        axis = PanelAxis(self.name, tuple(point.value for point in self.points), places, self.name in LOGARITHMIC)
        panels = [
            Panel("seconds a step", tuple(point.seconds for point in self.points)),
            Panel("US dollars for a million tokens", tuple(point.price_per_million for point in self.points)),
        ]
        return lines_svg(self.program, f"best plan for each value, compiled for {self.cluster}", axis, panels)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        svg, text = self.to_svg(), str(self)
        return {"image/svg+xml": svg, "text/html": f"{svg}<pre>{escape(text)}</pre>", "text/plain": text}


def what_if(compiled: Compilation, text: str, seconds: float | None = None) -> Sweep:
    """Return the best plan of a program that was compiled for a cluster, for each value: `devices=16,32,64`. seconds:
    for all searches together; None: the limit of the search for its plan. Raise ProgramError with a caret under what is
    wrong."""
    with closing(ProgressLine("searching for each value")) as line:
        # These searches end together, and not with that for the plan.
        return _what_if(compiled, replace(compiled.choice.question, control=SearchControl(line)), text, seconds)


def _what_if(compiled: Compilation, question: PlacementQuery, text: str, seconds: float | None) -> Sweep:
    ends = monotonic() + (question.search_seconds if seconds is None else seconds)
    name, values = _read(text)
    points = list[SweepPoint]()
    for value in values:
        question.control.doing = f"{name}={value.text}, {len(points)} of {len(values)} done"
        points.append(_point(ends, value.text, *_PARAMETERS[name](question, value)))
    return Sweep(compiled.name, question.cluster.text, name, tuple(points), question.goal)


def _point(ends: float, value: str, question: PlacementQuery, number: float | None) -> SweepPoint:
    """Return the best plan for one value."""
    try:
        choice = choose_before_deadline(ends, question)
    except (KeyboardInterrupt, OutOfTime) as error:
        if isinstance(error, KeyboardInterrupt):
            question.control.stop("what was not searched by now is left out")
        return SweepPoint(value, number, over=True)
    if choice is None:
        return SweepPoint(value, number)
    best, problem = choice.search_result, choice.problem
    price, step_tokens = best.seconds * problem.dollars_per_second(best.blocks, best.devices), tokens_per_step(choice)
    return SweepPoint(
        value, number, best.seconds, price, step_tokens, sum(best.devices), best.gap, pools_text(problem, best)
    )


# What can be changed


def _devices(asked: PlacementQuery, value: PlacedWord) -> tuple[PlacementQuery, float]:
    first, *rest = asked.cluster.islands
    others = sum(island.device_count for island in rest)
    count = _whole(value)
    if (count - others) % first.per_node or count <= others:
        elsewhere = f", beside {others} in other groups" if others else ""
        near = others + max(1, round((count - others) / first.per_node)) * first.per_node
        raise _wrong(
            f"{count} devices are no whole nodes", value, f"a node has {first.per_node}{elsewhere}: {near} for example"
        )
    return _node_question(asked, value, (count - others) // first.per_node), float(count)


def _nodes(asked: PlacementQuery, value: PlacedWord) -> tuple[PlacementQuery, float]:
    return _node_question(asked, value, _whole(value)), float(value.text)


def _node_question(asked: PlacementQuery, value: PlacedWord, nodes: int) -> PlacementQuery:
    """Return the question for so many nodes. Raise ProgramError if these are too many."""
    first, *rest = asked.cluster.islands
    if nodes * first.per_node + sum(island.device_count for island in rest) > MOST_DEVICES:
        raise _wrong("these are too many devices", value, f"a cluster has at most {MOST_DEVICES:,}")
    return with_node_count(asked, 0, nodes)


def _network(asked: PlacementQuery, value: PlacedWord) -> tuple[PlacementQuery, float]:
    bandwidth = _quantity(value, "bandwidth")
    return with_network(asked, bandwidth=bandwidth), bandwidth


def _memory(asked: PlacementQuery, value: PlacedWord) -> tuple[PlacementQuery, float]:
    size = _quantity(value, "bytes")
    return with_device_memory(asked, size=round(size)), size


def _device(asked: PlacementQuery, value: PlacedWord) -> tuple[PlacementQuery, None]:
    old = asked.cluster.islands[0].device
    name = device_names_by_alias().get(value.text.lower(), "")
    if not name:
        raise _wrong(
            f"there is no device `{value.text}`",
            value,
            did_you_mean(value.text.lower(), device_names_by_alias()) or _listing(known_devices()),
        )
    new = known_devices()[name]
    if new.device.kind != old.kind:
        hint = "engines, constants and dtypes are others there: compile for the other cluster, and compare"
        raise _wrong(f"`{name}` cannot take the place of `{old.name}`", value, hint)
    return with_device_kind(asked, new), None


def _prompts(asked: PlacementQuery, value: PlacedWord) -> tuple[PlacementQuery, float]:
    lengths = _lengths(value)
    return with_lengths(asked, prompt=lengths), lengths.mean


def _responses(asked: PlacementQuery, value: PlacedWord) -> tuple[PlacementQuery, float]:
    lengths = _lengths(value)
    return with_lengths(asked, response=lengths), lengths.mean


def _turns(asked: PlacementQuery, value: PlacedWord) -> tuple[PlacementQuery, float]:
    lengths = _lengths(value, "turns")
    return with_lengths(asked, turns=lengths), lengths.mean


def _environment_seconds(asked: PlacementQuery, value: PlacedWord) -> tuple[PlacementQuery, float]:
    lengths = _lengths(value, "seconds")
    return with_lengths(asked, environment_s=lengths), lengths.mean


def _kept(asked: PlacementQuery, value: PlacedWord) -> tuple[PlacementQuery, float]:
    try:
        share = float(value.text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise _wrong(f"`{value.text}` is no share of the rows that are kept", value, "over 0 and up to 1, such as 0.5")
    return replace(asked, workload=replace(asked.workload, kept=share)), share


_PARAMETERS: Mapping[str, Callable[[PlacementQuery, PlacedWord], tuple[PlacementQuery, float | None]]] = {
    "devices": _devices,
    "nodes": _nodes,
    "network": _network,
    "memory": _memory,
    "device": _device,
    "prompt_tokens": _prompts,
    "response_tokens": _responses,
    "turns": _turns,
    "environment_seconds": _environment_seconds,
    "kept": _kept,
}
"""For each name, a function that returns the question for a value, and the value in base units."""


# Reading


def _read(text: str) -> tuple[str, list[PlacedWord]]:
    """Return the name and the values in a text."""
    source = Source("--what-if", " ".join(text.splitlines()))
    name, sign, rest = source.text.partition("=")
    word = _word(source, 0, len(name))
    if word.text not in _PARAMETERS:
        message = f"`{word.text}` cannot be changed" if word.text else "what is to be changed is missing"
        raise _wrong(message, word, did_you_mean(word.text, _PARAMETERS) or _listing(_PARAMETERS))
    # Lengths can have commas of their own: `mean=350, p99=1500`.
    separator = ";" if ";" in rest or "=" in rest else ","
    begin = len(name) + len(sign)
    values = []
    for piece in rest.split(separator):
        values.append(_word(source, begin, begin + len(piece)))
        begin += len(piece) + 1
        if not values[-1].text:
            raise _wrong(f"a value of `{word.text}` is missing", values[-1], "as in `devices=16,32,64`")
    return word.text, values


def _word(source: Source, begin: int, end: int) -> PlacedWord:
    """Return a word of the text without the blanks around it."""
    text = source.text[begin:end]
    begin += len(text) - len(text.lstrip())
    text = text.strip()
    return PlacedWord(text, Span(source, 1, begin + 1, 1, begin + 1 + max(1, len(text))))


def _whole(value: PlacedWord) -> int:
    if not value.text.isdecimal() or len(value.text) > 9 or not int(value.text):
        raise _wrong(f"`{value.text}` is no number of devices or nodes", value, "a whole number, at least 1")
    return int(value.text)


def _quantity(value: PlacedWord, kind: QuantityKind) -> float:
    try:
        quantity = parse_quantity(value.text, kind)
    except ValueError as error:
        message, _, hint = str(error).partition(": ")
        raise _wrong(message, value, hint) from None
    if not quantity:
        raise _wrong(f"`{value.text}` is nothing", value, "it has to be more than 0")
    return quantity


def _lengths(value: PlacedWord, unit: str = "tokens") -> Lengths:
    """Return the lengths that a value means. Raise ProgramError with the place in the whole text."""
    try:
        return parse_lengths(value.text, unit=unit)
    except ProgramError as error:
        fault = error.diagnostics[0]
        raise _wrong(fault.message, value, fault.hint) from None


def _listing(options: Mapping[str, object]) -> str:
    return f"there are {', '.join(f'`{name}`' for name in options)}"


def _wrong(message: str, word: PlacedWord, hint: str) -> ProgramError:
    return ProgramError(Diagnostic(BAD, message, word.span, hint))


# For people


def _lines(sweep: Sweep) -> Iterator[str]:
    best = "fastest" if sweep.goal == "time" else "cheapest"
    yield f"{sweep.program}, compiled for {sweep.cluster}: the {best} plan for each value of {sweep.name}"
    yield ""
    rows = [(sweep.name, "seconds", "tokens/s", "$ a step", "$ a million", "pools (devices)")]
    for point in sweep.points:
        if point.seconds is None:
            rows.append((point.value, "-", "-", "-", "-", OVER if point.over else "does not fit"))
            continue
        rate, price = point.tokens_per_second or 0.0, point.price_per_million or 0.0
        rows.append(
            (point.value, f"{point.seconds:,.4g}", f"{rate:,.0f}", f"{point.price:,.3g}", f"{price:,.3g}", point.pools)
        )
    yield from align_columns("<>>>><", rows)
