"""What the ranks of the Megatron tests do, and how what they hold is put together again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rlgraph.backends.engines.base import EngineError, MicroBatch, ModelCall, TrainOptions
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.sources import ModelSpec, RandomWeights
from rlgraph.backends.engines.tokenizers import WordTokenizer
from rlgraph.backends.engines.transformers.engine import TransformersEngine
from rlgraph.catalog.models.families import CORRECTION, ModelKind
from rlgraph.ir import mesh as meshes
from rlgraph.ir.layout import LocalTensor, layer_tensor_name
from rlgraph.ir.mesh import Mesh
from tests.backends.engines.models import source
from tests.backends.engines.one_call import OneCall

# 41 tokens: no number of ranks divides the vocabulary.
WORDS = WordTokenizer(" ".join(f"t{i}" for i in range(3, 41)))

_USUAL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
_SHORT = {"num_hidden_layers": 2}
"""Of those that no pipeline cuts into stages of several layers: between processes each layer takes long."""
_THETA = {"rope_type": "default", "rope_theta": 1e6}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_DEEPSEEK: dict[str, Any] = _USUAL | {
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 12,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "q_lora_rank": 20,
    "kv_lora_rank": 12,
    "qk_rope_head_dim": 6,
    "qk_nope_head_dim": 10,
    "v_head_dim": 8,
    "rms_norm_eps": 1e-5,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("qwen2", _USUAL | _SHORT | {"rope_parameters": _THETA}),
    "tied": ("qwen2", _USUAL | {"tie_word_embeddings": True, "rms_norm_eps": 1e-5}),
    "llama": ("llama", _USUAL | {"rope_parameters": _LLAMA3, "rms_norm_eps": 1e-5}),
    "mistral": ("mistral", _USUAL | _SHORT | {"sliding_window": None}),
    # Windows shorter than the rows.
    "window": ("mistral", _USUAL | {"sliding_window": 5}),
    "granite": (
        "granite",
        _USUAL
        | _SHORT
        | {
            "embedding_multiplier": 1.5,
            "residual_multiplier": 0.7,
            "attention_multiplier": 0.5,
            "logits_scaling": 2.0,
            "tie_word_embeddings": True,
        },
    ),
    "gemma2": (
        "gemma2",
        _USUAL | {"head_dim": 16, "sliding_window": 5, "final_logit_softcapping": 3.0, "attn_logit_softcapping": 2.0},
    ),
    "gemma3_text": ("gemma3_text", _USUAL | {"head_dim": 16, "sliding_window": 5, "sliding_window_pattern": 2}),
    # Several layers in each of several parts of a stage, with and without a window.
    "deep": ("gemma2", _USUAL | {"num_hidden_layers": 8, "head_dim": 16, "sliding_window": 5}),
    # Stages have unlike numbers of layers.
    "odd": ("gemma2", _USUAL | {"num_hidden_layers": 5, "head_dim": 16, "sliding_window": 5}),
    "phi3": ("phi3", _USUAL | _SHORT | {"pad_token_id": 0}),
    "qwen3": ("qwen3", _USUAL | {"head_dim": 16, "num_key_value_heads": 4}),
    "mixtral": ("mixtral", _USUAL | _SHORT | {"num_local_experts": 4, "num_key_value_heads": 4}),
    "qwen2_moe": (
        "qwen2_moe",
        _USUAL
        | {
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 12,
            "shared_expert_intermediate_size": 20,
        },
    ),
    "qwen3_moe": (
        "qwen3_moe",
        _USUAL
        | {
            "head_dim": 16,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 12,
            "norm_topk_prob": True,
        },
    ),
    "deepseek_v3": ("deepseek_v3", _DEEPSEEK),
    # No numbers below queries, more experts that all tokens take, values wider than keys; one layer is as all others.
    "moonlight": (
        "deepseek_v3",
        _DEEPSEEK
        | _SHORT
        | {
            "q_lora_rank": None,
            "n_shared_experts": 2,
            "n_group": 1,
            "topk_group": 1,
            "v_head_dim": 24,
            "first_k_dense_replace": 0,
            "norm_topk_prob": False,
        },
    ),
}


def write(model: str, kind: ModelKind, folder: Path) -> ModelSpec:
    """A model's folder in which no bias is 0 and no norm is 1: a part that lies in a wrong place then shows."""
    family, config = MODELS[model]
    engine = TransformersEngine.open(ModelSpec(kind, RandomWeights(family, config, WORDS)))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in engine.model.parameters():
            if parameter.dim() == 1:
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
        for name, buffer in engine.model.named_buffers():
            if name.endswith(CORRECTION):
                buffer += 0.3 * torch.randn(buffer.shape, generator=generator)
    engine.save(folder)
    return ModelSpec(kind, str(folder))


def rows(count: int, seed: int = 0) -> Sequences:
    """Rows of different lengths, some of them without scored tokens."""
    generator = torch.Generator().manual_seed(seed)
    prompts, responses = [], []
    for index in range(count):
        one, other = torch.randint(1, 9, (2,), generator=generator).tolist()
        prompts.append(torch.randint(3, 41, (one,), generator=generator).tolist())
        responses.append([] if index % 5 == 3 else torch.randint(3, 41, (other,), generator=generator).tolist())
    return Sequences.from_pairs(prompts, responses)


def with_routes(sequences: Sequences, model: str) -> Sequences:
    """Rows with experts of no router's choice, for three of four tokens."""
    config = MODELS[model][1]
    experts = config.get("num_experts", 0) or config.get("n_routed_experts", 0) or config["num_local_experts"]
    layers = config["num_hidden_layers"] - config.get("first_k_dense_replace", 0)
    generator = torch.Generator().manual_seed(7)
    order = torch.rand((len(sequences.tokens), layers, experts), generator=generator).argsort(-1)
    routes = order[..., : config.get("num_experts_per_tok", 2)].to(torch.int16)
    routes[torch.rand(len(routes), generator=generator) < 0.25] = -1
    return replace(sequences, routes=routes)


def score(mesh: Mesh, spec: ModelSpec, sequences: Sequences, temperatures: Sequence[float]) -> Any:
    """Everything that a model of this kind says, and whether this rank speaks."""
    from rlgraph.backends.engines.megatron.engine import MegatronEngine

    engine = MegatronEngine.open(spec, mesh, block_tokens=40)
    return engine.has_results, elsewhere(ask, engine, spec.kind, sequences, temperatures)


def score_in_one_call(mesh: Mesh, spec: ModelSpec, sequences: Sequences) -> tuple[Tensor, Tensor, int]:
    """Log-probabilities with attention row by row, and in one call a layer, and how many of these were made."""
    from rlgraph.backends.engines.megatron.engine import MegatronEngine

    engine = MegatronEngine.open(spec, mesh)
    with torch.no_grad():
        apart = engine.logprobs(sequences)
        with OneCall() as one:
            return apart, engine.logprobs(sequences), one.calls


def elsewhere(do: Callable[..., Any], *arguments: Any) -> Any:
    """In another thread than the one that made the engine, as actors call."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(do, *arguments).result()


@torch.no_grad()
def ask(engine: Any, kind: ModelKind, sequences: Sequences, temperatures: Sequence[float]) -> list[Tensor]:
    if kind == "value_lm":
        return [engine.values(sequences)]
    if kind == "reward_lm":
        return [engine.score(sequences)]
    once = temperatures[len(temperatures) // 2]
    found = [engine.logprobs(sequences, once), engine.entropy(sequences, once)]
    found.append(engine.distribution(sequences, once, "p0 ** 2 + p0 * log(p0)"))
    for temperature in temperatures:
        found += engine.logprobs_and_entropy(sequences, temperature)
    return found


@dataclass(frozen=True)
class Task:
    """Updates on some rows."""

    sequences: Sequences
    blocks: tuple[tuple[tuple[int, ...], ...], ...]
    """Of each copy its blocks, each some rows; one without rows has a loss that does not depend on the model."""
    options: TrainOptions
    steps: int = 3
    other: Sequences | None = None
    """Rejected rows: the loss is then DPO's (arXiv 2305.18290) without a reference."""
    poison: tuple[int, int] | None = None
    """At this update this row's loss is not finite."""
    empty: tuple[int, ...] = ()
    """At these updates no block has rows."""

    def micro(self, kind: ModelKind, step: int, block: Sequence[int]) -> MicroBatch:
        if step in self.empty:
            none = self.sequences.take(torch.zeros(0, dtype=torch.long))
            return MicroBatch((ModelCall("logprobs", none),), lambda answers: answers[0].sum())
        if not block:
            return MicroBatch((), lambda answers: torch.tensor(0.25))
        index = torch.tensor(block, dtype=torch.long)
        part = self.sequences.take(index)
        if kind == "value_lm":
            return MicroBatch((ModelCall("values", part),), lambda answers: ((answers[0] - 0.5) ** 2).sum())
        if kind == "reward_lm":
            return MicroBatch((ModelCall("score", part),), lambda answers: ((answers[0] - 0.5) ** 2).sum())
        if self.other is not None:
            calls = ModelCall("logprobs", part), ModelCall("logprobs", self.other.take(index))
            return MicroBatch(
                calls, lambda answers: -torch.nn.functional.logsigmoid(answers[0].sum() - answers[1].sum())
            )
        factor = float("inf") if self.poison and self.poison[0] == step and self.poison[1] in block else 1.0
        weight = torch.linspace(0.5, 1.5, int(part.scored.sum())) * factor
        squares = ModelCall("distribution", part, 0.9, "p0 ** 2")
        calls = ModelCall("logprobs", part, 0.9), ModelCall("entropy", part, 0.9), squares
        return MicroBatch(
            calls, lambda answers: -(weight * answers[0]).sum() - 0.1 * answers[1].sum() + 0.2 * answers[2].sum()
        )


class Clipped(Task):
    """GRPO's and PPO's loss of an actor (arXiv 2402.03300, 1707.06347) with numbers in the place of advantages and of
    older weights' log-probabilities; a critic's is Task's."""

    def micro(self, kind: ModelKind, step: int, block: Sequence[int]) -> MicroBatch:
        if kind != "causal_lm" or not block:
            return super().micro(kind, step, block)
        part = self.sequences.take(torch.tensor(block, dtype=torch.long))
        old = -3.0 + torch.sin(torch.arange(int(part.scored.sum()), dtype=torch.float64) + block[0])

        def loss(answers: Sequence[Tensor]) -> Tensor:
            ratio, advantage = (answers[0] - old).exp(), torch.cos(3 * old)
            clipped = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            k3 = (old - answers[0]).exp() - (old - answers[0]) - 1
            return (clipped + 0.1 * k3).sum() / 40

        return MicroBatch((ModelCall("logprobs", part),), loss)


def layers_without_numbers(mesh: Mesh, spec: ModelSpec, sequences: Sequences) -> list[str]:
    """Parameters of layers that have no gradient after a pass on `meta`, where whoever asks for a number fails."""
    from rlgraph.backends.engines.megatron.engine import MegatronEngine

    engine, device = MegatronEngine.open(spec, mesh), torch.device("meta")
    layers = engine.model.decoder.layers.to(device)
    packed = engine._pipeline._angles.packed_rows(sequences.lengths.tolist(), None, sequences.routes, device)
    shape = len(sequences.tokens), 1, engine.model.config.hidden_size
    hidden = torch.randn(shape, dtype=engine.model.config.params_dtype, device=device, requires_grad=True)
    with torch.enable_grad():
        for layer in layers:
            hidden, _ = layer(hidden, attention_mask=None, packed_seq_params=packed)
        hidden.sum().backward()
    return [name for name, weight in layers.named_parameters() if weight.requires_grad and weight.grad is None]


@dataclass(frozen=True)
class Trained:
    """A rank, or the reference, after a task."""

    told: list[dict[str, float] | str]
    """What each update returned, or the message of its error."""
    state: dict[str, Tensor]
    layout: Sequence[LocalTensor]


def train(
    mesh: Mesh,
    spec: ModelSpec,
    task: Task,
    distributed: bool = True,
    logit_numbers: int = 1 << 25,
    later: bool | None = None,
    recompute: bool = False,
) -> Trained:
    from rlgraph.backends.engines.megatron.engine import MegatronEngine

    engine = MegatronEngine.open(
        spec, mesh, distributed_optimizer=distributed, logit_numbers=logit_numbers, later=later, recompute=recompute
    )
    own = task.blocks[mesh.axis_position(dist.get_rank(), "dp")]
    return Trained(elsewhere(updates, engine, spec.kind, task, own), engine.state(), engine.layout())


def rewrite(mesh: Mesh, spec: ModelSpec, task: Task) -> dict[str, bool]:
    """Which of the ways to get at the weights do what they say, around updates."""
    from rlgraph.backends.engines.megatron.engine import MegatronEngine

    engine = MegatronEngine.open(spec, mesh)
    blocks = task.blocks[mesh.axis_position(dist.get_rank(), "dp")]
    still = replace(task, options=TrainOptions(lr=0.0), steps=1)
    found = {}
    first = engine.state()
    twin = engine.copy()
    updates(engine, spec.kind, task, blocks)
    second = engine.state()
    found["an update changes every tensor"] = not any(torch.equal(first[name], second[name]) for name in first)
    found["a copy does not follow"] = same(twin.state(), first)
    engine.load_weights(first)
    updates(engine, spec.kind, still, blocks)
    found["an update goes on from loaded weights"] = same(engine.state(), first)
    with torch.no_grad():
        for name, tensor in engine.tensors().items():
            tensor.copy_(second[name])
    engine.note_weights_written()
    updates(engine, spec.kind, still, blocks)
    found["an update goes on from written weights"] = same(engine.state(), second)
    engine.blend(first, 0.25)
    found["a blend is between"] = all(
        torch.equal(tensor, second[name].lerp(first[name], 0.75)) for name, tensor in engine.state().items()
    )
    theirs = twin.logprobs(task.sequences)
    with engine.temporary_weights(first):
        found["weights are lent"] = torch.equal(engine.logprobs(task.sequences), theirs)
    engine.load_weights(second)
    found["and given back"] = engine.has_results <= (not torch.equal(engine.logprobs(task.sequences), theirs))
    return found


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def refusals(mesh: Mesh, spec: ModelSpec, sequences: Sequences) -> list[str]:
    """The messages of what cannot be done."""
    from rlgraph.backends.engines.megatron.engine import MegatronEngine

    def refused(do: Callable[[], Any]) -> str:
        try:
            do()
        except EngineError as error:
            return str(error)
        return "nothing was refused"

    engine = MegatronEngine.open(spec, mesh)
    first = Sequences.from_lists([[3, 4]], [[True, False]])
    return [
        refused(lambda: MegatronEngine.open(spec, meshes.make_mesh(dp=mesh.rank_count))),
        refused(lambda: MegatronEngine.open(spec, meshes.make_mesh(tp=8))),
        refused(lambda: engine.values(sequences)),
        refused(lambda: engine.logprobs(first)),
        refused(lambda: engine.load_weights({})),
        refused(lambda: MegatronEngine.open(replace(spec, dtype="int4"), mesh)),
        refused(lambda: MegatronEngine.open(replace(spec, source=source("gpt2")), mesh)),
    ]


@torch.no_grad()
def updates(engine: Any, kind: ModelKind, task: Task, blocks: Sequence[Sequence[int]]) -> list[dict[str, float] | str]:
    """Of each step, as processes call it; every second one is done in parts, with the gradient of twice the loss."""
    told: list[dict[str, float] | str] = []
    for step in range(task.steps):

        def micro(block: Sequence[int], step: int = step) -> MicroBatch:
            return task.micro(kind, step, block)

        def doubled(block: Sequence[int], plain: Callable[[Sequence[int]], MicroBatch] = micro) -> MicroBatch:
            part = plain(block)
            return MicroBatch(part.calls, lambda said: 2 * part.loss(said))

        try:
            if step % 2:
                engine.clear_gradients()
                engine.add_gradients(blocks[:1], doubled)
                engine.add_gradients(blocks[1:], doubled)
                told.append(engine.apply_gradients(task.options, step, 0.5))
            else:
                told.append(engine.train_step(blocks, micro, task.options, step))
        except EngineError as error:
            told.append(str(error))
    return told


def whole(ranks: Sequence[Trained], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The global tensors from what the ranks hold; parts that several hold must be the same bits."""
    found = {name: torch.full_like(tensor, float("nan"), dtype=torch.float64) for name, tensor in like.items()}
    for rank in ranks:
        for local in rank.layout:
            for piece in local.pieces:
                if "*" not in local.name:
                    _put(found[piece.name], piece.box, rank.state[local.name], piece.at)
                    continue
                (start, stop), *box = piece.box
                for layer in range(start, stop):
                    own = rank.state[layer_tensor_name(local.name, layer - start + piece.at[0])]
                    _put(found[layer_tensor_name(piece.name, layer)], box, own, piece.at[1:])
    return found


def _put(target: Tensor, box: Sequence[tuple[int, int]], local: Tensor, at: Sequence[int]) -> None:
    part = local[tuple(slice(low, low + stop - start) for low, (start, stop) in zip(at, box, strict=True))]
    place = target[tuple(slice(start, stop) for start, stop in box)]
    known = ~place.isnan()
    assert torch.equal(place[known], part[known].double()), "two ranks hold different values"
    place.copy_(part)
