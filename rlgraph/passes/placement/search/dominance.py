"""Leaves out the options that others are at least as good as in everything."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import chain, groupby
from math import inf
from operator import attrgetter, le

from rlgraph.passes.placement.search.option import Option
from rlgraph.passes.placement.search.strategy import Key


def undominated(found: Iterable[Option], fit: float, host: float = inf) -> list[Option]:
    """Return the options of at most `fit` bytes that no other one dominates in every task's time and memory, in how
    fast the model's weights come if they are brought from here or to here, and in how many links rows have to other
    node groups; fastest first. host: the most bytes of a node's host."""
    remaining: dict[Option, None] = {}
    kinds: dict[object, list[tuple[Key, Option]]] = defaultdict(list)
    for option in sorted(found, key=attrgetter("total")):
        dominator = option.beaten
        while dominator and dominator not in remaining:
            dominator = dominator.beaten
        if dominator or option.host > host:
            continue
        others = kinds[option.kind]
        # The bytes of an option that a faster one dominates in any case are not computed.
        if not option.counted and _dominated(option, option.floor, others):
            continue
        if option.peak > fit or _dominated(option, option.key, others):
            continue
        remaining[option] = None
        others.append((option.key, option))
    result: list[Option] = []
    # An option that takes as long as another may dominate it though it came later.
    for _, equally_fast in groupby(remaining, attrgetter("total")):
        result += _undominated_of_equal(list(equally_fast))
    return result


def _undominated_of_equal(equally_fast: list[Option]) -> list[Option]:
    """Return, of options that take equally long, those that no other one dominates, in their order."""
    if len(equally_fast) == 1:
        return equally_fast
    keys: dict[object, list[tuple[Key, Option]]] = defaultdict(list)
    result = []
    for option in sorted(equally_fast, key=attrgetter("order")):
        others = keys[option.kind]
        if not _dominated(option, option.key, others):
            others.append((option.key, option))
            result.append(option)
    return result


def undominated_in_pipeline(found: Iterable[Option]) -> list[Option]:
    """Return, of options of one split, which may share a pipeline, those that no other one dominates there."""
    result: list[tuple[Key, Option]] = []
    for option in sorted(found, key=attrgetter("order")):
        key = (*option.key, *chain.from_iterable(option.least_pipeline_seconds))
        if not any(all(map(le, other, key)) for other, _ in result):
            result.append((key, option))
    return [option for _, option in result]


def _dominated(option: Option, key: Key, others: list[tuple[Key, Option]]) -> bool:
    """Return whether one of the others is at least as good as an option with this key."""
    resident = key[0]
    for index, (other_key, other) in enumerate(others):
        # Most of them differ in the bytes that stay, which are quicker to compare.
        if other_key[0] <= resident and all(map(le, other_key, key)):
            # An option that dominates one often dominates the next.
            others.insert(0, others.pop(index))
            option.beaten = other
            return True
    return False
