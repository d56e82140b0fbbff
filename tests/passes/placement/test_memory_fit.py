"""Whether anything fits at all, beside brute force; searches that always answer, and refusals that ask few questions."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

import rlgraph
from rlgraph.errors import ProgramError
from rlgraph.passes.placement.next_best_plans import choices_with_unlike_pools
from rlgraph.passes.placement.search.allocation_boxes import AllocationBoxes
from rlgraph.passes.placement.search.memory_fit import MemoryFit, with_smallest_cache
from rlgraph.passes.placement.search.options import Options
from rlgraph.passes.placement.search.problem import PlacementProblem
from rlgraph.passes.placement.search.search import Search
from tests.passes.placement.test_choose import ALGORITHMS, LENGTHS
from tests.passes.placement.test_search import CONSTANTS, Case, brute, random_case, valued
from tests.suites import few

pytestmark = pytest.mark.usefixtures("slow_rows")


def narrowed(case: Case, share: float, offload: bool) -> Case:
    """The same with devices that have a share of their memory."""
    old = case.problem
    islands = tuple(
        replace(island, device=replace(island.device, memory=int(share * island.device.memory)))
        for island in old.cluster.islands
    )
    options = Options(old.tasks, CONSTANTS, replace(old.options.settings, offload=offload, fuses=()))
    cluster = replace(old.cluster, islands=islands)
    problem = PlacementProblem(old.components, cluster, options, old.goal, older=old.staleness_steps)
    return replace(case, problem=problem)


@pytest.mark.parametrize("seed", few(range(60), *range(20, 30)))
def test_something_fits_exactly_where_brute_force_says_so(seed: int) -> None:
    for share, offload in ((1.0, False), (0.9, True), (0.8, False)):
        case = narrowed(random_case(seed), share, offload)
        fit = MemoryFit(case.problem, AllocationBoxes(case.problem.cluster, case.candidates))
        fitting = fit.fitting_plan(case.candidates)
        assert (fitting is None) == (min(brute(case).values()) == inf)
        if fitting is not None:
            blocks, devices, options = fitting
            chosen = [with_smallest_cache(options[number]) for number in sorted(options)]
            assert valued(case, blocks, devices, chosen) < inf


def test_some_problems_fit_and_others_do_not() -> None:
    cases = [narrowed(random_case(seed), 0.85, False) for seed in range(20, 30)]
    fits = [
        MemoryFit(case.problem, AllocationBoxes(case.problem.cluster, case.candidates)).fitting_plan(case.candidates)
        for case in cases
    ]
    assert 2 < sum(fit is None for fit in fits) < 8


def test_a_refusal_searches_for_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would fit is asked of memory alone, so that a refusal takes no longer than a plan."""
    sets = {"base": '"meta-llama/Llama-2-70b-hf"'}
    begun: list[str] = []
    run = Search.run_until_deadline

    def counted(self: Search) -> None:
        begun.append(self.problem.cluster.text)
        run(self)
        assert self.problem.options.bounds_computed == 0, "nothing fits: nothing is bounded"

    monkeypatch.setattr(Search, "run_until_deadline", counted)
    with pytest.raises(ProgramError) as found:
        rlgraph.compile(ALGORITHMS / "grpo.rlf", sets, cluster="1x8:l4", workload=LENGTHS, offload=False)
    assert begun and set(begun) == {"1x8:l4-24gb"}
    assert all("it fits on" in fault.hint for fault in found.value.diagnostics)


def test_where_one_pool_samples_twice_more_devices_are_not_slower() -> None:
    """Steps of such plans are the simulator's, which the search does not minimize."""
    steps = [
        rlgraph.compile(ALGORITHMS / "remax.rlf", cluster=f"{nodes}x8:h100-80gb").choice.simulated_step_s
        for nodes in (128, 256)
    ]
    few, many = steps
    assert few and many and many <= few


def test_plans_that_stream_are_compared_with_pools_of_unlike_sizes() -> None:
    """StreamRL's split, a quarter for training, is none that whole batches would choose."""
    choice = rlgraph.compile(ALGORITHMS / "async_grpo.rlf", cluster="2x8:h100-80gb", stream=False).choice
    assert len(choice.search_result.blocks) == 2
    others = [*choices_with_unlike_pools([choice], inf)]
    sizes = {other.search_result.devices for other in others}
    assert sizes and sizes <= {(4, 12), (8, 8), (12, 4)} - {choice.search_result.devices}
    for other in others:
        found = other.search_result
        assert found.blocks == choice.search_result.blocks and found.value >= choice.search_result.value
        assert other.plan.group_of_role("actor", "train").pool != other.plan.group_of_role("actor", "generate").pool
