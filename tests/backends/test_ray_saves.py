"""Checkpoints of a plan's processes, as objects in this one: of what goes on from step to step. On actors:
`ray/test_saves.py`."""

from __future__ import annotations

import json
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from scheduled import compiled
from tiny import EPS, data_folder, weights

from rlgraph.backends.ray import backend
from rlgraph.backends.ray.processes import InlineProcesses
from rlgraph.backends.ray.row_refs import Address
from rlgraph.backends.ray.worker import Worker
from rlgraph.backends.virtual_clock import VirtualClock
from rlgraph.runs.checkpoint import disk
from rlgraph.runs.trace_check import check_trace

PROGRAM = f"""
algorithm going
model actor  = causal_lm({weights(0)})
data prompts = jsonl("prompts.jsonl", batch=1)
func late    = python("late.py:late")

step async(staleness=2, order=arrival):
    collect prompts(2, ahead=2.0):
        rollout = actor.generate(prompts, n=2, max_tokens=5)
        reward  = late(rollout)
        keep prompts where mean(reward, by=prompts) > -1
    now     = actor.logprobs(rollout)
    weight  = min(exp(now - rollout.logprobs), 5.0)
    train actor(lr=0.02, eps={EPS}):
        minimize mean(-weight * actor.logprobs(rollout) * reward)
    report age = max(rollout.age), reward = mean(reward)
"""
SCHEDULE = """
pool learn = 1 devices
pool play = 1 devices
pool judges = 4 cpus
place actor.train, actor.logprobs on learn(engine=transformers)
place actor.generate on play(engine=transformers)
place late on judges
"""
LATE = """
def late(prompts, completions):
    return [float(len(text)) for text in completions]
"""


@pytest.mark.long
def test_batches_that_go_on_begin_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the rows that they had read: none is lost, and none is trained on twice or too old, or recorded twice."""
    data_folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "late.py").write_text(LATE)
    # In virtual time work overtakes work: one batch of three is judged for longer than a step takes.
    clocks: list[VirtualClock] = []
    turns = cycle((0.1, 10.0, 0.1))
    call = InlineProcesses.call

    def virtual() -> VirtualClock:
        clocks.append(VirtualClock())
        return clocks[-1]

    def slow(processes: InlineProcesses, who: Address, method: Any, *args: Any, **named: Any) -> Any:
        if method is Worker.run_packed_request and who[0] == "judges":
            clocks[-1].sleep(next(turns))
        elif method is Worker.run_packed_request:
            clocks[-1].sleep(0.5)
        return call(processes, who, method, *args, **named)

    monkeypatch.setattr(backend, "InlineClock", virtual)
    monkeypatch.setattr(InlineProcesses, "call", slow)
    made = compiled(PROGRAM, {}, SCHEDULE, tmp_path)
    how: dict[str, Any] = {"threads": 1, "progress": False, "backend": "ray", "debug": True, "record": "rec"}
    made.run(3, out="run", save_every=1, keep=3, **how)
    going = {}
    for path in disk.complete_checkpoints(Path("run/checkpoints")):
        _, *batches = json.loads((path / "checkpoint.json").read_text())["things"]["prompts.surplus"]["Surplus"]
        going[path] = len(batches)
    assert any(going.values())
    last = max(path for path, count in going.items() if count)
    for path in going:
        if path > last:
            disk.remove_folder(path)
    again = made.run(6, resume="run", **how)
    assert [metrics["step"] for metrics in again.metrics] == [1, 2, 3, 4, 5, 6]
    found = check_trace(Path("run"))
    # They were sampled when they began, and are when they begin again.
    told = [each.message for each in found.diagnostics]
    assert all("was sampled twice" in each for each in told), told
    assert (found.steps, found.trained) == (6, 24) and max(found.ages) <= 2
    rows = [json.loads(line)["row"] for file in Path("rec").glob("step-*") for line in file.read_text().splitlines()]
    assert len(rows) == len({*map(tuple, rows)}) >= 24
