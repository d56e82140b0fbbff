"""What environments and functions take of a step: the search and the simulator say the same, wherever they answer."""

from __future__ import annotations

from math import ceil
from pathlib import Path

import pytest

import rlgraph
from rlgraph.api.target import workload
from rlgraph.explain.critical_path import critical_path
from rlgraph.explain.simulate import simulate
from rlgraph.passes.compilation.assumed_workload import assumed_workload
from rlgraph.passes.cost.constants import default_constants

AGENT = Path(rlgraph.__file__).parent / "algorithms" / "agent.rlf"
HOST = default_constants("gpu").host
ROWS, TURNS, ANSWER_S = 1024, 4, 0.5
"""Of the program's step: 128 tasks, 8 episodes each; the turns of each, and the seconds of an answer."""


@pytest.mark.parametrize("cpus", [0, 16])
def test_compiling_and_simulating_agree(cpus: int) -> None:
    schedule = f"schedule agent\npool judges = {cpus} cpus\nplace shell on judges\n" if cpus else None
    rows = workload("300", "600", turns=f"{TURNS}", environment_seconds=f"{ANSWER_S}")
    made = rlgraph.compile(AGENT, schedule=schedule, cluster="1x8:h100-80gb", workload=rows)
    found = simulate(made, workload=rows)
    # The program evaluates every 20 steps, and this step is none of them.
    assert found.seconds == pytest.approx(made.choice.search_result.seconds, rel=0.03)
    copies = made.plan.group_of_role("actor", "interact").mesh.axis_size("dp")
    # Without a pool of its own, each copy has its rows answered by one process.
    answered = TURNS * ceil(ROWS / (cpus or copies)) * ANSWER_S
    [acted] = [work for work in found.works if work.op == "interact"]
    assert answered < acted.seconds < 1.1 * answered and acted.parts["environment"] > 0
    [episode] = [
        each for each in critical_path(made.choice.problem, made.choice.search_result) if each.name == "episode"
    ]
    assert sum(episode.parts.values()) == pytest.approx(episode.seconds)
    assert episode.parts["environment"] > 0
    called = [work for work in found.works if work.op == "call"]
    assert [(work.start, work.end) for work in called] == [(acted.start, acted.end)] * bool(cpus)
    if cpus:
        [judges] = [time for time in found.pools if time.pool == "judges"]
        assert judges.busy == pytest.approx(answered)


def test_workers_share_the_calls() -> None:
    """Of a function one process has all its processes."""
    (alone, whole), (shared, less) = (calls(name="grpo", line="exact_match", called="score", workers=n) for n in (1, 4))
    assert shared - HOST.node == pytest.approx((alone - HOST.node) / 4, rel=0.01)
    assert whole - less == pytest.approx(alone - shared, rel=0.01)


def test_workers_share_the_episodes() -> None:
    """Of an environment each copy of the model that acts."""
    (alone, whole), (shared, less) = (calls(name="agent", line="Shell", called="episode", workers=n) for n in (1, 4))
    assert TURNS * ROWS / 8 * ANSWER_S < alone < 1.05 * TURNS * ROWS / 8 * ANSWER_S and 3.5 < alone / shared < 4
    assert whole - less == pytest.approx(alone - shared, rel=0.01)


def calls(name: str, line: str, called: str, workers: int) -> tuple[float, float]:
    """Return the seconds of a work that calls the user's code, and of all works."""
    source = (AGENT.parent / f"{name}.rlf").read_text()
    [declared] = [each for each in source.splitlines() if f':{line}"' in each]
    text = source.replace(declared, declared.replace(f':{line}"', f':{line}", workers={workers}'))
    rows = workload("300", "600")
    if name == "agent":
        rows = workload("300", "600", turns=f"{TURNS}", environment_seconds=f"{ANSWER_S}")
    made = rlgraph.compile(text, cluster="1x8:h100-80gb", workload=rows)
    found = simulate(made, workload=rows)
    assert found.seconds == pytest.approx(made.choice.search_result.seconds, rel=0.03)
    [work] = [each for each in found.works if each.name == called]
    options = made.choice.search_result.options
    return work.seconds, sum(made.choice.problem.host_task_seconds) + sum(sum(each.seconds) for each in options)


def test_what_nobody_tells_of_an_environment_is_said() -> None:
    def said(path: Path, **told: str | float) -> list[tuple[str, str]]:
        made = rlgraph.compile(path, cluster="1x8:h100-80gb", workload=workload("300", "600", **told))
        return [(each.code, each.message) for each in made.diagnostics]

    assumed = "of the environment `shell` it is assumed "
    assert said(AGENT) == [("W0966", f"{assumed}that it takes 1 ms for an answer and that all of 10 turns are played")]
    assert said(AGENT, environment_seconds="3") == [("W0966", f"{assumed}that all of 10 turns are played")]
    assert said(AGENT, environment_seconds="3", turns="4") == []
    [(code, message)] = said(AGENT, environment_seconds="mean=2,max=30", turns="4")
    assert code == "W0967" and "seconds of environments" in message
    [(code, message)] = said(AGENT.parent / "grpo.rlf", environment_seconds="3")
    assert code == "W0968" and "`--environment-seconds`" in message
    [(code, message)] = said(AGENT.parent / "grpo.rlf", kept_tokens=64)
    assert code == "W0968" and "`--kept-tokens`" in message


def test_a_plan_file_has_what_was_told_of_episodes(tmp_path: Path) -> None:
    told = {"turns": "4", "environment_seconds": "mean=2, p99=15", "observation_tokens": "200"}
    rows = workload("300", "600", **told)
    made = rlgraph.compile(AGENT, cluster="1x8:h100-80gb", workload=rows)
    (tmp_path / "agent.plan.json").write_text(made.plan_json(tmp_path), "utf-8")
    assert assumed_workload(rlgraph.load_plan(tmp_path / "agent.plan.json")) == rows


def test_observations_are_read_and_not_trained_on() -> None:
    """By all that read episodes: three of four are in the last turn's prompt."""
    found = [
        simulate(made_with(tokens), workload=workload("300", "600", turns="4", observation_tokens=tokens))
        for tokens in ("0", "400")
    ]
    assert found[1].tokens - found[0].tokens == pytest.approx(ROWS * 3 * 400)
    for op in ("interact", "train"):
        few, many = (sum(work.seconds for work in one.works if work.op == op) for one in found)
        assert many > 1.1 * few


def made_with(tokens: str) -> rlgraph.Compiled:
    return rlgraph.compile(
        AGENT, cluster="1x8:h100-80gb", workload=workload("300", "600", turns="4", observation_tokens=tokens)
    )
