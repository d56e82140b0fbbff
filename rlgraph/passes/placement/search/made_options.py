"""Makes the options of a component: a strategy with so many replicas, and the model staying on its devices or not."""

from __future__ import annotations

from collections.abc import Sequence

from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.constants import Constants
from rlgraph.passes.cost.decoding_slots import cache_bytes_per_token, max_decoding_slots
from rlgraph.passes.cost.deployment import Deployment
from rlgraph.passes.cost.task import Task, device_takeovers
from rlgraph.passes.cost.transitions import offload_round_trip_cost
from rlgraph.passes.memo import get_or_compute
from rlgraph.passes.placement.search.components import Component
from rlgraph.passes.placement.search.option import Option
from rlgraph.passes.placement.search.search_settings import SearchSettings
from rlgraph.passes.placement.search.strategies import Strategies
from rlgraph.passes.placement.search.strategy import Key, Split, Strategy
from rlgraph.passes.placement.search.weight_transfer_keys import make_split, weight_transfer_key


class MadeOptions(Strategies):
    """The options of strategies by their number of replicas, each made once."""

    def __init__(self, tasks: Sequence[Task], constants: Constants, settings: SearchSettings) -> None:
        super().__init__(tasks, constants, settings)
        self.options_made = 0
        self._made: dict[tuple[Strategy, int], tuple[Option, ...]] = {}
        """The options of each strategy by their number of replicas."""
        self._splits: dict[Split, Split] = {}
        self._stays: dict[int, tuple[float, ...]] = {}

    def may_offload(self, deployment: Deployment) -> bool:
        """Return whether a model may be offloaded to the host's memory while it is not at work. What is called a CPU's
        device memory is the host's memory already."""
        return self.settings.offload and deployment.engine_spec.sleeps and deployment.island.device.kind != "cpu"

    def options_of_replica_count(self, component: Component, strategy: Strategy, copies: int) -> tuple[Option, ...]:
        """Return the options of so many replicas, made once."""
        # This is asked so often that a closure for each time would count.
        made = self._made.get((strategy, copies))
        if made is None:
            made = self._made[strategy, copies] = self.make_options(component, strategy, copies)
        return made

    def make_options(self, component: Component, strategy: Strategy, copies: int) -> tuple[Option, ...]:
        """Return the options of so many replicas: with the model staying on its devices and, where it may be, offloaded
        in between."""
        self.options_made += 1
        strategy = strategy.for_replicas(copies)
        deployment = strategy.deployment
        times = tuple([self.tasks[number].repetitions for number in component.tasks])
        split, kind, sent = get_or_compute(strategy.sent, copies, lambda: self._sent(component, deployment, copies))
        high = strategy
        if strategy.caches:
            # With a cache of more than its rows fill it is no faster.
            high = strategy.caches.strategy_with_cache_at_least(self.filled_cache_bytes(component, deployment, copies))
            kind = kind, deployment.mesh, deployment.adapters
        if component.shared:
            # Others have to be split alike: one split is no better than another.
            kind = kind, deployment.engine, deployment.mesh, copies
        still, sleeps = (0.0,) * len(times), self.may_offload(deployment)
        hosts = self.settings.hosts
        optimizer = self.constants.unpinned_part * strategy.optimizer_host_bytes(copies) if hosts else 0.0
        staying = Option(strategy, copies, split, False, times, still, kind, sent, high, (optimizer,) * hosts)
        said = component.pin.sleep if component.pin else None
        # Those that share processes are awake at once: their bytes would add up.
        sleeps &= component.shared is None or bool(said)
        if not sleeps or said is False:
            return (staying,)
        moved = self.offload_seconds_per_step(component, strategy, copies)
        hosted = (optimizer + (0.0 if component.receives_weights else strategy.offloaded_host_bytes(copies)),)
        asleep = Option(strategy, copies, split, True, times, moved, kind, sent, high, hosted)
        return (asleep,) if said else (staying, asleep)

    def _sent(self, component: Component, deployment: Deployment, copies: int) -> tuple[Split, object, Key]:
        """Return the split of so many replicas, and what decides how fast weights and rows come from them, or to
        them."""
        split = make_split(component, deployment, copies)
        split = self._splits.setdefault(split, split)
        kind, sent = weight_transfer_key(component, deployment, split)
        return split, kind, (*sent, -copies) if self.settings.apart else sent

    def offload_seconds_per_step(self, component: Component, strategy: Strategy, copies: int) -> tuple[float, ...]:
        """Return for each of its tasks the seconds of a step in which an offloaded model is brought back for it, and
        offloaded again."""
        deployment, (resident, _) = strategy.deployment, strategy.needed_bytes(copies)
        once = offload_round_trip_cost(
            component.main_operation,
            resident - deployment.kv_bytes - strategy.never_offloaded_bytes,
            deployment,
            component.receives_weights,
            self.constants,
        ).seconds
        return tuple([once * times for times in self.onloads_per_step(component)])

    def onloads_per_step(self, component: Component) -> tuple[float, ...]:
        """Return for each of its tasks how often in a step it comes to its devices, if it is offloaded in between."""
        numbers = component.tasks
        return get_or_compute(
            self._stays,
            id(component),
            lambda: tuple([device_takeovers(self.tasks, number, numbers) for number in numbers]),
        )

    def component_batches(self, component: Component) -> list[Batch]:
        """Return the rows of all operations that a component does."""
        return [batch for _, batches in component.operation_batches(self.tasks) for batch in batches]

    def filled_cache_bytes(
        self, component: Component, deployment: Deployment, copies: int, longest: bool = False
    ) -> float:
        """Return the bytes of the cache that its rows fill in the end, with which it is as fast as with more. longest:
        if all of them are the longest."""
        most, rows = max_decoding_slots(deployment), self.component_batches(component)
        tokens = [
            min(most, batch.rows_of_fullest_replica(copies))
            * (batch.mean_row_tokens.longest if longest else batch.prompt.mean + batch.response.mean)
            for batch in rows
        ]
        return cache_bytes_per_token(component.config, deployment) * max(tokens, default=0.0)
