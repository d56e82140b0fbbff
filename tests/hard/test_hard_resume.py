"""A run on hard devices goes on with hard devices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from programs_on_disk import write_tiny

from rlgraph.backends.hard import seats
from rlgraph.backends.hard.node import HardNodes
from rlgraph.backends.ray import cluster
from rlgraph.cli import run_command

ROOMY = "hard:2x1GiB(process=0, communicator=0)"


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The memory of the devices on which processes were seated."""
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path)
    found: list[int] = []

    def hard_seats(plan: object, nodes: HardNodes, *more: object) -> object:
        found.append(nodes.memory)
        return seats.hard_seats(plan, nodes, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(cluster, "hard_seats", hard_seats)
    return found


def test_it_keeps_its_devices_or_takes_others(given: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    """Some seconds."""
    Path("all.rls").write_text("schedule tiny\npool all = 1 devices\n")
    words = ["--steps", "1", "--save-every", "1", "--backend", "ray", "--debug", "--threads", "1"]
    assert run_command(["run", "tiny.rlf", "all.rls", "--out", "a", *words, "--device", ROOMY]) == 0
    assert json.loads(Path("a/run.json").read_text())["device"] == ROOMY
    assert run_command(["resume", "a", "--steps", "2"]) == 0
    assert given == [1 << 30, 1 << 30]
    other = ROOMY.replace("1GiB", "2GiB")
    assert run_command(["resume", "a", "--steps", "3", "--device", other]) == 0
    assert given[2:] == [2 << 30] and json.loads(Path("a/run.json").read_text())["device"] == other
    capsys.readouterr()
    # One that has no room for the run ends it, and the next one goes on.
    assert run_command(["resume", "a", "--steps", "4", "--device", ROOMY.replace("1GiB", "10KiB")]) == 4
    assert "E0750" in capsys.readouterr().err
    assert run_command(["resume", "a", "--steps", "4", "--device", "hard:none"]) == 2
    assert "E0749" in capsys.readouterr().err
