"""ReaL's placement (arXiv 2406.14088, section 5): a Metropolis search, on our problem and with our cost model.

A state says for each component its pool and its split, and for each pool its devices. A move takes some component and
something new for it: a split, another pool, or a size of its pool. A worse state is taken with probability exp(-beta *
what it loses), where the loss is a share of the first state's time; what does not fit counts three times. The first
state has each component as fast as it can be on all devices. Several chains with different betas share the time.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from math import exp, inf

from benchmarks.planners.caches import settled
from benchmarks.planners.plans import Chosen
from rlgraph.passes.placement.search.colocation import PartitionBlock
from rlgraph.passes.placement.search.option import Option
from rlgraph.passes.placement.search.partitions import allowed_pool_sizes
from rlgraph.passes.placement.search.problem import PlacementProblem

BETAS = (3.0, 30.0, 300.0)
TOO_MUCH = 3.0
"""By which a state is slower that does not fit."""


@dataclass(frozen=True)
class Walked:
    """What a search found, and how."""

    plan: Chosen | None
    seconds: float
    """Of the plan's step."""
    after: float
    """Seconds of searching until it was found."""
    moves: int


def real(problem: PlacementProblem, limit: float, seed: int = 0) -> Walked:
    """The best plan that fits of those that were seen within some seconds."""
    begin = time.perf_counter()
    walk = _Walk(problem, random.Random(seed))
    best, moves = Walked(None, inf, inf, 0), 0
    for turn, beta in enumerate(BETAS, 1):
        state = walk.first()
        now = scale = walk.value(state)
        while time.perf_counter() - begin < limit * turn / len(BETAS):
            moves += 1
            other = walk.moved(state)
            if other is None:
                continue
            value = walk.value(other)
            if value <= now or walk.dice.random() < exp(-beta * (value - now) / scale):
                state, now = other, value
                if now < best.seconds and state.fits(problem):
                    best = Walked(state, now, time.perf_counter() - begin, 0)
    return Walked(best.plan, best.seconds, best.after, moves)


class _Walk:
    def __init__(self, problem: PlacementProblem, dice: random.Random) -> None:
        self.problem, self.dice = problem, dice
        (self.island,) = problem.cluster.islands
        self.sizes = allowed_pool_sizes(self.island)
        self.known: dict[tuple[int, int], list[Option]] = {}

    def options(self, number: int, devices: int) -> list[Option]:
        key = (number, devices)
        if key not in self.known:
            component = self.problem.components[number]
            self.known[key] = list(settled(self.problem.options.all_options(component, self.island, devices)))
        return self.known[key]

    def first(self) -> Chosen:
        whole, count = self.island.device_count, len(self.problem.components)
        options = tuple(min(self.options(number, whole), key=lambda o: sum(o.seconds)) for number in range(count))
        return Chosen((PartitionBlock(tuple(range(count)), 0),), (whole,), options)

    def value(self, state: Chosen) -> float:
        return state.seconds(self.problem) * (1.0 if state.fits(self.problem) else TOO_MUCH)

    def moved(self, state: Chosen) -> Chosen | None:
        """A neighbour; None where what was taken cannot be."""
        number = self.dice.randrange(len(self.problem.components))
        at = next(place for place, block in enumerate(state.blocks) if number in block.components)
        pools = [(set(block.components), devices) for block, devices in zip(state.blocks, state.devices, strict=True)]
        kind = self.dice.random()
        if kind < 0.6:
            return self.split(state, number, state.devices[at])
        if kind < 0.8:
            pools[at] = (pools[at][0], self.dice.choice(self.sizes))
        else:
            pools[at][0].discard(number)
            to = self.dice.randrange(len(pools) + 1)
            if to < len(pools):
                pools[to][0].add(number)
            else:
                pools.append(({number}, self.dice.choice(self.sizes)))
        return self.made(state, [(own, devices) for own, devices in pools if own])

    def split(self, state: Chosen, number: int, devices: int) -> Chosen:
        options = list(state.options)
        options[number] = self.dice.choice(self.options(number, devices))
        return Chosen(state.blocks, state.devices, tuple(options))

    def made(self, state: Chosen, pools: list[tuple[set[int], int]]) -> Chosen | None:
        """With other pools; components whose devices change keep their split as far as that can be."""
        over = sum(devices for _, devices in pools) - self.island.device_count
        if over > 0:
            # The largest pool gives what is missing.
            largest = max(range(len(pools)), key=lambda place: pools[place][1])
            own, devices = pools[largest]
            if devices - over not in self.sizes:
                return None
            pools[largest] = (own, devices - over)
        options = list(state.options)
        for own, devices in pools:
            for number in own:
                there = self.options(number, devices)
                if not there:
                    return None
                options[number] = min(there, key=lambda o, old=options[number]: (*_unlike(o, old), sum(o.seconds)))
        blocks = tuple(PartitionBlock(tuple(sorted(own)), 0) for own, _ in pools)
        return Chosen(blocks, tuple(devices for _, devices in pools), tuple(options))


def _unlike(option: Option, old: Option) -> tuple[bool, ...]:
    mine, other = option.deployment, old.deployment
    return (
        (mine.tp, mine.pp) != (other.tp, other.pp),
        (mine.micro_tokens, mine.recompute, mine.kv_bytes) != (other.micro_tokens, other.recompute, other.kv_bytes),
        option.offload != old.offload,
    )
