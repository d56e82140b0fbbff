"""A depth-first search for the best options of the components of one allocation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from operator import is_, itemgetter, le

from rlgraph.passes.cost.fused_pipelines import estimated_seconds, lower_bound_seconds
from rlgraph.passes.cost.peak_memory import TIGHT
from rlgraph.passes.memo import get_or_compute
from rlgraph.passes.placement.search.allocation_boxes import AllocationBoxes
from rlgraph.passes.placement.search.bounds import Bounds
from rlgraph.passes.placement.search.candidates import Candidates, Choices, SharedPipelineOptions
from rlgraph.passes.placement.search.colocation import Blocks
from rlgraph.passes.placement.search.fused_pipelines import Pieces
from rlgraph.passes.placement.search.host_memory import hosts_have_room
from rlgraph.passes.placement.search.incumbent import SearchResult
from rlgraph.passes.placement.search.memory_bounds import MemoryBounds
from rlgraph.passes.placement.search.option import Option
from rlgraph.passes.placement.search.problem import device_peak_bytes
from rlgraph.passes.placement.search.progress import SearchProgress

MOST_TRIES = 4000
"""Choices of options that are looked at for one allocation at first; a bound stands for the rest."""

FEW_TRIES = 200
"""Choices that are looked at for all allocations between two, which are then looked at by halves."""

SPREAD = 4
"""The share, one of so many, of a few choices that are spent on one option of a component."""

FEW = 32
"""Options of which each is asked whether it fits; of more it is asked at once."""

LONG = 8
"""After so many ranges that were given up the next one gets `MOST_TRIES`, and those after it as long as that is enough:
where hardly any size matters, halves are as hard to tell apart as the whole."""


LEFT = 2
"""Components without an option, from which on what is left gets bounds of memory of its own."""


class TryBudget:
    """The number of choices that are looked at for a range, by how it went with those before."""

    def __init__(self) -> None:
        self.max_tries, self._given_up = FEW_TRIES, 0

    def note_given_up(self) -> None:
        """Record that the choices were not enough."""
        self._given_up += 1
        self.max_tries = MOST_TRIES if self._given_up % LONG == 0 else FEW_TRIES


class AllocationSearch:
    """The search of one allocation, or of all that are between two of them."""

    def __init__(
        self,
        boxes: AllocationBoxes,
        bounds: Bounds,
        watch: SearchProgress,
        blocks: Blocks,
        devices: tuple[int, ...],
        most: tuple[int, ...],
        tight: bool = True,
        tries: int = MOST_TRIES,
    ) -> None:
        """devices: the fewest of each pool. most: the most, with which it has room for all its components. tight:
        whether pools may be fuller than `TIGHT`. tries: choices that are looked at."""
        self.boxes, self.bounds, self.watch = boxes, bounds, watch
        self.blocks, self.devices, self.most = blocks, devices, most
        self.problem, self.incumbent = bounds.problem, bounds.incumbent
        self.colocation = self.problem.make_colocation(blocks)
        usable_bytes = self.problem.usable_pool_bytes(blocks)
        self.pool_room_bytes = usable_bytes if tight else [TIGHT * room for room in usable_bytes]
        self.host_room_bytes = [
            self.problem.options.offload_room(self.problem.pool_node_group(block)) for block in blocks
        ]
        self.tries_left, self.is_brief = tries, devices == most and tries < MOST_TRIES
        """Choices that are left, and whether nothing is asked of the others then but a bound of all."""
        self.tries_kept = 0
        """Choices that are kept for other options of the components that have one."""
        self.fathomed = True
        self.least_untried_bound = math.inf
        """The least bound of what was left when the tries were over, of one allocation."""
        self.pieces: Pieces = ()

    def run(self) -> bool:
        """Keep the best plan if it beats the best one so far. Return whether the allocations are done: not where some
        plan could be better with more devices than the least."""
        alone = self.bounds.unfused_candidates(self.blocks, self.most)
        self.search_with_sharing((), alone)
        # A good plan early leaves little of the others.
        for value, pieces, shared in sorted(self.ways_worth_searching(), key=itemgetter(0)):
            if not self.fathomed:
                break
            if value >= self.incumbent.good_enough_bound():
                self.incumbent.note_pruned(value)
                break
            self.search_with_sharing(
                pieces, {**alone, **{number: options.undominated_candidates for number, options in shared.items()}}
            )
        return self.fathomed

    def ways_worth_searching(self) -> Iterator[tuple[float, Pieces, Mapping[int, SharedPipelineOptions]]]:
        """Yield the ways to share pipelines, and to split them, that may give a plan that is good enough, each after
        its bound."""
        late: dict[Pieces, list[Sequence[float]]] = {}
        for pieces, shared in self.bounds.ways_to_share_pipelines(self.blocks, self.most):
            if not self.fathomed:
                return
            value = self.bound_with_sharing(shared, late.setdefault(pieces, []))
            if value < self.incumbent.good_enough_bound():
                yield value, pieces, shared

    def search_with_sharing(self, pieces: Pieces, choices: Choices) -> None:
        """Search the plans in which the trainings of `pieces` share pipelines."""
        self.pieces, self.choices = pieces, choices
        self.sequence = sorted(choices, key=lambda number: -sum(choices[number].options[0].seconds))
        self.least_resident_bytes = {
            number: min(option.resident for option in candidates.options) for number, candidates in choices.items()
        }
        self.least_host_bytes = {
            number: min(option.host for option in candidates.options) for number, candidates in choices.items()
        }
        self._fitting: dict[tuple[int, float, float, float], Candidates | None] = {}
        left = {number: self.fitting_candidates(number, {}) for number in self.sequence}
        self.choose_options({}, {number: candidates for number, candidates in left.items() if candidates is not None})

    def bound_with_sharing(self, shared: Mapping[int, SharedPipelineOptions], late: list[Sequence[float]]) -> float:
        """Return what no plan with these pipelines, split like this, can beat; infinity where another way that is not
        good enough tells that this one is not. late: seconds of such ways; those of this one are added if it is one."""
        taken = {number: options.least for number, options in shared.items()}
        seconds = [task_s for task_seconds in taken.values() for task_s in task_seconds]
        if any(all(map(le, other, seconds)) for other in late):
            return inf
        # All else that depends on the split is not counted.
        choices = self.bounds.candidates_by_component(self.blocks, self.most)
        value = self.bounds.loose_bound(self.blocks, self.devices, choices, taken) if choices else 0.0
        if value >= self.incumbent.good_enough_bound():
            self.incumbent.note_pruned(value)
            late.append(seconds)
        return value

    def choose_options(self, chosen: dict[int, Option], choices: Choices, memory: MemoryBounds | None = None) -> None:
        """Choose the options of the components that have none yet. choices: those that fit next to what is chosen, of
        all components. memory: bounds of these choices and others; None at first."""
        self.tries_left -= 1
        self.watch.check_time(self.incumbent.value_and_gap)
        if len(choices) < len(self.sequence):
            return
        if self.tries_left < 0 and self.devices != self.most:
            self.fathomed = False
            return
        if self.devices == self.most and not self.hosts_have_room(choices):
            return
        value, memory = self.bound(chosen, choices, memory)
        if value >= self.incumbent.good_enough_bound():
            self.incumbent.note_pruned(value)
            return
        if self.tries_left < self.tries_kept:
            self.least_untried_bound = min(self.least_untried_bound, value)
            return
        # The bound also holds for other lists, and for options that need no less of anything.
        lists = self.shared_task_seconds(chosen, choices)
        if (
            lists
            and self.bounds.loose_bound(self.blocks, self.devices, choices, lists) >= self.incumbent.good_enough_bound()
        ):
            self.incumbent.note_pruned(value)
            return
        wide = self.component_with_cache_to_halve(chosen, choices) if len(chosen) == len(self.sequence) else None
        if wide is not None:
            for half in choices[wide].options[0].cache_range_halves:
                part = self.remaining_choices(wide, {**chosen, wide: half}, choices)
                self.choose_options({**chosen, wide: half}, part, memory)
            return
        if len(chosen) == len(self.sequence):
            chosen = {number: _with_largest_cache(choices[number].options[0]) for number in chosen}
            devices = self.needed_devices(chosen)
            if devices is None:
                # The cluster has too few devices for all: with fewer of some, the plan may be as fast as it seems.
                self.fathomed = False
                return
            self.keep_plan_if_better(chosen, devices)
            if devices != self.devices and self.problem.goal != "time":
                # The bound is that of a price for fewer devices.
                self.fathomed = False
            if lists:
                self.incumbent.note_pruned(value)
            return
        number = self.sequence[len(chosen)]
        values = None if memory is None else memory.least_values_with(number, choices)
        for index, option in enumerate(choices[number].options):
            if self.is_apart(number, option, chosen):
                continue
            if values is not None and values[index] >= self.incumbent.good_enough_bound():
                self.incumbent.note_pruned(float(values[index]))
                continue
            kept = self.tries_kept
            if self.is_brief:
                if self.tries_left < kept:
                    self.least_untried_bound = min(self.least_untried_bound, value)
                    return
                # A few choices tell little if all of them are below the fastest options of the first components.
                least = 2 * (len(self.sequence) - len(chosen))
                self.tries_kept = max(kept, self.tries_left - max(least, (self.tries_left - kept) // SPREAD))
            chosen[number] = option
            self.choose_options(chosen, self.remaining_choices(number, chosen, choices), memory)
            self.tries_kept = kept
            del chosen[number]
            if value >= self.incumbent.good_enough_bound():
                self.incumbent.note_pruned(value)
                return
            if not self.fathomed:
                return

    def bound(
        self, chosen: Mapping[int, Option], choices: Choices, memory: MemoryBounds | None
    ) -> tuple[float, MemoryBounds | None]:
        """Return what no plan of these choices can beat, and bounds of memory for part of them."""
        enough = self.incumbent.good_enough_bound()
        value = 0.0 if memory is None else memory.least_value(choices)
        if value < enough:
            value = max(value, self.bounds.sharp_bound(self.blocks, self.devices, choices, not self.pieces))
        if value >= enough:
            return value, memory
        if memory is None:
            memory = MemoryBounds(self.bounds, self.blocks, self.devices, choices, self.pool_room_bytes)
        elif len(chosen) + LEFT <= len(self.sequence):
            memory = memory.narrowed(choices, self.sequence[len(chosen) - 1])
        return max(value, memory.value), memory

    def hosts_have_room(self, choices: Choices) -> bool:
        """Return whether pools that share a node may have room in its host's memory, with the options that need least
        of it."""
        least = [choices[number].least_on_host for number in sorted(choices)]
        return hosts_have_room(self.problem, self.blocks, self.devices, least)

    def is_apart(self, number: int, option: Option, chosen: Mapping[int, Option]) -> bool:
        """Return whether a component would be done by other processes than one that has to share them."""
        others = (
            chosen[other] for other in self.problem.components_in_same_processes.get(number, ()) if other in chosen
        )
        return any(
            (other.deployment.engine, other.deployment.mesh) != (option.deployment.engine, option.deployment.mesh)
            for other in others
        )

    def remaining_choices(self, last: int, chosen: Mapping[int, Option], choices: Choices) -> Choices:
        """Return what is left of the choices after the last option that was chosen: only its own pool has less room."""
        remaining = {**choices, last: Candidates((chosen[last],))}
        for number in self.blocks[self.colocation.pool_of_component[last]].components:
            if number in chosen and chosen[number].has_fixed_cache:
                continue
            candidates = self.fitting_candidates(number, chosen)
            if candidates is None:
                del remaining[number]
            else:
                remaining[number] = candidates
        for piece in self.pieces:
            if last in piece and all(number in chosen for number in piece):
                taken = self.problem.fusing.shared_task_seconds(
                    piece, {member: _unshared(chosen[member]) for member in piece}, lower_bound_seconds
                )
                remaining |= {
                    member: Candidates((_unshared(chosen[member]).with_pipeline_seconds(taken[member]),))
                    for member in piece
                }
        return remaining

    def shared_task_seconds(self, chosen: Mapping[int, Option], choices: Choices) -> dict[int, Sequence[float]]:
        """Return the seconds of the tasks of those that share a pipeline, once they are chosen, by lists that are quick
        to make."""
        seconds = dict[int, Sequence[float]]()
        for piece in self.pieces:
            if all(number in chosen for number in piece):
                alone = {number: _unshared(choices[number].options[0]) for number in piece}
                seconds |= self.problem.fusing.shared_task_seconds(piece, alone, estimated_seconds)
        return seconds

    def component_with_cache_to_halve(self, chosen: Mapping[int, Option], choices: Choices) -> int | None:
        """Return the component whose cache matters most, where a pool has no room for the largest caches of all that is
        chosen."""
        for block, room in zip(self.blocks, self.pool_room_bytes, strict=True):
            options = {number: choices[number].options[0] for number in block.components}
            # A training in a shared pipeline has other seconds than alone, too, and no cache.
            gains = {number: each.cache_gain_s for number, each in options.items() if not each.has_fixed_cache}
            if gains and device_peak_bytes([each.with_largest_cache for each in options.values()]) > room:
                return max(gains, key=lambda number: gains[number])
        return None

    def fitting_candidates(self, number: int, chosen: Mapping[int, Option]) -> Candidates | None:
        """Return the options of a component that fit into its pool next to what is chosen, and the least of what is
        not; None if there are none."""
        block = self.colocation.pool_of_component[number]
        left, active, host = self.pool_room_bytes[block], 0.0, self.host_room_bytes[block]
        for other in self.blocks[block].components:
            if other == number:
                continue
            if other in chosen:
                left -= chosen[other].resident
                host -= chosen[other].host
                active = max(active, *chosen[other].active)
            else:
                left -= self.least_resident_bytes[other]
                host -= self.least_host_bytes[other]
        if number in chosen:
            return _within(Candidates((chosen[number],)), left, active, host)
        key = (number, left, active, host)
        return get_or_compute(self._fitting, key, lambda: _within(self.choices[number], left, active, host))

    def needed_devices(self, chosen: Mapping[int, Option]) -> tuple[int, ...] | None:
        """Return the fewest devices of each pool with which it has room for its options; None if the cluster has
        fewer."""
        wanted = list(self.devices)
        for number, option in chosen.items():
            home = self.colocation.pool_of_component[number]
            wanted[home] = max(wanted[home], option.device_span)
        return tuple(wanted) if tuple(wanted) == self.devices else self.boxes.fewest_devices(self.blocks, wanted)

    def keep_plan_if_better(self, chosen: Mapping[int, Option], devices: tuple[int, ...]) -> None:
        """Keep a plan with so many devices of each pool, if it beats the best one."""
        options = [chosen[number] for number in sorted(chosen)]
        if self.pieces not in self.problem.possible_pipeline_sharings(self.blocks, options):
            return
        if not hosts_have_room(self.problem, self.blocks, devices, options):
            # Pools with more devices than the least may be on other nodes.
            self.fathomed &= self.devices == self.most
            return
        seconds = self.problem.step_seconds_with_options(self.blocks, options, self.pieces, estimated_seconds)
        value = self.problem.objective_value(seconds, self.blocks, devices)
        self.incumbent.keep_if_better(
            SearchResult(
                self.blocks,
                devices,
                tuple(options),
                seconds,
                value,
                0.0,
                0,
                self.problem.is_memory_tight(self.blocks, options),
                self.bounds.way,
                self.pieces,
            )
        )


def _unshared(option: Option) -> Option:
    """Return the option without a shared pipeline."""
    return option.alone or option


def _with_largest_cache(option: Option) -> Option:
    """Return the option with its largest cache."""
    return _unshared(option) if option.has_fixed_cache else option.with_largest_cache


def _within(candidates: Candidates, left: float, active: float, host: float) -> Candidates | None:
    """Return the options that fit into so many bytes, next to what others need while they work, and into so many of a
    node's host."""
    options = candidates.options
    if len(options) > FEW:
        peak, resident, hosted = candidates.needed_bytes
        fits = (peak <= left) & (resident + active <= left) & (hosted <= host)
        if candidates.have_fixed_caches and fits.all():
            return candidates
        options = [options[index] for index in fits.nonzero()[0]]
        if candidates.have_fixed_caches:
            return Candidates(options) if options else None
    fit = [fitted for option in options if (fitted := option.with_fitting_caches(left, active, host)) is not None]
    if len(fit) == len(candidates.options) and all(map(is_, fit, candidates.options)):
        return candidates
    return Candidates(fit) if fit else None
