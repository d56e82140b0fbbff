"""What no plan of some allocations can beat: every task is as fast as some option makes it, whichever that is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, product
from operator import attrgetter, le
from types import MappingProxyType

from rlgraph.passes.cost.peak import usable
from rlgraph.passes.placement.search.fusing import Others, Pieces
from rlgraph.passes.placement.search.incumbent import Incumbent
from rlgraph.passes.placement.search.option import Option, Ranks, unbeaten
from rlgraph.passes.placement.search.problem import Block, Blocks, Problem

Devices = tuple[tuple[tuple[int, ...], int], ...]
"""Islands, one or several as one, and the most devices there."""


class Candidates:
    """Options of one component, any of which may be chosen: fastest first, at least one. What bounds ask of them is
    worked out once."""

    def __init__(self, options: Sequence[Option], devices: Devices = ()) -> None:
        """devices: where these are all that there may be."""
        self.options, self.devices = options, devices
        self.brought: dict[tuple[Candidates, bool], tuple[float, Sequence[float]]] = {}
        """Transfers of weights from these to others, which may share their pool."""

    @cached_property
    def least(self) -> Sequence[float]:
        """The least seconds of each task."""
        return self.options[0].seconds if len(self.options) == 1 else least([each.seconds for each in self.options])

    @cached_property
    def copies(self) -> int:
        """The most that one has."""
        return max(option.copies for option in self.options)

    @cached_property
    def splits(self) -> Sequence[Candidates]:
        """Those whose splits are as one for transfers of weights, which do not depend on the rest."""
        found: dict[tuple[object, ...], list[Option]] = {}
        for option in self.options:
            found.setdefault(option.split.weights, []).append(option)
        return [self] if len(found) == 1 else [Candidates(own) for own in found.values()]


Choices = Mapping[int, Candidates]
"""Of components."""


class Shared:
    """Options of a component of one split that shares its pipeline with others."""

    def __init__(self, options: Sequence[Option], seconds: Sequence[Sequence[float]]) -> None:
        """seconds: the least of the tasks of each."""
        self.options, self.seconds = options, seconds
        self.least = least(seconds)
        """Of each task."""

    @cached_property
    def fastest(self) -> Option:
        """None of them is faster at anything."""
        return self.options[0].lasting(self.least)

    @cached_property
    def candidates(self) -> Candidates:
        """Those that no other one beats, each with its least seconds."""
        known = dict(zip(self.options, self.seconds, strict=True))
        lasting = [option.lasting(known[option]) for option in unbeaten(self.options)]
        return Candidates(sorted(lasting, key=attrgetter("order")))


@dataclass(frozen=True, slots=True)
class Pool:
    """The options of the components of one pool."""

    choices: Choices
    alone: Choices
    """Where no training shares its pipeline with another one."""
    shared: Mapping[int, Mapping[Ranks, Shared]]
    """Of components that may, where they do, by how all of a pipeline are split."""


class Bounds:
    """Of one problem."""

    def __init__(self, problem: Problem, incumbent: Incumbent, way: int = 0) -> None:
        """way: which of the problems that are searched together."""
        self.problem, self.incumbent, self.way = problem, incumbent, way
        self.fuses = bool(problem.fusing.partners)
        """Whether trainings may share a pipeline."""
        self._fit: dict[tuple[tuple[int, ...], tuple[int, ...], int], Pool | None] = {}
        self._lasting: dict[tuple[object, ...], Shared] = {}
        self._anywhere: dict[tuple[int, Devices], Candidates] = {}

    def choices(self, blocks: Blocks, devices: Sequence[int]) -> Choices | None:
        """Of all components, with so many devices of each pool; None if a pool cannot hold its own. One that has no
        pool yet may have any of these."""
        found: dict[int, Candidates] = {}
        if unplaced := self.problem.unplaced(blocks):
            largest: dict[tuple[int, ...], int] = {}
            for block, size in zip(blocks, devices, strict=True):
                largest[block.islands] = max(size, largest.get(block.islands, 0))
            found = {number: self.anywhere(number, tuple(sorted(largest.items()))) for number in unplaced}
            if not all(own.options for own in found.values()):
                return None
        for block, most in zip(blocks, devices, strict=True):
            own = self.pool(block, most)
            if own is None:
                return None
            found |= own.choices
        return found

    def anywhere(self, number: int, devices: Devices) -> Candidates:
        """The options of a component on any of some pools: devices of the largest one on each island."""
        if (number, devices) not in self._anywhere:
            component, joined = self.problem.components[number], self.problem.cluster.joined
            own = [self.problem.options.of(component, joined(at), size) for at, size in devices]
            found = Candidates(sorted(chain.from_iterable(own), key=attrgetter("order")), devices)
            self._anywhere[number, devices] = found
        return self._anywhere[number, devices]

    def alone(self, blocks: Blocks, devices: Sequence[int]) -> Choices:
        """The same where no trainings share a pipeline."""
        pools = [self.pool(block, most) for block, most in zip(blocks, devices, strict=True)]
        return {number: own for pool in pools if pool for number, own in pool.alone.items()}

    def sharings(self, blocks: Blocks, devices: Sequence[int]) -> Iterator[tuple[Pieces, Mapping[int, Shared]]]:
        """Which trainings may share a pipeline, and how it is split: the options of those that do."""
        pools = [self.pool(block, most) for block, most in zip(blocks, devices, strict=True)]
        shared = {number: own for pool in pools if pool for number, own in pool.shared.items()}
        for pieces in self.problem.fusing.sharings([block.components for block in blocks]):
            known = [[shared.get(number, {}) for number in piece] for piece in pieces]
            splits = [[ranks for ranks in first if all(ranks in own for own in rest)] for first, *rest in known]
            for chosen in product(*splits):
                own = zip(pieces, chosen, strict=True)
                yield pieces, {number: shared[number][ranks] for piece, ranks in own for number in piece}

    def fitting(self, block: Block, devices: int) -> Choices | None:
        """Of each component of a pool the options that fit beside the least of the others; None if one has none."""
        own = self.pool(block, devices)
        return None if own is None else own.choices

    def pool(self, block: Block, devices: int) -> Pool | None:
        """These, and what they are where trainings share a pipeline."""
        key = (block.components, block.islands, devices)
        if key not in self._fit:
            self._fit[key] = self._fitting(block, devices)
        return self._fit[key]

    def _fitting(self, block: Block, devices: int) -> Pool | None:
        island = self.problem.island(block)
        found = {
            number: self.problem.options.of(self.problem.components[number], island, devices)
            for number in block.components
        }
        if not all(found.values()):
            return None
        held = {number: self.held(number, own) for number, own in found.items()}
        room = usable(island, self.problem.constants) - sum(held.values())
        asleep = {number: min(option.host for option in own) for number, own in found.items()}
        beds = self.problem.options.lodges(island) - sum(asleep.values())
        fit = {
            number: [
                each
                for option in own
                if (each := option.within(room + held[number], host=beds + asleep[number])) is not None
            ]
            for number, own in found.items()
        }
        if not all(fit.values()):
            return None
        alone = {number: Candidates(own) for number, own in fit.items()}
        if not self.fuses:
            return Pool(alone, alone, {})
        shared = self._shared(block, devices, {number: room + held[number] for number in fit})
        both = {
            number: Candidates([*alone[number].options, *(each.fastest for each in own.values())])
            for number, own in shared.items()
        }
        return Pool(alone | both, alone, shared)

    def held(self, number: int, options: Sequence[Option]) -> float:
        """The least bytes that a component leaves to no other one of its pool."""
        return min(option.resident for option in options)

    def _shared(self, block: Block, devices: int, rooms: Mapping[int, float]) -> dict[int, dict[Ranks, Shared]]:
        """Of the options of a pool those that may share a pipeline with others of them. rooms: of each component bytes
        beside the least of the others."""
        fusing, found = self.problem.fusing, dict[int, dict[Ranks, Shared]]()
        splits: dict[int, dict[Ranks, list[Option]]] = {}
        for number in block.components:
            if fusing.partners.get(number, frozenset()).isdisjoint(block.components):
                continue
            component, island, room = self.problem.components[number], self.problem.island(block), rooms[number]
            fit = {
                split: [each for each in options if each.peak <= room]
                for split, options in self.problem.options.sharing(component, island, devices).items()
            }
            splits[number] = {split: options for split, options in fit.items() if options}
        for number, own in splits.items():
            partners = {other: splits[other] for other in fusing.partners[number] if other in splits}
            for split, options in own.items():
                if beside := {other: each[split] for other, each in partners.items() if split in each}:
                    # The first of those that may share a pipeline has what all of them wait together.
                    others = fusing.others(beside) if number < min(partners) else None
                    found.setdefault(number, {})[split] = self._together(number, options, others)
        return found

    def _together(self, number: int, options: Sequence[Option], others: Others | None) -> Shared:
        """Options of one split in a pipeline with others."""
        key = (*map(id, options), others)
        if key not in self._lasting:
            seconds = [self.problem.fusing.least(number, option, others) for option in options]
            self._lasting[key] = Shared(options, seconds)
        return self._lasting[key]

    def loose(
        self,
        blocks: Blocks,
        devices: Sequence[int],
        choices: Choices,
        taken: Mapping[int, Sequence[float]] = MappingProxyType({}),
    ) -> float:
        """Each transfer of weights is as fast as some pair of options makes it, too. devices: the least of each
        pool. taken: seconds of the tasks of some components."""
        colocation = self.problem.colocation(blocks)
        durations = {number: own.least for number, own in choices.items()}
        syncs = []
        for source, target in self.problem.syncs:
            sync, durations[target] = self.soonest(source, target, choices, colocation.home)
            syncs.append(sync)
        durations |= taken
        copies = {number: own.copies for number, own in choices.items()} if colocation.trips else {}
        return self.problem.value(self.problem.least(durations, syncs, colocation, copies), blocks, devices)

    def sharp(self, blocks: Blocks, devices: Sequence[int], choices: Choices) -> float:
        """The same, with one split for all that a component does. Weights that are brought tie two components together:
        how the one that trains is split decides how fast they come."""
        found = self.loose(blocks, devices, choices)
        home = self.problem.colocation(blocks).home
        source = next((source for source, target in self.problem.syncs if self.waits(target, home)), None)
        if source is None or found >= self.incumbent.enough() or len(choices[source].splits) == 1:
            return found
        targets = [
            (ends, choices[ends[1]], together)
            for ends in self.problem.syncs
            if ends[0] == source and self.waits(ends[1], home)
            for together in _together(ends, home)
        ]
        return min(
            self.loose(blocks, devices, {**choices, source: own}) for own in self.unlike(choices[source], targets)
        )

    def unlike(
        self, source: Candidates, targets: Sequence[tuple[tuple[int, int], Candidates, bool]]
    ) -> list[Candidates]:
        """Of the splits of a component that is trained those that no other one beats in what it takes itself, and in
        when its weights are there. targets: who needs them, and whether that one shares its pool."""
        known: list[tuple[float, ...]] = []
        found = []
        for own in source.splits:
            key = tuple(own.least)
            for ends, target, together in targets:
                brought = [self.problem.sync(ends, own.options[0], at.options[0], together) for at in target.splits]
                whole = [[wait + each for each in at.least] for wait, at in zip(brought, target.splits, strict=True)]
                key = (min(brought), *least(whole), *key)
            if self.problem.options.apart:
                key = (*key, -own.copies)
            if not any(all(map(le, other, key)) for other in known):
                known.append(key)
                found.append(own)
        return found

    def waits(self, number: int, home: Mapping[int, int]) -> bool:
        """Whether a component may have to wait for weights."""
        return True

    def soonest(
        self, source: int, target: int, choices: Choices, home: Mapping[int, int]
    ) -> tuple[float, Sequence[float]]:
        """The fastest transfer of weights between some options, and the least seconds of the tasks that need them; of a
        component that has no pool yet, whichever it may get."""
        known = [self.brought(source, target, choices, together) for together in _together((source, target), home)]
        return known[0] if len(known) == 1 else (min(wait for wait, _ in known), choices[target].least)

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
            each.options[0].split.weights: min(
                self.problem.sync((source, target), option, each.options[0], together) for option in sources
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
            min(max(host, fastest[each.split.weights]) + each.seconds[at] for each in own.options) - max(host, sync)
            for at in range(len(least))
        ]
        at = max(range(len(least)), key=lambda place: whole[place] - least[place])
        least[at] = whole[at]
        return sync, least


def _together(ends: tuple[int, int], home: Mapping[int, int]) -> list[bool]:
    """Whether two components share a pool; both, where one of them has none yet."""
    own = [home.get(each) for each in ends]
    return [True, False] if None in own else [own[0] == own[1]]


def least(rows: Sequence[Sequence[float]]) -> list[float]:
    """The least of each column."""
    return [min(column) for column in zip(*rows, strict=True)]
