"""What no plan of some allocations can beat: every task is as fast as some option makes it, whichever that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from operator import le

from rlgraph.cost.peak import usable
from rlgraph.placement.search.incumbent import Incumbent
from rlgraph.placement.search.option import Option
from rlgraph.placement.search.problem import Block, Blocks, Problem


class Candidates:
    """Options of one component, any of which may be chosen: fastest first, at least one. What bounds ask of them is
    worked out once."""

    def __init__(self, options: Sequence[Option]) -> None:
        self.options = options
        self.brought: dict[tuple[Candidates, bool], tuple[float, Sequence[float]]] = {}
        """Transfers of weights from these to others, which may share their pool."""

    @cached_property
    def least(self) -> Sequence[float]:
        """The least seconds of each task."""
        return self.options[0].seconds if len(self.options) == 1 else _least([each.seconds for each in self.options])

    @cached_property
    def copies(self) -> int:
        """The most that one has."""
        return max(option.copies for option in self.options)

    @cached_property
    def splits(self) -> Sequence[Candidates]:
        """Those of each split: transfers of weights do not depend on the rest."""
        found: dict[int, list[Option]] = {}
        for option in self.options:
            found.setdefault(id(option.split), []).append(option)
        return [self] if len(found) == 1 else [Candidates(own) for own in found.values()]


Choices = Mapping[int, Candidates]
"""Of components."""


class Bounds:
    """Of one problem."""

    def __init__(self, problem: Problem, incumbent: Incumbent) -> None:
        self.problem, self.incumbent = problem, incumbent
        self._fit: dict[tuple[tuple[int, ...], int, int], Choices | None] = {}

    def choices(self, blocks: Blocks, devices: Sequence[int]) -> Choices | None:
        """Of all components, with so many devices of each pool; None if a pool cannot hold its own."""
        found: dict[int, Candidates] = {}
        for block, most in zip(blocks, devices, strict=True):
            own = self.fitting(block, most)
            if own is None:
                return None
            found |= own
        return found

    def fitting(self, block: Block, devices: int) -> Choices | None:
        """Of each component of a pool the options that fit beside the least of the others; None if one has none."""
        key = (block.components, block.island, devices)
        if key not in self._fit:
            self._fit[key] = self._fitting(block, devices)
        return self._fit[key]

    def _fitting(self, block: Block, devices: int) -> Choices | None:
        island = self.problem.island(block)
        found = {
            number: self.problem.options.of(number, self.problem.components[number], island, devices)
            for number in block.components
        }
        if not all(found.values()):
            return None
        held = {number: min(option.resident for option in own) for number, own in found.items()}
        room = usable(island, self.problem.constants) - sum(held.values())
        fit = {
            number: [each for option in own if (each := option.within(room + held[number])) is not None]
            for number, own in found.items()
        }
        return {number: Candidates(own) for number, own in fit.items()} if all(fit.values()) else None

    def loose(self, blocks: Blocks, devices: Sequence[int], choices: Choices) -> float:
        """Each transfer of weights is as fast as some pair of options makes it, too. devices: the least of each
        pool."""
        colocation = self.problem.colocation(blocks)
        durations = {number: own.least for number, own in choices.items()}
        syncs = []
        for source, target in self.problem.syncs:
            together = colocation.home[source] == colocation.home[target]
            sync, durations[target] = self.brought(source, target, choices, together)
            syncs.append(sync)
        copies = {number: own.copies for number, own in choices.items()} if colocation.trips else {}
        return self.problem.value(self.problem.least(durations, syncs, colocation, copies), blocks, devices)

    def sharp(self, blocks: Blocks, devices: Sequence[int], choices: Choices) -> float:
        """The same, with one split for all that a component does. Weights that are brought tie two components together:
        how the one that trains is split decides how fast they come."""
        found = self.loose(blocks, devices, choices)
        if not self.problem.syncs or found >= self.incumbent.enough():
            return found
        source, target = self.problem.syncs[0]
        if len(choices[source].splits) == 1:
            return found
        home = self.problem.colocation(blocks).home
        return min(
            self.loose(blocks, devices, {**choices, source: own})
            for own in self.unlike(source, choices[source], choices[target], home[source] == home[target])
        )

    def unlike(self, number: int, source: Candidates, target: Candidates, together: bool) -> list[Candidates]:
        """Of the splits of a component that is trained those that no other one beats in what it takes itself, and in
        when its weights are there."""
        known: list[tuple[float, ...]] = []
        found = []
        for own in source.splits:
            brought = [self.problem.sync(number, own.options[0], each.options[0], together) for each in target.splits]
            sums = [[wait + least for least in each.least] for wait, each in zip(brought, target.splits, strict=True)]
            key = (min(brought), *_least(sums), *own.least)
            if self.problem.options.apart:
                key = (*key, -own.copies)
            if not any(all(map(le, other, key)) for other in known):
                known.append(key)
                found.append(own)
        return found

    def brought(self, source: int, target: int, choices: Choices, together: bool) -> tuple[float, Sequence[float]]:
        """The fastest transfer of weights between some options, and the least seconds of the tasks that need them.
        together: in one pool."""
        known, key = choices[source].brought, (choices[target], together)
        if key not in known:
            known[key] = self._brought(source, target, choices, together)
        return known[key]

    def _brought(self, source: int, target: int, choices: Choices, together: bool) -> tuple[float, Sequence[float]]:
        sources, own = [each.options[0] for each in choices[source].splits], choices[target]
        fastest = {
            id(each.options[0].split): min(
                self.problem.sync(source, option, each.options[0], together) for option in sources
            )
            for each in own.splits
        }
        sync = min(fastest.values())
        if target not in self.problem.leading:
            return sync, own.least
        # What brings the weights fast may generate slowly: no option has both. One task is told so. The host may be at
        # work for longer than the weights are on their way.
        least, host = list(own.least), self.problem.opening
        whole = [
            min(max(host, fastest[id(each.split)]) + each.seconds[at] for each in own.options) - max(host, sync)
            for at in range(len(least))
        ]
        at = max(range(len(least)), key=lambda place: whole[place] - least[place])
        least[at] = whole[at]
        return sync, least


def _least(rows: Sequence[Sequence[float]]) -> list[float]:
    """The least of each column."""
    return [min(column) for column in zip(*rows, strict=True)]
