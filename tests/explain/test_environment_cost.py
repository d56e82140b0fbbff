"""What environments and functions take of a step: the search and the simulator say the same, wherever they answer."""

from __future__ import annotations

from math import ceil
from pathlib import Path

import pytest

import rlgraph
from rlgraph.api.target import workload
from rlgraph.explain.critical_path import critical_path
from rlgraph.explain.simulate import simulate
from rlgraph.passes.cost.constants import default_constants
from tests.suites import few

AGENT = Path(rlgraph.__file__).parent / "algorithms" / "agent.rlf"
HOST = default_constants("gpu").host
ROWS, TURNS = 1024, 10
"""Of the program's step: 128 tasks, 8 episodes each."""


@pytest.mark.parametrize("cpus", [0, 16])
def test_compiling_and_simulating_agree(cpus: int) -> None:
    schedule = f"schedule agent\npool judges = {cpus} cpus\nplace shell on judges\n" if cpus else None
    rows = workload("300", "600")
    made = rlgraph.compile(AGENT, schedule=schedule, cluster="1x8:h100-80gb", workload=rows)
    found = simulate(made, workload=rows)
    # The program evaluates every 20 steps, and this step is none of them.
    assert found.seconds == pytest.approx(made.choice.search_result.seconds, rel=0.03)
    copies = made.plan.group_of_role("actor", "interact").mesh.axis_size("dp")
    shared = TURNS * ceil(ROWS / (cpus or copies)) * HOST.function_row + HOST.node
    # Without a pool of its own, each copy has its rows answered by one process.
    [acted] = [work for work in found.works if work.op == "interact"]
    assert acted.parts.get("environment", 0.0) == pytest.approx(0.0 if cpus else shared)
    [episode] = [
        each for each in critical_path(made.choice.problem, made.choice.search_result) if each.name == "episode"
    ]
    assert sum(episode.parts.values()) == pytest.approx(episode.seconds)
    assert episode.parts["overhead"] > shared > 0.02 * found.seconds
    assert ([work for work in found.works if work.op == "call"] != []) is bool(cpus)


@pytest.mark.parametrize(
    ("name", "line", "called"), few([("grpo", "exact_match", "score"), ("agent", "Shell", "episode")], "agent")
)
def test_workers_share_the_calls(name: str, line: str, called: str) -> None:
    """Of a function one process has all its processes, of an environment each copy of the model that acts."""
    source = (AGENT.parent / f"{name}.rlf").read_text()
    [declared] = [each for each in source.splitlines() if f':{line}"' in each]
    seconds: list[tuple[float, float]] = []
    for workers in (1, 4):
        text = source.replace(declared, declared.replace(f':{line}"', f':{line}", workers={workers}'))
        made = rlgraph.compile(text, cluster="1x8:h100-80gb", workload=workload("300", "600"))
        found = simulate(made, workload=workload("300", "600"))
        assert found.seconds == pytest.approx(made.choice.search_result.seconds, rel=0.03)
        [work] = [each for each in found.works if each.name == called]
        done = sum(made.choice.problem.host_task_seconds) + sum(
            map(sum, (each.seconds for each in made.choice.search_result.options))
        )
        seconds.append((work.parts.get("environment", work.seconds), done))
    (alone, whole), (shared, less) = seconds
    assert shared - HOST.node == pytest.approx((alone - HOST.node) / 4, rel=0.01)
    assert whole - less == pytest.approx(alone - shared, rel=0.01)
