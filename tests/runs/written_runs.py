"""Writes folders as runs write them, of any length."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import rlgraph
from rlgraph.api.compiled import Compiled
from rlgraph.runs.plan_picture import picture_text

HOSTILE = '</script><script>document.title = "taken"</script><img src=x onerror="document.title = 1">'
"""An answer that would change a page that takes it for markup."""


SCHEDULE = """schedule grpo
pool learn = 4 devices
pool play  = 4 devices
place actor.train, ref on learn(engine=megatron, dp=4)
place actor.generate on play(engine=vllm, dp=4)
"""


@cache
def _planned() -> Compiled:
    """A program on two pools, whose picture the runs have."""
    return rlgraph.compile(Path(rlgraph.__file__).parent / "algorithms" / "grpo.rlf", schedule=SCHEDULE)


def written_run(path: Path, steps: int, rows: int = 2, more: dict[str, Any] | None = None, ended: bool = True) -> Path:
    """Write a run of so many steps, with so many samples of each. more: metrics of every step."""
    path.mkdir(parents=True)
    (path / "run.json").write_text(json.dumps({"program": "grpo.rlf", "seed": 7, "set": {"batch": 8}}))
    start = {"program": "grpo", "phases": {"step": steps}, "done": 0, "predicted_s": {"generate rollout": 2.0}}
    events: list[dict[str, Any]] = [{"kind": "run_started", "time_s": 1.7e9, "step": 1, **start}]
    metrics, samples = [], []
    for step in range(1, steps + 1):
        metrics.append({"step": step, "seconds": 3.0, "reward": step / steps, "kl": 0.01 * step, **(more or {})})
        work = {"generate rollout": 1.5, "train actor": 1.0}
        done = {"phase": "step", "seconds": 3.0, "work_s": work, "scores": {"score": [0, 0.1, 0.2, 0.5, 0.6, 0.8, 1]}}
        done |= {
            "received_bytes": {"train actor": 2_000_000},
            "weights_sent": {"actor -> play.vllm": [0.25, 3_000_000]},
        }
        done |= {"waits_s": {"learn": {"generate rollout (play)": 1.5}}, "ages": {"0": 2, "1": 30 - step % 3}}
        if step == 1:
            done["memory_bytes"] = {"learn": {f"learn {rank}": 10**9 + rank for rank in range(20)}}
        events.append({"kind": "step_done", "time_s": 1.7e9 + 3 * step, "step": step, **done})
        for row in range(rows):
            texts = {"prompt": f"What is {step}+{row}?", "answer": f"It is {step + row}. {HOSTILE}"}
            given = {"reward": row / rows, "scores": {"score": row / rows}, "length": 9, "version": step - 1}
            samples.append({"step": step, "table": "rollout", "row": ["prompts", 0, row, 0], **texts, **given})
    time_s = 1.7e9 + 3 * steps + 1
    events.append({"kind": "note", "time_s": time_s, "step": steps, "text": f"a <b>note</b> {HOSTILE}"})
    if ended:
        events.append({"kind": "run_ended", "time_s": time_s, "step": steps, "outcome": "finished", "text": ""})
    (path / "plan_picture.json").write_text(picture_text(_planned(), "ray"))
    for name, records in (("metrics", metrics), ("events", events), ("samples", samples)):
        (path / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return path
