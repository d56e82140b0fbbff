"""The peak of a step's memory beside what the plan says of it: GRPO in this process with a model of 0.5 billion random
weights in bfloat16."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import rlgraph
from benchmarks.gpu.measure import Row, Setting, config
from rlgraph.api.compiled import Compiled
from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.explain.simulate import model_configs
from rlgraph.passes.cost.constants import default_constants
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.peak_memory import Peak, pool_peaks
from rlgraph.passes.cost.tasks import main_phase, phase_tasks
from rlgraph.passes.cost.workload import Workload
from rlgraph.profiles.profile import measure_device

PROMPT = 64
NEAR = 0.15
"""How far the prediction may be from what is measured."""

PROGRAM = """\
algorithm grpo
model actor = causal_lm({source}, dtype="{dtype}")
model ref = frozen(actor)
data prompts = jsonl("prompts.jsonl", batch={batch})
func score = python("rewards.py:odd")
step:
    rollout = actor.generate(prompts, n=4, max_tokens={tokens}, min_tokens={tokens})
    reward = score(rollout)
    ref_logp = ref.logprobs(rollout)
    adv = reward - mean(reward, by=prompts)
    train actor(lr=1e-6):
        logp = actor.logprobs(rollout)
        minimize mean(mean(k3(logp, ref_logp) - adv * exp(logp - rollout.logprobs), token))
"""
REWARD = """\
def odd(prompts, completions, completion_ids, **columns):
    return [1.0 * (sum(ids) % 2) for ids in completion_ids]
"""


def rows(setting: Setting) -> Iterator[Row]:
    device = measure_device().name if setting.gpu else "cpu(memory=24GiB)"
    for batch, tokens in ((8, 24),) if setting.small else ((8, 448), (32, 960)):
        with TemporaryDirectory() as folder:
            compiled = _compiled(Path(folder), batch, tokens, setting)
            measured = _measured(compiled, setting)
            found = _predicted(compiled, tokens, device, setting)
        what = f"GRPO, {4 * batch} rows of {PROMPT + tokens:,} tokens"
        yield Row(f"{what}: measured", measured / 1e9, "GB")
        yield Row(f"{what}: planned, in {found.moment}", found.used_bytes / 1e9, "GB")
        yield Row(f"{what}: planned / measured", found.used_bytes / measured, least=1 - NEAR, most=1 + NEAR)


def _compiled(folder: Path, batch: int, tokens: int, setting: Setting) -> Compiled:
    prompts = [{"prompt": "".join(chr(97 + (i + j) % 26) for j in range(PROMPT))} for i in range(batch)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in prompts))
    (folder / "rewards.py").write_text(REWARD)
    fields = "".join(f", {name}={_said(value)}" for name, value in config("Qwen/Qwen2.5-0.5B", setting).items())
    source = f'random("qwen2", seed=1{fields}, tokenizer=bytes())'
    dtype = "bfloat16" if setting.gpu else "float32"
    (folder / "grpo.rlf").write_text(PROGRAM.format(source=source, dtype=dtype, batch=batch, tokens=tokens))
    schedule = "schedule grpo\npool all = 1 devices\nplace actor, ref on all(engine=transformers)\n"
    return rlgraph.compile(folder / "grpo.rlf", schedule=schedule)


def _said(value: object) -> str:
    """In the language."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _measured(compiled: Compiled, setting: Setting) -> int:
    """Bytes of all tensors at their most, of two steps."""
    if setting.gpu:
        torch.cuda.reset_peak_memory_stats(setting.device)
        compiled.run(2, device=setting.device, progress=False)
        return torch.cuda.max_memory_allocated(setting.device)
    from tests.passes.cost.allocated import Everywhere

    with Everywhere() as live:
        compiled.run(2, device="cpu", threads=1, progress=False)
    return live.peak


def _predicted(compiled: Compiled, tokens: int, device: str, setting: Setting) -> Peak:
    """Of tensors alone: what contexts and the allocator keep is not theirs."""
    constants = replace(
        default_constants("gpu" if setting.gpu else "cpu"),
        reserved=0,
        fragmentation=0.0,
        spare=0.0,
        process={},
        communicator=0,
    )
    workload = Workload(Lengths((float(PROMPT),)), Lengths((float(tokens),)))
    laid = phase_tasks(compiled.program, main_phase(compiled.program), workload)
    return pool_peaks(compiled.plan, laid, model_configs(compiled), read_cluster(f"1x1:{device}"), constants)["all"]
