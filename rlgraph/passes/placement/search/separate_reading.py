"""Options of a component that trains and reads with a split of its own each: readers have weights of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from operator import le, lt

import numpy as np

from rlgraph.passes.cost.deployment import Deployment
from rlgraph.passes.cost.weights import weight_sync_cost
from rlgraph.passes.memo import get_or_compute
from rlgraph.passes.placement.search.components import Component
from rlgraph.passes.placement.search.dominance import undominated_rows
from rlgraph.passes.placement.search.limit import NO_LIMIT, Limit
from rlgraph.passes.placement.search.made_options import MadeOptions
from rlgraph.passes.placement.search.option import Option, SeparateReadingOption
from rlgraph.passes.placement.search.strategy import Key, Split, Strategy
from rlgraph.passes.placement.search.weight_transfer_keys import weight_transfer_key

FASTER = 0.9
"""The share of the trainers' own seconds that separate readers may take to be worth weights of their own."""

LIGHTER = 1 / 1024
"""The share of a device's memory by which a reader has to need less than a faster one to be tried beside it: of a model
with experts, which has many splits, each would be tried with hundreds of ways to train."""

Parts = Mapping[int, tuple[Component, Component, Component]]
"""Components that train and read by their ids, each with its training part and its reading part."""


class SeparateReading:
    """The options of components that train and read, in which readers are split in another way."""

    def __init__(self, made: MadeOptions, parts: Parts) -> None:
        self.made, self.parts = made, parts
        self._synced: dict[tuple[object, ...], float] = {}
        self._together: dict[tuple[object, ...], tuple[float, ...]] = {}
        self._reading: dict[tuple[int, Deployment], Strategy] = {}
        self._apart: dict[tuple[int, int, int], Option] = {}
        self._beside: dict[tuple[int, Split, tuple[Option, ...], bytes], list[tuple[Option, tuple[float, ...]]]] = {}
        self._leading: dict[tuple[Option, ...], tuple[np.ndarray, frozenset[int]]] = {}

    def options(
        self, whole: Component, trainers: Sequence[Option], readers: tuple[Option, ...], limit: Limit
    ) -> Iterator[Option]:
        """Yield the ways to train and read with a split of its own each that are worth it: some of what is read is
        there earlier by a tenth than if who trains it read, and no other reader is better in all."""
        for trainer in trainers:
            yield from self.options_of_trainer(whole, trainer, readers, limit)

    def options_of_trainer(
        self, whole: Component, trainer: Option, readers: Sequence[Option], limit: Limit = NO_LIMIT
    ) -> Iterator[Option]:
        """Yield these ways for one way to train."""
        if not readers:
            return
        _, _, read = self.parts[id(whole)]
        together = [FASTER * task_s for task_s in self.reading_seconds_of_trainer(whole, read, trainer)]
        most_s, (keys, _) = limit.seconds_left(trainer), self.least_keys(readers)
        least = keys[:, -len(together) :]
        paying = (least < together).any(axis=1) & (least.sum(axis=1) < most_s)
        if not paying.any():
            return
        beside = get_or_compute(
            self._beside,
            (id(whole), trainer.split, tuple(readers), paying.tobytes()),
            lambda: self.undominated_readers(whole, trainer, readers, np.flatnonzero(paying).tolist()),
        )
        for reader, seconds in beside:
            if any(map(lt, seconds, together)) and sum(seconds) < most_s:
                key = (id(whole), id(trainer), id(reader))
                yield get_or_compute(self._apart, key, partial(self.make_option, whole, trainer, reader, seconds))

    def undominated_readers(
        self, whole: Component, trainer: Option, readers: Sequence[Option], numbers: Sequence[int]
    ) -> list[tuple[Option, tuple[float, ...]]]:
        """Return, of the readers with these numbers, those beside who trains with a split none of which is better in
        all than another one, each with the seconds of what is read, with what its weights take."""
        keys, leading = self.least_keys(readers)
        others = {number for number in numbers if readers[number].split != trainer.split}

        def key_with_weights(number: int) -> Key:
            reader = readers[number]
            first, *rest = reader.seconds
            return (reader.resident, *reader.active, first + self.sync_seconds(whole, trainer, reader), *rest)

        waited = {number: key_with_weights(number) for number in leading & others}
        # Most are no better than a leading one, even if their weights came as fast as any: these are not asked for.
        rest = sorted(others - leading)
        known = np.array([*waited.values()]).reshape(-1, keys.shape[1])
        beaten = np.flatnonzero((known[:, None] <= keys[None, rest]).all(axis=2).any(axis=0)).tolist()
        waited |= {number: key_with_weights(number) for number in {*rest} - {rest[place] for place in beaten}}
        numbers = sorted(waited)
        best = [numbers[place] for place in undominated_rows([waited[number] for number in numbers])]
        tasks = len(readers[0].seconds)
        kept: list[tuple[Option, Key]] = []
        for number in sorted(best, key=lambda number: sum(waited[number][-tasks:])):
            reader, key = readers[number], waited[number]
            spared = LIGHTER * reader.island.device.memory
            allowed = (*(size + spared for size in key[:-tasks]), *key[-tasks:])
            if not any(all(map(le, other, allowed)) for _, other in kept):
                kept.append((reader, key))
        return [(reader, key[-tasks:]) for reader, key in kept]

    def least_keys(self, readers: Sequence[Option]) -> tuple[np.ndarray, frozenset[int]]:
        """Return a row of what each reader keeps, has in addition, and takes at least, with weights that come as fast
        as any do; and the numbers of those that no other one then beats."""

        def compute_least_keys() -> tuple[np.ndarray, frozenset[int]]:
            sync = self.made.constants.sync
            keys = [(one.resident, *one.active, one.seconds[0] + sync, *one.seconds[1:]) for one in readers]
            return np.array(keys), frozenset(undominated_rows(keys))

        return get_or_compute(self._leading, tuple(readers), compute_least_keys)

    def make_option(
        self, whole: Component, trainer: Option, reader: Option, seconds: Sequence[float]
    ) -> SeparateReadingOption:
        """Return the option of one way to train and one to read. seconds: of what is read, with what its weights
        take."""
        self.made.options_made += 1
        _, trained, read = self.parts[id(whole)]
        seconds_of = dict(zip(trained.tasks, trainer.seconds, strict=True)) | dict(
            zip(read.tasks, seconds, strict=True)
        )
        bytes_of = dict(zip(trained.tasks, trainer.active, strict=True))
        bytes_of |= zip(read.tasks, reader.active, strict=True)
        kind, sent = weight_transfer_key(whole, trainer.strategy.deployment, trainer.split)
        return SeparateReadingOption(
            trainer,
            reader,
            tuple([seconds_of[task] for task in whole.tasks]),
            tuple([bytes_of[task] for task in whole.tasks]),
            kind,
            (*sent, -trainer.copies) if self.made.settings.apart else sent,
        )

    def reading_seconds_of_trainer(self, whole: Component, read: Component, trainer: Option) -> tuple[float, ...]:
        """Return the seconds of what is read, by those who train."""
        deployment, copies = trainer.strategy.deployment, trainer.copies

        def compute_reading_seconds() -> tuple[float, ...]:
            strategy = get_or_compute(
                self._reading, (id(whole), deployment), lambda: self.made.make_strategy(whole, deployment)
            )
            seconds_of = dict(zip(whole.tasks, strategy.task_seconds(copies), strict=True))
            return tuple([seconds_of[task] * self.made.tasks[task].repetitions for task in read.tasks])

        return get_or_compute(self._together, (id(whole), deployment, copies), compute_reading_seconds)

    def sync_seconds(self, component: Component, source: Option, target: Option) -> float:
        """Return the seconds that weights take from some processes to others in their pool."""
        key = (id(component), source.split.weights, target.split.weights)
        config, constants = component.config, self.made.constants
        return get_or_compute(
            self._synced,
            key,
            lambda: weight_sync_cost(config, source.deployment, target.deployment, True, constants).seconds,
        )
