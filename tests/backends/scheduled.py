"""Programs with schedules, as users write them, for the tests of the Ray backend."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

import rlgraph
from rlgraph.api.compiled import Compiled
from rlgraph.backends.ray.backend import RayBackend
from rlgraph.backends.steps import StepResult
from rlgraph.backends.worker.session import Settings
from rlgraph.ir.graph import Program
from rlgraph.ops.program_work import model_operations
from rlgraph.runs.folder import RunFolder
from rlgraph.runs.trace_check import TraceCheck, check_trace


def compiled(text: str, changes: Mapping[str, str], schedule: str, folder: Path) -> Compiled:
    """A program whose relative paths begin in `folder`, and a schedule without its first line."""
    path = folder / "program.rlf"
    path.write_text(text)
    head = next(line for line in text.splitlines() if line.startswith("algorithm")).replace("algorithm", "schedule", 1)
    return rlgraph.compile(path, set=changes, schedule=f"{head}\n{schedule}")


def debug_metrics(made: Compiled, folder: Path, steps: int, **settings: Any) -> list[dict[str, float]]:
    """The metrics of some steps on Ray, whose processes are objects in this one."""
    with closing(RayBackend(made.program, made.plan, Settings(folder=folder, **settings), debug=True)) as backend:
        return [dict(step.metrics) for step in backend.run_steps(steps)]


def assert_goes_on_bit_for_bit(text: str, model: str, steps: int) -> None:
    """Check that a run which is interrupted before its last step ends with the metrics and the weights of a whole one;
    in the present folder."""
    Path("a.rlf").write_text(text)
    program = rlgraph.compile(Path("a.rlf"))
    options: dict[str, Any] = {"threads": 1, "progress": False}
    whole = program.run(steps, out="whole", **options)
    program.run(steps - 1, out="parts", save_every=1, **options)
    rest = program.run(steps, resume="parts", **options)
    ends = [json.loads(Path(out, "metrics.jsonl").read_text().splitlines()[-1]) for out in ("whole", "parts")]
    first, second = ({name: at[name] for name in at if not name.startswith(("seconds", "sync/"))} for at in ends)
    assert first == second and len(first) > 3
    for name, tensor in whole.models[model].engine.state().items():
        assert torch.equal(tensor, rest.models[model].engine.state()[name])


def together(program: Program) -> str:
    """All work of all models in one group."""
    models = ", ".join(name for name, work in model_operations(program).items() if work)
    return f"pool all = 1 devices\nplace {models} on all(engine=transformers)\n"


def apart(program: Program) -> str:
    """Training in one group, and all else in another one: rows go there and come back, and weights follow."""
    pools = {"learn": [], "play": []}  # type: dict[str, list[str]]
    for model, work in model_operations(program).items():
        for operation in work:
            pools["learn" if operation == "train" else "play"].append(f"{model}.{operation}")
    return "".join(
        f"pool {pool} = 1 devices\nplace {', '.join(work)} on {pool}(engine=transformers)\n"
        for pool, work in pools.items()
        if work
    )


def traced(made: Compiled, steps: list[StepResult], path: Path) -> TraceCheck:
    """What the checker says of them."""
    run = RunFolder.claim_folder(path)
    run.write_run_inputs("", made.text(), {})
    for step in steps:
        run.append_step({"step": step.number}, step.trace)
    run.close()
    return check_trace(path)
