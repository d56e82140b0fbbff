"""The same numbers as on the CPU: what models say of rows, gradients, what is sampled, and whole programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

import rlgraph
from benchmarks.gpu.measure import Row, Setting, engine
from rlgraph.api.compiled import Compiled
from rlgraph.backends.engines.base import Sampling
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.transformers.engine import TransformersEngine
from rlgraph.catalog.models.families import ModelKind

FAMILIES = {
    "qwen2": {
        "hidden_size": 256,
        "intermediate_size": 704,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
    },
    "gpt2": {"n_embd": 256, "n_layer": 4, "n_head": 4, "n_positions": 512},
}
READS: dict[ModelKind, str] = {"value_lm": "values", "reward_lm": "score"}
NATS = {"float32": 1e-4, "bfloat16": 0.1}
"""Of a log-probability: the largest distance. bfloat16 has 8 bits: logits of size 4 are rounded to 1/64."""
GRADIENT = {"float32": 1e-4, "bfloat16": 0.05}
"""Distance of gradients as a share of their norm."""
METRICS = 1e-3
"""Distance of a metric of a program, as a share of what it is, or of 1 where it is less."""

PROGRAMS = Path(rlgraph.__file__).parent / "algorithms"
MODEL = (
    'random("qwen2", seed={seed}, hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4, '
    "num_key_value_heads=2, max_position_embeddings=256, tokenizer=bytes())"
)
CHANGED = {
    "grpo": ("prompts", "base", "actor", "correct", "n"),
    "ppo": ("prompts", "base", "actor", "judge", "critic", "reward"),
}
REWARD = """\
def odd(prompts, completions, completion_ids, **columns):
    return [sum(ids) % 7 / 6 for ids in completion_ids]
"""


def rows(setting: Setting) -> Iterator[Row]:
    families = list(FAMILIES)[: 1 if setting.small else None]
    for family in families:
        for dtype in ("float32", "bfloat16"):
            yield from _models(family, dtype, setting)
    for name in ("grpo", "ppo"):
        yield _program(name, setting)


def _models(family: str, dtype: str, setting: Setting) -> Iterator[Row]:
    """Of one family at one width, beside the same on the CPU."""
    made = sequences(8 if setting.small else 32)
    here, there = (engine(FAMILIES[family], device, dtype, family=family) for device in ("cpu", setting.device))
    what = f"{family}, {dtype}"
    kinds = {
        kind: [engine(FAMILIES[family], at, dtype, kind, family) for at in ("cpu", setting.device)] for kind in READS
    }
    yield from alike(what, dtype, {"causal_lm": (here, there), **kinds}, made)
    one, other = (_gradient(each, made) for each in (here, there))
    yield Row(f"{what}: gradient", float((one - other).norm() / one.norm()), "of its norm", most=GRADIENT[dtype])
    sampled = there.generate(sequences(8, scored=False), 4, Sampling(24), np.arange(32, dtype=np.uint64))
    with torch.no_grad():
        read_again = there.logprobs(sampled.sequences)
    yield Row(f"{what}: sampled and read", apart(sampled.logprobs, read_again), "nats", most=NATS[dtype])


def alike(what: str, dtype: str, pairs: Mapping[ModelKind, Sequence[Any]], made: Sequences) -> Iterator[Row]:
    """What two engines say of the same rows, with the same model of each kind."""
    reads: list[tuple[ModelKind, str, str]] = [("causal_lm", "logprobs", "nats"), ("causal_lm", "entropy", "nats")]
    for kind, read, unit in [*reads, *((kind, read, "") for kind, read in READS.items())]:
        with torch.no_grad():
            found = apart(*(getattr(each, read)(made) for each in pairs[kind]))
        yield Row(f"{what}: {read}", found, unit, most=NATS[dtype])


def sequences(count: int, scored: bool = True) -> Sequences:
    made = np.random.default_rng(3)
    lengths = made.integers(8, 120, count)
    lists = [made.integers(1, 250, length).tolist() for length in lengths]
    return Sequences.from_lists(lists, [[scored and place > 3 for place in range(len(row))] for row in lists])


def apart(one: Tensor, other: Tensor) -> float:
    return float((one.cpu().double() - other.cpu().double()).abs().max())


def _gradient(of: TransformersEngine, rows: Sequences) -> Tensor:
    """Of a weighted sum of log-probabilities, all parameters one after the other."""
    weights = torch.linspace(-1, 1, int(rows.scored.sum()))
    said = of.logprobs(rows)
    parts = torch.autograd.grad((said * weights.to(said.device)).mean(), list(of.model.parameters()))
    return torch.cat([part.flatten().cpu().double() for part in parts])


def _program(name: str, setting: Setting) -> Row:
    """Three steps in float32, sampled on the CPU and replayed on the device: the metrics have to be the same."""
    with TemporaryDirectory() as place:
        folder = Path(place)
        compiled = _compiled(name, folder)
        compiled.run(3, device="cpu", record=folder / "kept", progress=False)
        one, other = (
            compiled.run(3, device=device, replay=folder / "kept", progress=False).metrics
            for device in ("cpu", setting.device)
        )
    shared = [(a[key], b[key]) for a, b in zip(one, other, strict=True) for key in a if key != "seconds"]
    most = max(abs(x - y) / max(1.0, abs(x)) for x, y in shared)
    return Row(f"{name}.rlf, 3 steps replayed: {len(shared)} metrics", most, "of each", most=METRICS)


def _compiled(name: str, folder: Path) -> Compiled:
    rows = [{"prompt": f"say {word}>", "answer": word} for word in ("one", "two", "three", "four")]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "rewards.py").write_text(REWARD)
    text = (PROGRAMS / f"{name}.rlf").read_text()
    for old, new in {"1024": "24", "512": "24"}.items():
        text = text.replace(f"max_tokens={old}", f"max_tokens={new}")
    (folder / f"{name}.rlf").write_text(text.replace("parts=8", "parts=2").replace("parts=4", "parts=2"))
    sets = {
        "prompts": 'jsonl("prompts.jsonl", batch=4)',
        "base": MODEL.format(seed=1),
        "actor": 'causal_lm(base, dtype="float32")',
        "correct": 'python("rewards.py:odd")',
        "n": "4",
        "judge": MODEL.format(seed=2),
        "critic": 'value_lm(base, dtype="float32")',
        "reward": 'frozen(reward_lm(judge, dtype="float32"))',
    }
    return rlgraph.compile(folder / f"{name}.rlf", set={key: sets[key] for key in CHANGED[name]})
