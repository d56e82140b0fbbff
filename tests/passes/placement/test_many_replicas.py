"""Which options of a model are made on thousands of devices: few numbers of replicas, few readers beside those who
train, once for all models that do the same; and that the best ones are among them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from operator import le, lt
from pathlib import Path
from unittest.mock import patch

import pytest

import rlgraph
from rlgraph.passes.compilation import choose_plan
from rlgraph.passes.placement.choose import PlacementChoice
from rlgraph.passes.placement.query import PlacementQuery, make_problem
from rlgraph.passes.placement.search import separate_reading
from rlgraph.passes.placement.search.components import Component
from rlgraph.passes.placement.search.option import Option, SeparateReadingOption
from rlgraph.passes.placement.search.problem import PlacementProblem
from rlgraph.passes.placement.search.replica_counts import EACH, LIGHTER
from rlgraph.passes.placement.search.separate_reading import FASTER, SeparateReading
from rlgraph.passes.placement.search.strategy import Strategy
from rlgraph.passes.placement.search.virtual_stages import ChunkedStrategy

ALGORITHMS = Path(rlgraph.__file__).parent / "algorithms"
FEW = 8
"""Devices on which to read takes longer than to bring weights."""

MODEL = '"Qwen/Qwen2.5-0.5B"'


class Asked(Exception):
    """Raised in place of a search, with its question."""


def asked(question: PlacementQuery) -> PlacementChoice:
    raise Asked(question)


def problem_on(cluster: str, name: str, *models: str) -> PlacementProblem:
    """The problem that a search would be of."""
    with patch.object(choose_plan, "choose_placement", asked), pytest.raises(Asked) as raised:
        rlgraph.compile(ALGORITHMS / f"{name}.rlf", dict.fromkeys(models, MODEL), cluster=cluster)
    (question,) = raised.value.args
    return make_problem(question)


@pytest.fixture(scope="module")
def problem() -> PlacementProblem:
    return problem_on("1024x8:b200-180gb", "ppo", "base", "judge")


def strategies(problem: PlacementProblem) -> Iterator[tuple[Component, Strategy]]:
    (island,) = problem.cluster.islands
    for component in problem.components:
        for strategy in chain.from_iterable(problem.options.strategies_by_split(component, island)):
            if not isinstance(strategy, ChunkedStrategy) and not strategy.caches:
                yield component, strategy


def test_the_fastest_number_of_replicas_is_tried(problem: PlacementProblem) -> None:
    """Or one that is as fast in all tasks, and hardly heavier, as each that is left out has; from more replicas to
    fewer the seconds go down and up again, and not evenly."""
    counts, asked, every = problem.options.counts, 0, 0
    for component, strategy in strategies(problem):
        most = strategy.most_replicas(8192)
        possible = [number for number in counts.possible_replica_counts(component, most) if number > EACH]
        tried = counts.faster_replica_counts(component, strategy, most)
        kept = [number for number in tried if number > EACH]
        least = min(map(sum, map(strategy.task_seconds, possible)), default=0.0)
        assert not possible or any(sum(strategy.task_seconds(number)) <= 1.005 * least for number in tried)
        asked, every = asked + len(kept), every + len(possible)
    assert 0 < asked < every / 5


def test_more_replicas_that_are_slower_have_to_be_lighter(problem: PlacementProblem) -> None:
    for component, strategy in strategies(problem):
        kept = problem.options.counts.faster_replica_counts(component, strategy, strategy.most_replicas(8192))
        many = [number for number in kept if number > EACH]
        for more, fewer in zip(many, many[1:], strict=False):
            if all(map(le, strategy.task_seconds(fewer), strategy.task_seconds(more))):
                held, active = strategy.needed_bytes_bound(more)
                other_held, other_active = strategy.needed_bytes_bound(fewer)
                assert any(map(lt, [(1 + LIGHTER) * one for one in (held, *active)], (other_held, *other_active)))


@pytest.mark.parametrize("lighter", [separate_reading.LIGHTER, 1e-4])
def test_readers_are_those_that_comparing_all_of_them_leaves(problem: PlacementProblem, lighter: float) -> None:
    options, (island,) = problem.options, problem.cluster.islands
    (whole,) = (component for component in problem.components if id(component) in options.parts)
    _, trained, read = options.parts[id(whole)]
    trainers, readers = (options.undominated_options(part, island, FEW) for part in (trained, read))
    reading, found = SeparateReading(options, options.parts), 0
    for trainer in trainers[::3]:
        together = [FASTER * seconds for seconds in reading.reading_seconds_of_trainer(whole, read, trainer)]
        keys = {}
        for reader in readers:
            if reader.split != trainer.split:
                first, *rest = reader.seconds
                first += options.reading.sync_seconds(whole, trainer, reader)
                keys[reader] = (reader.resident, *reader.active, first, *rest)
        best = {
            reader
            for reader, key in keys.items()
            if any(map(lt, key[-len(together) :], together))
            and not any(other != key and all(map(le, other, key)) for other in keys.values())
        }
        with patch.object(separate_reading, "LIGHTER", lighter):
            pairs = [*reading.options_of_trainer(whole, trainer, readers)]
        made = [option.reader for option in pairs if isinstance(option, SeparateReadingOption)]
        assert {*made} <= best
        # Those that are left out need hardly less than one that is no slower.
        for reader in best:
            spared, tasks = lighter * reader.island.device.memory, len(together)
            allowed = (*(size + spared for size in keys[reader][:-tasks]), *keys[reader][-tasks:])
            assert any(all(map(le, keys[other], allowed)) for other in made)
        found += len(made)
    assert found


def test_few_weights_are_asked_for_beside_who_trains(problem: PlacementProblem) -> None:
    """Where reading takes no longer than the fewest seconds in which weights come, none are."""
    options, (island,) = problem.options, problem.cluster.islands
    (whole,) = (component for component in problem.components if id(component) in options.parts)
    trainers, readers = (options.undominated_options(part, island, FEW) for part in options.parts[id(whole)][1:])
    reading = SeparateReading(options, options.parts)
    with patch.object(reading, "sync_seconds", side_effect=options.reading.sync_seconds) as asked:
        for trainer in trainers:
            list(reading.options_of_trainer(whole, trainer, readers))
    assert 0 < asked.call_count < len(trainers) * len(readers) / 3


def test_models_that_do_the_same_share_their_options() -> None:
    problem = problem_on("1x8:h100-80gb", "safe_rlhf", "base")
    names = [component.name for component in problem.components]
    twin_of = {name: twin.name for name, twin in zip(names, problem.twins, strict=True)}
    assert twin_of["v_cost"] == "v_gain"
    assert [twin_of[name] for name in ("actor", "actor.generate", "ref", "v_gain")] == [
        "actor",
        "actor.generate",
        "ref",
        "v_gain",
    ]
    (island,) = problem.cluster.islands

    def keys(component: Component) -> list[tuple[object, ...]]:
        found: tuple[Option, ...] = problem.options.undominated_options(component, island, 8)
        return [(option.deployment.mesh, option.copies, *option.key) for option in found]

    assert keys(problem.components[names.index("v_cost")]) == keys(problem.components[names.index("v_gain")])
