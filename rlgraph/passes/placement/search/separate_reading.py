"""Options of a component that trains and reads with a split of its own each: readers have weights of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from operator import lt

from rlgraph.passes.cost.deployment import Deployment
from rlgraph.passes.cost.weights import weight_sync_cost
from rlgraph.passes.memo import get_or_compute
from rlgraph.passes.placement.search.components import Component
from rlgraph.passes.placement.search.dominance import undominated_rows
from rlgraph.passes.placement.search.limit import NO_LIMIT, Limit
from rlgraph.passes.placement.search.made_options import MadeOptions
from rlgraph.passes.placement.search.option import Option, SeparateReadingOption
from rlgraph.passes.placement.search.strategy import Split, Strategy
from rlgraph.passes.placement.search.weight_transfer_keys import weight_transfer_key

FASTER = 0.9
"""The share of the trainers' own seconds that separate readers may take to be worth weights of their own."""

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
        self._beside: dict[tuple[int, Split, tuple[Option, ...]], list[tuple[Option, tuple[float, ...]]]] = {}

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
        _, _, read = self.parts[id(whole)]
        together = [FASTER * task_s for task_s in self.reading_seconds_of_trainer(whole, read, trainer)]
        beside = get_or_compute(
            self._beside,
            (id(whole), trainer.split, tuple(readers)),
            lambda: self.undominated_readers(whole, trainer, readers),
        )
        most_s = limit.seconds_left(trainer)
        for reader, seconds in beside:
            if any(map(lt, seconds, together)) and sum(seconds) < most_s:
                key = (id(whole), id(trainer), id(reader))
                yield get_or_compute(self._apart, key, partial(self.make_option, whole, trainer, reader, seconds))

    def undominated_readers(
        self, whole: Component, trainer: Option, readers: Sequence[Option]
    ) -> list[tuple[Option, tuple[float, ...]]]:
        """Return the readers beside those who train with a split none of which is better in all than another one, each
        with the seconds of what is read, with what its weights take."""
        others = [reader for reader in readers if reader.split != trainer.split]
        waits = [self.sync_seconds(whole, trainer, reader) for reader in others]
        seconds = [
            (first + wait, *rest) for (first, *rest), wait in zip((r.seconds for r in others), waits, strict=True)
        ]
        keys = [(reader.resident, *reader.active, *taken) for reader, taken in zip(others, seconds, strict=True)]
        return [(others[index], seconds[index]) for index in undominated_rows(keys)]

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
