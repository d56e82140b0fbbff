"""What `rlgraph simulate` shows while it works, and what Ctrl-C leaves of it; in a clock of the test's."""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path

import pytest

import rlgraph
from rlgraph.cli import run_command
from rlgraph.passes.compilation.overlap_simulation import SimulationProgress
from rlgraph.passes.placement.search import progress
from tests.interrupting import ctrl_c

PROGRAM = Path(rlgraph.__file__).parent / "algorithms" / "grpo.rlf"


def simulated(steps: int) -> int:
    return run_command(["simulate", str(PROGRAM), "--steps", str(steps)])


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by four seconds whenever it is asked."""
    ticks = count(0, 4)
    monkeypatch.setattr(progress, "monotonic", lambda: float(next(ticks)))
    monkeypatch.setattr(progress, "QUIET_S", 1.0)


@pytest.mark.usefixtures("seconds")
def test_a_simulation_shows_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulated(8) == 0
    out, err = capsys.readouterr()
    first, *others = err.splitlines()
    assert first == "simulating, 4 s: no step done yet"
    told = [line for line in others if "no step done yet" not in line]
    assert all(re.fullmatch(r"simulating, \d+ s: \d+ of 10 steps, [\d,]+ s a step", line) for line in told)
    assert len(told) > 8 and "interrupted" not in out


def test_ctrl_c_leaves_the_steps_that_are_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = SimulationProgress.show_steps_done

    def fifth(self: SimulationProgress, done: int, of: int, seconds: float | None = None) -> None:
        whole(self, done, of, seconds)
        if done == 5:
            ctrl_c()

    monkeypatch.setattr(progress, "monotonic", lambda: 0.0)
    assert simulated(3) == 0
    expected = capsys.readouterr().out
    monkeypatch.setattr(SimulationProgress, "show_steps_done", fifth)
    assert simulated(400) == 130
    out, err = capsys.readouterr()
    # The first step is none of the middle of a run, and the last one only tells what the one before waits for.
    assert err == "interrupted: 3 of 400 steps were simulated\n"
    assert out.splitlines()[0] == expected.splitlines()[0]


def test_ctrl_c_before_a_step_is_done(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "monotonic", lambda: 0.0)
    monkeypatch.setattr(SimulationProgress, "node_started", lambda *_: ctrl_c())
    assert simulated(2) == 130
    assert capsys.readouterr() == ("", "interrupted\n")


def test_a_search_for_the_lowest_price_shows_dollars(capsys: pytest.CaptureFixture[str]) -> None:
    for goal, shown in (("time", "500 ms a step"), ("cost", "$0.5 a step")):
        search = progress.SearchProgress(10.0, goal=goal)  # type: ignore[arg-type]
        with pytest.raises(progress.OutOfTime):
            search.interrupt(0.5, 0.25)
        assert f"{shown}, at most 25.0% from the best there is" in capsys.readouterr().err
