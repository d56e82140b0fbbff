"""Leaves out the options that others are at least as good as in everything."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain, groupby
from math import inf
from operator import attrgetter, le

import numpy as np

from rlgraph.passes.placement.search.option import Option
from rlgraph.passes.placement.search.strategy import Key

FEW = 32
"""Options that are compared one by one; all are compared at once after them."""


def undominated(found: Iterable[Option], fit: float, host: float = inf) -> list[Option]:
    """Return the options of at most `fit` bytes that no other one dominates in every task's time and memory, in how
    fast the model's weights come if they are brought from here or to here, and in how many links rows have to other
    node groups; fastest first. host: the most bytes of a node's host."""
    remaining: dict[Option, None] = {}
    kinds: dict[object, _Front] = defaultdict(_Front)
    for option in sorted(found, key=attrgetter("total")):
        dominator = option.beaten
        while dominator and dominator not in remaining:
            dominator = dominator.beaten
        if dominator or option.host > host:
            continue
        others = kinds[option.kind]
        # The bytes of an option that a faster one dominates in any case are not computed.
        if not option.counted and others.dominates(option, option.floor):
            continue
        if option.peak > fit or others.dominates(option, option.key):
            continue
        remaining[option] = None
        others.add(option)
    result: list[Option] = []
    # An option that takes as long as another may dominate it though it came later.
    for _, equally_fast in groupby(remaining, attrgetter("total")):
        result += _undominated_of_equal(list(equally_fast))
    return result


def _undominated_of_equal(equally_fast: list[Option]) -> list[Option]:
    """Return, of options that take equally long, those that no other one dominates, in their order."""
    if len(equally_fast) == 1:
        return equally_fast
    kinds: dict[object, _Front] = defaultdict(_Front)
    result = []
    for option in sorted(equally_fast, key=attrgetter("order")):
        others = kinds[option.kind]
        if not others.dominates(option, option.key):
            others.add(option)
            result.append(option)
    return result


def undominated_rows(keys: Sequence[Key]) -> list[int]:
    """Return the places of the keys than which no other one is as small in each number; of equal ones the first."""
    if not keys:
        return []
    numbers = np.array(keys)
    # Whether the key of a row is no greater than that of a column.
    smaller = (numbers[:, None] <= numbers[None]).all(axis=2)
    beaten = smaller & (~smaller.T | np.tri(len(keys), k=-1, dtype=bool).T)
    return [int(place) for place in np.flatnonzero(~beaten.any(axis=0))]


def undominated_ends(found: Iterable[Option]) -> list[Option]:
    """Return the options from which, or to which, weights come faster than with each other one in some transfer."""
    fronts: dict[object, list[Option]] = defaultdict(list)
    for option in sorted(found, key=attrgetter("sent")):
        front = fronts[option.kind]
        if not any(all(map(le, other.sent, option.sent)) for other in front):
            front.append(option)
    return list(chain.from_iterable(fronts.values()))


def undominated_in_pipeline(found: Iterable[Option]) -> list[Option]:
    """Return, of options of one split, which may share a pipeline, those that no other one dominates there."""
    result: list[tuple[Key, Option]] = []
    for option in sorted(found, key=attrgetter("order")):
        key = (*option.key, *chain.from_iterable(option.least_pipeline_seconds))
        if not any(all(map(le, other, key)) for other, _ in result):
            result.append((key, option))
    return [option for _, option in result]


class _Front:
    """Options of one kind of which none dominates another."""

    def __init__(self) -> None:
        self._recent: list[tuple[Key, Option]] = []
        """Those that dominated others last: an option that dominates one often dominates the next."""
        self._options: list[Option] = []
        self._columns = np.empty((0, 0))
        """The numbers of all keys, a column for each option."""

    def add(self, option: Option) -> None:
        """Add an option that none of these dominates."""
        count = len(self._options)
        if count == self._columns.shape[1]:
            columns = np.empty((len(option.key), max(FEW, 2 * count)))
            columns[:, :count] = self._columns if count else 0.0
            self._columns = columns
        self._columns[:, count] = option.key
        self._options.append(option)
        if count < FEW:
            self._recent.append((option.key, option))

    def dominates(self, option: Option, key: Key) -> bool:
        """Return whether one of these is at least as good as an option with this key."""
        resident = key[0]
        for index, (other_key, other) in enumerate(self._recent):
            # Most of them differ in the bytes that stay, which are quicker to compare.
            if other_key[0] <= resident and all(map(le, other_key, key)):
                self._recent.insert(0, self._recent.pop(index))
                option.beaten = other
                return True
        count = len(self._options)
        if count > FEW:
            better = np.flatnonzero((self._columns[:, :count] <= np.array(key)[:, None]).all(axis=0))
            if len(better):
                option.beaten = other = self._options[better[0]]
                self._recent[-1] = (other.key, other)
                return True
        return False
