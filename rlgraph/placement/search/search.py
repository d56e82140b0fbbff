"""Branch and bound over pools, devices and splits.

    1. For each partition of the components, the devices of its pools are a box: a range of sizes for each. A box is
       bounded by the time that a step takes when every task is as fast as on the most devices of the range.
    2. The box with the least bound is halved, until it is one allocation. Boxes that cannot beat the best plan are
       dropped.
    3. For an allocation, each component's options are tried, fastest first, as far as the pools' memory and the bound
       allow.

The bound of what was dropped or left is what no plan can beat: it proves how good the best one is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from operator import le

from rlgraph.cost.peak import usable
from rlgraph.placement.search.options import Option
from rlgraph.placement.search.partitions import packed, sizes
from rlgraph.placement.search.problem import Block, Blocks, Problem
from rlgraph.placement.search.watch import OutOfTime, Watch

FIRST = 16
"""Partitions of which an allocation is tried before the search, those with the least bounds."""

EVERY = 8
"""Of so many ranges that are halved, one has an allocation tried."""

MOST_LOOKS = 20000
"""Ranges and allocations after which the best plan is given with the gap that is left."""

MOST_TRIES = 4000
"""Choices of options that are looked at for one allocation; a bound stands for the rest."""


@dataclass(frozen=True, slots=True)
class Found:
    """The best plan of a search."""

    blocks: Blocks
    devices: tuple[int, ...]
    """Of each block."""
    options: tuple[Option, ...]
    """For each component."""
    seconds: float
    value: float
    """Seconds, or dollars, of a step."""
    bound: float
    """No plan has a smaller value."""
    looked: int
    """Allocations and ranges that were looked at."""

    @property
    def gap(self) -> float:
        """By which share of its value the plan may miss the best one."""
        return max(0.0, 1 - self.bound / self.value) if self.value else 0.0


Box = tuple[tuple[int, ...], tuple[int, ...]]
"""For each block the smallest and the largest place in the sizes of its island."""


class Search:
    """Of one problem; `best` is there as soon as one plan fits."""

    def __init__(self, problem: Problem, gap: float, seconds: float = math.inf) -> None:
        """gap: how far from the best plan is near enough, as a share. seconds: after which the search ends."""
        self.problem, self.gap, self.watch = problem, gap, Watch(seconds)
        self.sizes = [sizes(island) for island in problem.cluster.islands]
        self.best: Found | None = None
        self.looked = 0
        self._fathomed: set[tuple[Blocks, tuple[int, ...]]] = set()
        self._fit: dict[tuple[tuple[int, ...], int, int], dict[int, Sequence[Option]] | None] = {}
        self._least: dict[tuple[tuple[int, ...], int, int], dict[int, Sequence[float]]] = {}
        """The least seconds of each task of those that fit."""
        self._loads: dict[tuple[tuple[int, ...], int, int], Sequence[float] | None] = {}
        self._brought: dict[tuple[int, int, bool], tuple[float, Sequence[float]]] = {}
        """Transfers of weights between those that fit."""
        self.lowest = math.inf
        """The least bound of what was dropped."""
        self.left = 0.0
        """The least bound of what was not looked at yet."""

    def run(self, candidates: Sequence[Blocks]) -> Found | None:
        """The best plan among some partitions; None if none fits. Raises ProgramError where the time is over before
        there is one, and on Ctrl-C KeyboardInterrupt with what there is."""
        try:
            self.all(candidates)
        except OutOfTime:
            if self.best is None:
                raise self.watch.none() from None
        except KeyboardInterrupt:
            raise self.watch.interrupted(*self.state()) from None
        finally:
            self.watch.close()
        return self.best and replace(self.best, bound=self.proven(), looked=self.looked)

    def proven(self) -> float:
        """What no plan can beat, as far as it is known."""
        return min(self.lowest, self.left, self.best.value if self.best else math.inf)

    def state(self) -> tuple[float | None, float]:
        """Seconds of the best plan so far, and its gap."""
        return (self.best.seconds, replace(self.best, bound=self.proven()).gap) if self.best else (None, 1.0)

    def all(self, candidates: Sequence[Blocks]) -> None:
        """Looks at all partitions until the best plan is near enough."""
        # Pools that a schedule declares may have sizes that the search would not choose.
        for block in {block for blocks in candidates for block in blocks if block.devices}:
            self.sizes[block.island] = tuple(sorted({*self.sizes[block.island], block.devices}))
        heap: list[tuple[float, int, Blocks, Box, bool]] = []
        for blocks in candidates:
            box = self.narrow(blocks, self.whole(blocks))
            self.watch.look(self.state)
            if box is not None:
                heap.append((self.bound(blocks, box), len(heap), blocks, box, False))
        heapify(heap)
        count = len(heap)
        self.left = heap[0][0] if heap else math.inf
        for _, _, blocks, box, _ in sorted(heap)[:FIRST]:
            self.fathom(blocks, self.middle(blocks, box))
        popped = 0
        while heap:
            least, number, blocks, box, sharp = heappop(heap)
            self.left = least
            self.watch.look(self.state)
            if least >= self.enough() or self.best is not None and self.looked > MOST_LOOKS:
                return
            tighter = self.tighten(blocks, box)
            if tighter is None:
                continue
            if tighter != box:
                box, least, sharp = tighter, max(least, self.bound(blocks, tighter)), False
                if heap and least > heap[0][0]:
                    if least < self.enough():
                        heappush(heap, (least, number, blocks, box, False))
                    else:
                        self.lowest = min(self.lowest, least)
                    continue
            if not sharp:
                # What comes first is worth a bound that takes longer, and may then come later.
                least = max(least, self.sharp(blocks, box))
                if least >= self.enough():
                    self.lowest = min(self.lowest, least)
                    continue
                if heap and least > heap[0][0]:
                    heappush(heap, (least, number, blocks, box, True))
                    continue
            popped += 1
            if self.fathom(blocks, self.counts(blocks, box[0]), self.counts(blocks, box[1])):
                continue
            if popped % EVERY == 0:
                self.fathom(blocks, self.middle(blocks, box))
            for half in self.halves(blocks, box):
                near = self.narrow(blocks, half)
                if near is None:
                    continue
                value = max(least, self.bound(blocks, near))
                if value < self.enough():
                    count += 1
                    heappush(heap, (value, count, blocks, near, False))
                else:
                    self.lowest = min(self.lowest, value)
        self.left = math.inf

    def enough(self) -> float:
        """Bounds from here on are not worth looking at."""
        return math.inf if self.best is None else self.best.value * (1 - self.gap)

    # Boxes

    def whole(self, blocks: Blocks) -> Box:
        low, high = [], []
        for block in blocks:
            known = self.sizes[block.island]
            place = _place(known, block.devices) if block.devices else None
            low.append(0 if place is None else place)
            high.append(len(known) - 1 if place is None else place)
        return tuple(low), tuple(high)

    def narrow(self, blocks: Blocks, box: Box) -> Box | None:
        """Without sizes that leave too few devices for the other pools; None if nothing is left."""
        low, high = box
        counts = self.counts(blocks, low)
        used: dict[int, int] = {}
        for block, count in zip(blocks, counts, strict=True):
            used[block.island] = used.get(block.island, 0) + count
        tops = []
        for block, count, top, bottom in zip(blocks, counts, high, low, strict=True):
            known = self.sizes[block.island]
            left = self.problem.cluster.islands[block.island].devices - used[block.island] + count
            while top >= bottom and known[top] > left:
                top = _place(known, left, top)
            if top < bottom:
                return None
            tops.append(top)
        return (low, tuple(tops)) if self.packed(blocks, counts) else None

    def packed(self, blocks: Blocks, devices: Sequence[int]) -> bool:
        return packed(self.problem.cluster.islands, blocks, devices)

    def tighten(self, blocks: Blocks, box: Box) -> Box | None:
        """Without sizes with which a pool alone would make the step too long, whatever the others have; None if
        nothing is left. What a pool needs at least, others cannot have."""
        if self.problem.goal != "time" or self.best is None:
            return box
        low, high = box
        while True:
            most = [self.loads(block, place) for block, place in zip(blocks, high, strict=True)]
            others = _most([self.weights(blocks, high), *(each for each in most if each is not None)])
            lows = []
            for block, bottom, top in zip(blocks, low, high, strict=True):
                least, lost = self.needed(block, bottom, top, others)
                self.lowest = min(self.lowest, lost)
                if least > top:
                    return None
                lows.append(least)
            if tuple(lows) == low:
                return low, high
            narrower = self.narrow(blocks, (tuple(lows), high))
            if narrower is None:
                return None
            low, high = narrower

    def needed(self, block: Block, bottom: int, top: int, others: Sequence[float]) -> tuple[int, float]:
        """The smallest place from `bottom` to `top` with which a pool does not make the step too long, where no stage
        is shorter than in `others`; one more than `top` if there is none. And the least bound of those below."""
        lost = math.inf
        low, high = bottom, top + 1
        while low < high:
            middle = (low + high) // 2
            own = self.loads(block, middle)
            value = self.problem.between + sum(map(max, own, others)) if own is not None else math.inf
            if value < self.enough():
                high = middle
            else:
                low, lost = middle + 1, min(lost, value)
        return low, lost

    def loads(self, block: Block, place: int) -> Sequence[float] | None:
        """The least seconds that a pool is busy in each stage; None if its components do not fit."""
        devices = self.sizes[block.island][place]
        key = (block.components, block.island, devices)
        if key not in self._loads:
            fit = self.options(block, devices)
            self._loads[key] = None if fit is None else self._busy(self._least[key])
        return self._loads[key]

    def _busy(self, durations: Mapping[int, Sequence[float]]) -> list[float]:
        seconds = self.problem.seconds(durations, [0.0] * len(self.problem.syncs))
        return [sum(seconds[job] for job in stage) for stage in self.problem.stages]

    def weights(self, blocks: Blocks, places: Sequence[int]) -> list[float]:
        """The least seconds of each stage until its new weights are there."""
        candidates, durations = self.fastest(blocks, self.counts(blocks, places)) or ({}, {})
        home = self.problem.colocation(blocks).home
        waits = [
            self.brought(source, target, candidates, durations[target], home[source] == home[target], self._brought)[0]
            for source, target in self.problem.syncs
        ]
        return [max((waits[job] for job in stage if job < len(waits)), default=0.0) for stage in self.problem.stages]

    def halves(self, blocks: Blocks, box: Box) -> list[Box]:
        """Two boxes, cut where sizes differ most."""
        low, high = box
        widest = max(
            range(len(blocks)),
            key=lambda at: self.sizes[blocks[at].island][high[at]] / self.sizes[blocks[at].island][low[at]],
        )
        known = self.sizes[blocks[widest].island]
        middle = math.sqrt(known[low[widest]] * known[high[widest]])
        cut = low[widest]
        while cut + 1 < high[widest] and known[cut + 1] <= middle:
            cut += 1
        below, above = list(high), list(low)
        below[widest], above[widest] = cut, cut + 1
        return [(low, tuple(below)), (tuple(above), high)]

    def counts(self, blocks: Blocks, places: Sequence[int]) -> tuple[int, ...]:
        return tuple(self.sizes[block.island][place] for block, place in zip(blocks, places, strict=True))

    def middle(self, blocks: Blocks, box: Box) -> tuple[int, ...]:
        """An allocation of a box that uses its devices: the least of each, and the rest in proportion to what each may
        have."""
        low, high = self.counts(blocks, box[0]), self.counts(blocks, box[1])
        found = list(low)
        for island, whole in enumerate(self.problem.cluster.islands):
            mine = [at for at, block in enumerate(blocks) if block.island == island]
            left = whole.devices - sum(low[at] for at in mine)
            wish = sum(high[at] - low[at] for at in mine)
            for at in mine:
                more = left * (high[at] - low[at]) / wish if wish else 0
                known = self.sizes[island]
                found[at] = max(low[at], known[_place(known, int(low[at] + more))])
        return tuple(min(a, b) for a, b in zip(found, high, strict=True))

    def bound(self, blocks: Blocks, box: Box) -> float:
        """What no allocation of a box can beat."""
        self.looked += 1
        low, high = self.counts(blocks, box[0]), self.counts(blocks, box[1])
        found = self.fastest(blocks, high)
        return math.inf if found is None else self.tied(blocks, low, *found, self._brought)

    def fastest(
        self, blocks: Blocks, devices: Sequence[int]
    ) -> tuple[dict[int, Sequence[Option]], dict[int, Sequence[float]]] | None:
        """The options of all components, and the least seconds of each one's tasks; None if a pool cannot hold its
        own."""
        candidates: dict[int, Sequence[Option]] = {}
        durations: dict[int, Sequence[float]] = {}
        for block, most in zip(blocks, devices, strict=True):
            found = self.options(block, most)
            if found is None:
                return None
            candidates |= found
            durations |= self._least[block.components, block.island, most]
        return candidates, durations

    def sharp(self, blocks: Blocks, box: Box) -> float:
        """The same, with one split for all that a component does."""
        low, high = self.counts(blocks, box[0]), self.counts(blocks, box[1])
        found = self.fastest(blocks, high)
        return math.inf if found is None else self.relaxed(blocks, low, found[0])

    def options(self, block: Block, devices: int) -> dict[int, Sequence[Option]] | None:
        """Of each component of a pool those that fit beside the least of the others; None if a component has none."""
        key = (block.components, block.island, devices)
        if key not in self._fit:
            self._fit[key] = found = self._options(block, devices)
            self._least[key] = {
                number: _least([option.seconds for option in own]) for number, own in (found or {}).items()
            }
        return self._fit[key]

    def _options(self, block: Block, devices: int) -> dict[int, Sequence[Option]] | None:
        island = self.problem.island(block)
        found = {
            number: self.problem.options.of(number, self.problem.components[number], island, devices)
            for number in block.components
        }
        if not all(found.values()):
            return None
        held = {number: min(option.resident for option in own) for number, own in found.items()}
        room = usable(island, self.problem.constants) - sum(held.values())
        fit: dict[int, Sequence[Option]] = {
            number: [option for option in own if option.peak <= room + held[number]] for number, own in found.items()
        }
        return fit if all(fit.values()) else None

    def relaxed(self, blocks: Blocks, devices: Sequence[int], candidates: Mapping[int, Sequence[Option]]) -> float:
        """A bound: every task is as fast as some option makes it, whichever that is. Weights that are brought tie two
        components together: how the one that trains is split decides how fast they come."""
        durations: dict[int, Sequence[float]] = {
            number: own[0].seconds if len(own) == 1 else _least([option.seconds for option in own])
            for number, own in candidates.items()
        }
        if not self.problem.syncs:
            return self.tied(blocks, devices, candidates, durations, {})
        source, target = self.problem.syncs[0]
        home = self.problem.colocation(blocks).home
        splits = _by_split(candidates[source])
        loose = self.tied(blocks, devices, candidates, dict(durations), {})
        if len(splits) == 1 or loose >= self.enough():
            return loose
        return min(
            self.tied(
                blocks,
                devices,
                {**candidates, source: own},
                {**durations, source: _least([option.seconds for option in own])},
                {},
            )
            for own in self.unlike(source, splits, candidates[target], home[source] == home[target])
        )

    def unlike(
        self, source: int, splits: Sequence[list[Option]], targets: Sequence[Option], together: bool
    ) -> list[list[Option]]:
        """Of some splits those that no other one beats in what the component itself takes, and in when its weights are
        there."""
        known: list[tuple[float, ...]] = []
        found = []
        ends = [(own[0], _least([option.seconds for option in own])) for own in _by_split(targets)]
        for own in splits:
            brought = [self.problem.sync(source, own[0], option, together) for option, _ in ends]
            sums = [[wait + each for each in least] for wait, (_, least) in zip(brought, ends, strict=True)]
            key = (min(brought), *_least(sums), *_least([option.seconds for option in own]))
            if self.problem.options.apart:
                key = (*key, -own[0].copies)
            if not any(all(map(le, other, key)) for other in known):
                known.append(key)
                found.append(own)
        return found

    def tied(
        self,
        blocks: Blocks,
        devices: Sequence[int],
        candidates: Mapping[int, Sequence[Option]],
        durations: dict[int, Sequence[float]],
        known: dict[tuple[int, int, bool], tuple[float, Sequence[float]]],
    ) -> float:
        """The same where each transfer of weights is as fast as some pair of options makes it. durations: the least of
        each component's tasks. known: transfers between candidates that outlive this."""
        colocation = self.problem.colocation(blocks)
        syncs = []
        for source, target in self.problem.syncs:
            together = colocation.home[source] == colocation.home[target]
            sync, durations[target] = self.brought(source, target, candidates, durations[target], together, known)
            syncs.append(sync)
        return self.problem.value(self.problem.least(durations, syncs, colocation, candidates), blocks, devices)

    def brought(
        self,
        source: int,
        target: int,
        candidates: Mapping[int, Sequence[Option]],
        durations: Sequence[float],
        together: bool,
        known: dict[tuple[int, int, bool], tuple[float, Sequence[float]]],
    ) -> tuple[float, Sequence[float]]:
        """The fastest transfer of weights between some options, and the least seconds of the tasks that need them."""
        key = (id(candidates[source]), id(candidates[target]), together)
        if key not in known:
            known[key] = self._transfer(source, target, candidates, durations, together)
        return known[key]

    def _transfer(
        self,
        source: int,
        target: int,
        candidates: Mapping[int, Sequence[Option]],
        durations: Sequence[float],
        together: bool,
    ) -> tuple[float, Sequence[float]]:
        sources = [own[0] for own in _by_split(candidates[source])]
        fastest = {
            id(own[0].split): min(self.problem.sync(source, each, own[0], together) for each in sources)
            for own in _by_split(candidates[target])
        }
        sync = min(fastest.values())
        if target not in self.problem.leading:
            return sync, durations
        # What brings the weights fast may generate slowly: no option has both. One task is told so. The host may be at
        # work for longer than the weights are on their way.
        least, host = list(durations), self.problem.opening
        whole = [
            min(max(host, fastest[id(own.split)]) + own.seconds[at] for own in candidates[target]) - max(host, sync)
            for at in range(len(least))
        ]
        at = max(range(len(least)), key=lambda place: whole[place] - least[place])
        least[at] = whole[at]
        return sync, least

    # Options

    def fathom(self, blocks: Blocks, low: tuple[int, ...], high: tuple[int, ...] | None = None) -> bool:
        """Looks for the best options of an allocation, or of all between two, and keeps them if they beat what is
        known. Whether they are fathomed: not where some could be better with more devices than the least."""
        high = high or low
        if low == high:
            if (blocks, low) in self._fathomed:
                return True
            self._fathomed.add((blocks, low))
            if not self.packed(blocks, low):
                return True
        self.looked += 1
        options: dict[int, Sequence[Option]] = {}
        for block, most in zip(blocks, high, strict=True):
            found = self.options(block, most)
            if found is None:
                return True
            options |= found
        return _Fathoming(self, blocks, low, options).run()


class _Fathoming:
    """A depth-first search over the options of the components of one allocation."""

    def __init__(
        self, search: Search, blocks: Blocks, devices: tuple[int, ...], options: Mapping[int, Sequence[Option]]
    ) -> None:
        self.search, self.problem = search, search.problem
        self.blocks, self.devices, self.options = blocks, devices, options
        self.colocation = self.problem.colocation(blocks)
        self.rooms = [usable(self.problem.island(block), self.problem.constants) for block in blocks]
        self.sequence = sorted(options, key=lambda number: -sum(options[number][0].seconds))
        self.least = {number: min(option.resident for option in own) for number, own in options.items()}
        self.left = MOST_TRIES
        self.fathomed = True

    def run(self) -> bool:
        self.choose({}, 0)
        return self.fathomed

    def choose(self, chosen: dict[int, Option], depth: int) -> None:
        self.left -= 1
        self.search.watch.look(self.search.state)
        candidates: dict[int, Sequence[Option]] = {
            number: [chosen[number]] if number in chosen else self.fitting(number, chosen) for number in self.sequence
        }
        if not all(candidates.values()):
            return
        value = self.search.relaxed(self.blocks, self.devices, candidates)
        if value >= self.search.enough() or self.left < 0:
            self.search.lowest = min(self.search.lowest, value)
            return
        if depth == len(self.sequence):
            # With more devices than the least there are, it may be as fast as it seems, or not.
            if all(option.devices <= self.devices[self.colocation.home[number]] for number, option in chosen.items()):
                self.keep(chosen)
            else:
                self.fathomed = False
            return
        number = self.sequence[depth]
        for option in candidates[number]:
            chosen[number] = option
            self.choose(chosen, depth + 1)
            del chosen[number]
            if value >= self.search.enough():
                self.search.lowest = min(self.search.lowest, value)
                return
            if not self.fathomed:
                return

    def fitting(self, number: int, chosen: Mapping[int, Option]) -> list[Option]:
        """The options of a component that fit into its pool beside what is chosen, and the least of what is not."""
        block = self.colocation.home[number]
        left, active = self.rooms[block], 0.0
        for other in self.blocks[block].components:
            if other in chosen:
                left -= chosen[other].resident
                active = max(active, *chosen[other].active)
            elif other != number:
                left -= self.least[other]
        return [o for o in self.options[number] if o.resident + max(active, *o.active) <= left]

    def keep(self, chosen: Mapping[int, Option]) -> None:
        durations = {number: option.seconds for number, option in chosen.items()}
        syncs = [
            self.problem.sync(
                source, chosen[source], chosen[target], self.colocation.home[source] == self.colocation.home[target]
            )
            for source, target in self.problem.syncs
        ]
        only = {number: (option,) for number, option in chosen.items()}
        seconds = self.problem.step(durations, syncs, self.colocation, only)
        value = self.problem.value(seconds, self.blocks, self.devices)
        if self.search.best is None or value < self.search.best.value:
            options = tuple(chosen[number] for number in range(len(chosen)))
            self.search.best = Found(self.blocks, self.devices, options, seconds, value, 0.0, 0)


def _place(known: Sequence[int], most: int, top: int | None = None) -> int:
    """The place of the largest size that is at most so large; -1 if there is none."""
    place = len(known) - 1 if top is None else top
    low = -1
    while low < place:
        middle = (low + place + 1) // 2
        low, place = (middle, place) if known[middle] <= most else (low, middle - 1)
    return low


def _least(rows: Sequence[Sequence[float]]) -> list[float]:
    """The least of each column."""
    return [min(column) for column in zip(*rows, strict=True)]


def _most(rows: Sequence[Sequence[float]]) -> list[float]:
    """The most of each column."""
    return [max(column) for column in zip(*rows, strict=True)]


def _by_split(options: Sequence[Option]) -> list[list[Option]]:
    """Those of each split: transfers do not depend on the rest."""
    found: dict[int, list[Option]] = {}
    for option in options:
        found.setdefault(id(option.split), []).append(option)
    return list(found.values())
