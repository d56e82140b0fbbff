"""Describes transfers as text: which places send what to which, how much, and how long it should take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rlgraph.catalog.clusters.units import format_seconds
from rlgraph.errors import count_phrase
from rlgraph.ir.message_carriers import CARRIERS, TensorSite, carrier_between
from rlgraph.ir.transfer import Move, TensorBox, Transfer

_MOVES = 16
"""How many moves are shown; the others are summed up in one line."""
_PARTS = 2
"""How many tensors of a move are shown; the others are counted."""

Who = Mapping[int, tuple[str, int]]
"""The group of each place, and its rank in it."""


def describe_transfer(
    transfer: Transfer, who: Who | None = None, sites: Mapping[int, TensorSite] | None = None, timed: bool = True
) -> str:
    """Return a description of at most 40 lines: totals, what places send and receive, then the largest moves.

    Ranks are shown as ranges: `0-6:2` are 0, 2, 4 and 6. Without `who`, places are shown by their numbers. sites: where
    the places are, if that is known. timed: whether to show the seconds, which need known links.
    """
    if not transfer.moves:
        return f"nothing moves: every place has what it needs ({format_bytes(transfer.kept)})"
    lines = [
        f"{format_bytes(transfer.moved)} between devices (at least {format_bytes(transfer.bound)}), "
        f"{format_bytes(transfer.copied)} copied "
        f"on a device, {format_bytes(transfer.kept)} in place already",
        f"{format_seconds(transfer.seconds)} predicted, "
        * timed
        + f"{count_phrase(transfer.round_count, 'round')}, messages of at most "
        f"{format_bytes(transfer.peak)} "
        "on a place",
    ]
    if sites:
        lines.append(_carried(transfer, sites))
    for title, of in (("sends", transfer.sent_bytes()), ("receives", transfer.received_bytes())):
        if of:
            lines.append(f"a place {title} {_spread(of.values())}")
    between = transfer.bytes_between_nodes()
    if between:
        lines.append(f"{count_phrase(len(between), 'link')} between nodes: {_spread(between.values())}")
    sizes = {index: move.elements * len(move.routes) for index, move in enumerate(transfer.moves)}
    largest = sorted(sizes, key=lambda index: -sizes[index])
    for index in sorted(largest[:_MOVES]):
        lines += _move(transfer.moves[index], transfer.itemsize, who)
    remaining = largest[_MOVES:]
    if remaining:
        total = sum(sizes[index] for index in remaining) * transfer.itemsize
        lines.append(f"and {count_phrase(len(remaining), 'more move')}: {format_bytes(total)}")
    return "\n".join(lines)


def _carried(transfer: Transfer, sites: Mapping[int, TensorSite]) -> str:
    sizes: Counter[str] = Counter()
    for (source, destination), bytes_ in transfer.bytes_by_pair().items():
        sizes[carrier_between(sites[source], sites[destination])] += bytes_
    return ", ".join(f"{format_bytes(sizes[used.name])} over {used.name}" for used in CARRIERS if used.name in sizes)


def format_bytes(count: int) -> str:
    """Format bytes in the largest unit that fits."""
    for unit, bytes_ in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= bytes_:
            return f"{count / bytes_:.1f} {unit}"
    return f"{count} bytes"


def _move(move: Move, itemsize: int, who: Who | None) -> Iterator[str]:
    senders = _places((source for source, _, hop in move.routes if hop == 0), who)
    hops = max(hop for _, _, hop in move.routes)
    passed = f", passed on {'once' if hops == 1 else f'{hops} times'}" if hops else ""
    takers = _places((destination for _, destination, _ in move.routes), who)
    yield f"{senders} -> {takers}: {format_bytes(move.elements * itemsize)} to each{passed}"
    yield f"    {_parts(move.parts)}"


def _spread(values: Iterable[int]) -> str:
    low, *_, high = [*sorted(values)] * 2
    return format_bytes(low) if low == high else f"{format_bytes(low)} to {format_bytes(high)}"


def _parts(parts: Sequence[TensorBox]) -> str:
    """Return the first tensors with their boxes, and the number of the others."""
    shown = [f"{name}[{', '.join(f'{low}:{high}' for low, high in box)}]" for name, box in parts[:_PARTS]]
    return ", ".join(shown) + (f" and {len(parts) - _PARTS} more" if len(parts) > _PARTS else "")


def _places(places: Iterable[int], who: Who | None) -> str:
    if who is None:
        return _ranges(places)
    groups: dict[str, list[int]] = {}
    for place in places:
        group, rank = who[place]
        groups.setdefault(group, []).append(rank)
    return ", ".join(f"{group} {_ranges(ranks)}" for group, ranks in groups.items())


def _ranges(places: Iterable[int]) -> str:
    """Return numbers as ranges; only the first ones and the last one where there are many."""
    numbers = sorted(set(places))
    ranges = []
    while numbers:
        step = numbers[1] - numbers[0] if len(numbers) > 1 else 1
        count = next(
            (index for index in range(1, len(numbers)) if numbers[index] - numbers[index - 1] != step), len(numbers)
        )
        count = 1 if count == 2 and step > 1 else count
        stride = f":{step}" if step > 1 else ""
        ranges.append(str(numbers[0]) if count == 1 else f"{numbers[0]}-{numbers[count - 1]}{stride}")
        numbers = numbers[count:]
    return ",".join(ranges) if len(ranges) <= 4 else f"{ranges[0]},{ranges[1]},...,{ranges[-1]}"
