"""The best options of the components of one allocation: a depth-first search."""

from __future__ import annotations

from collections.abc import Mapping

from rlgraph.cost.peak import usable
from rlgraph.placement.search.bounds import Bounds, Candidates, Choices
from rlgraph.placement.search.option import Option
from rlgraph.placement.search.problem import Blocks
from rlgraph.placement.search.watch import Watch

MOST_TRIES = 4000
"""Choices of options that are looked at for one allocation; a bound stands for the rest."""


class Fathoming:
    """Of one allocation, or of all that are between two of them."""

    def __init__(
        self, bounds: Bounds, watch: Watch, blocks: Blocks, devices: tuple[int, ...], choices: Choices
    ) -> None:
        """devices: the least of each pool. choices: what is possible with the most."""
        self.bounds, self.watch, self.blocks, self.devices = bounds, watch, blocks, devices
        self.problem, self.incumbent, self.choices = bounds.problem, bounds.incumbent, choices
        self.colocation = self.problem.colocation(blocks)
        self.rooms = [usable(self.problem.island(block), self.problem.constants) for block in blocks]
        self.sequence = sorted(choices, key=lambda number: -sum(choices[number].options[0].seconds))
        self.least = {number: min(option.resident for option in own.options) for number, own in choices.items()}
        self.left = MOST_TRIES
        self.fathomed = True
        self._fitting: dict[tuple[int, float, float], Candidates | None] = {}

    def run(self) -> bool:
        """Keeps the best plan if it beats what is known. Whether it is fathomed: not where some plan could be better
        with more devices than the least."""
        left = {number: self.fitting(number, {}) for number in self.sequence}
        self.choose({}, {number: own for number, own in left.items() if own is not None})
        return self.fathomed

    def choose(self, chosen: dict[int, Option], choices: Choices) -> None:
        """The options of the components that have none yet. choices: those that fit beside what is chosen, of all
        components."""
        self.left -= 1
        self.watch.look(self.incumbent.state)
        if len(choices) < len(self.sequence):
            return
        value = self.bounds.sharp(self.blocks, self.devices, choices)
        if value >= self.incumbent.enough() or self.left < 0:
            self.incumbent.drop(value)
            return
        if len(chosen) == len(self.sequence):
            # With more devices than the least there are, it may be as fast as it seems, or not.
            if all(option.devices <= self.devices[self.colocation.home[number]] for number, option in chosen.items()):
                self.keep(chosen)
            else:
                self.fathomed = False
            return
        number = self.sequence[len(chosen)]
        for option in choices[number].options:
            chosen[number] = option
            self.choose(chosen, self.beside(number, chosen, choices))
            del chosen[number]
            if value >= self.incumbent.enough():
                self.incumbent.drop(value)
                return
            if not self.fathomed:
                return

    def beside(self, last: int, chosen: Mapping[int, Option], choices: Choices) -> Choices:
        """What is left of the choices after the last option that was chosen: only its own pool has less room."""
        found = {**choices, last: Candidates((chosen[last],))}
        for number in self.blocks[self.colocation.home[last]].components:
            if number not in chosen:
                own = self.fitting(number, chosen)
                if own is None:
                    del found[number]
                else:
                    found[number] = own
        return found

    def fitting(self, number: int, chosen: Mapping[int, Option]) -> Candidates | None:
        """The options of a component that fit into its pool beside what is chosen, and the least of what is not; None
        if there are none."""
        block = self.colocation.home[number]
        left, active = self.rooms[block], 0.0
        for other in self.blocks[block].components:
            if other in chosen:
                left -= chosen[other].resident
                active = max(active, *chosen[other].active)
            elif other != number:
                left -= self.least[other]
        key = (number, left, active)
        if key not in self._fitting:
            whole = self.choices[number]
            fit = [o for o in whole.options if o.resident + max(active, *o.active) <= left]
            self._fitting[key] = whole if len(fit) == len(whole.options) else Candidates(fit) if fit else None
        return self._fitting[key]

    def keep(self, chosen: Mapping[int, Option]) -> None:
        """A plan, if it beats the best one."""
        home = self.colocation.home
        durations = {number: option.seconds for number, option in chosen.items()}
        syncs = [
            self.problem.sync(source, chosen[source], chosen[target], home[source] == home[target])
            for source, target in self.problem.syncs
        ]
        copies = {number: option.copies for number, option in chosen.items()}
        seconds = self.problem.step(durations, syncs, self.colocation, copies)
        value = self.problem.value(seconds, self.blocks, self.devices)
        self.incumbent.keep(self.blocks, self.devices, [chosen[number] for number in sorted(chosen)], seconds, value)
