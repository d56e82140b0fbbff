"""Self-play on real Ray actors, and replayed in one process."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("ray.util")
pytest.importorskip("vllm")

from scheduled import compiled

from rlgraph.backends.local.backend import LocalBackend
from rlgraph.backends.ray.backend import RayBackend
from rlgraph.backends.recording import claim_folder
from rlgraph.backends.worker.session import Settings
from tests.waits import NEVER

EXAMPLE = Path(__file__).parents[3] / "examples" / "self_play"
SMALLER = {"hidden_size=32": "hidden_size=64", "n=32": "n=4", "every 10": "every 2"}
"""vLLM has heads of 32 numbers and more."""


@pytest.mark.long
@pytest.mark.parametrize("engine", ["vllm", "transformers"])
def test_self_play_is_what_its_replay_is(engine: str, cluster: None, tmp_path: Path) -> None:
    """Both players act in the processes of an engine, the actor with weights that were sent to it."""
    for name in ("deals.jsonl", "nim.py"):
        (tmp_path / name).write_text((EXAMPLE / name).read_text("utf-8"), "utf-8")
    text = (EXAMPLE / "self_play.rlf").read_text("utf-8")
    for old, new in SMALLER.items():
        text = text.replace(old, new)
    schedule = "pool learn = 1 devices\npool play = 1 devices\nplace actor.train on learn\n"
    schedule += f"place actor.interact, first.interact on play(engine={engine})\n"
    made, rows = compiled(text, {}, schedule, tmp_path), tmp_path / "rows"
    settings = Settings(folder=tmp_path, record=rows)
    with claim_folder(rows, made.name, 0), closing(RayBackend(made.program, made.plan, settings, seconds=NEVER)) as ray:
        steps = list(ray.run_steps(3))
    with closing(LocalBackend(made.program, Settings(folder=tmp_path, replay=rows))) as local:
        replayed = list(local.run_steps(3))
    for step, again in zip(steps, replayed, strict=True):
        assert again.metrics == pytest.approx(step.metrics, rel=0, abs=1e-4)
    assert ["begins" in step.metrics for step in steps] == [False, True, False]
