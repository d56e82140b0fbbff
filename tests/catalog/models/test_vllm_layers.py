"""vLLM's own layers, loaded with tensors that have no number twice: where each rank has what, more ranks than heads
included."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("vllm")

from rlgraph.backends.engines.vllm.layout import layout
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.mesh import make_mesh
from tests.catalog.models.test_layouts import SHAPE, contents, held, marked


def load(rank: int, tp: int, source: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    """The weights of vLLM's layers in one of `tp` processes: the layers ask for these two numbers and no more."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor import parameter
    from vllm.model_executor.layers import linear, vocab_parallel_embedding

    with monkeypatch.context() as patch, set_current_vllm_config(VllmConfig()):
        for module in (linear, vocab_parallel_embedding, parameter):
            patch.setattr(module, "get_tensor_model_parallel_world_size", lambda: tp)
            patch.setattr(module, "get_tensor_model_parallel_rank", lambda: rank)
        fused = linear.QKVParallelLinear(SHAPE.hidden, SHAPE.head_dim, SHAPE.heads, SHAPE.kv_heads, bias=True)
        gated = linear.MergedColumnParallelLinear(SHAPE.hidden, [SHAPE.ffn] * 2, bias=False)
        embedding = vocab_parallel_embedding.VocabParallelEmbedding(SHAPE.vocab, SHAPE.hidden)
        layer = "model.layers.*."
        for letter in "qkv":
            fused.weight.weight_loader(fused.weight, source[f"{layer}self_attn.{letter}_proj.weight"][0], letter)
            fused.bias.weight_loader(fused.bias, source[f"{layer}self_attn.{letter}_proj.bias"][0], letter)
        for index, name in enumerate(("gate", "up")):
            gated.weight.weight_loader(gated.weight, source[f"{layer}mlp.{name}_proj.weight"][0], index)
        embedding.weight.weight_loader(embedding.weight, source["model.embed_tokens.weight"])
    return {
        f"{layer}self_attn.qkv_proj.weight": fused.weight,
        f"{layer}self_attn.qkv_proj.bias": fused.bias,
        f"{layer}mlp.gate_up_proj.weight": gated.weight,
        "model.embed_tokens.weight": embedding.weight,
    }


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_each_rank_has_what_its_layout_says(tp: int, monkeypatch: pytest.MonkeyPatch) -> None:
    source = {name: tensor.float() for name, tensor in marked(SHAPE).items()}
    for rank in range(tp):
        mine = contents(layout(SHAPE, make_mesh(1, 1, tp), rank), source)
        for name, theirs in load(rank, tp, source, monkeypatch).items():
            # Padding is -1 in what the layout says, and 0 in vLLM.
            ours = mine[name].clamp(min=0)
            assert torch.equal(theirs.long(), ours[0] if "*" in name else ours), (rank, name)


@pytest.mark.parametrize("family", ["mixtral", "qwen2_moe"])
def test_ranks_that_share_experts_out_have_those_that_vllm_gives_them(family: str) -> None:
    from vllm.model_executor.layers.fused_moe.expert_map_manager import determine_expert_map

    shape = Shape(family, 10, 4, 6, 2, 4, 2, 2, experts=4, experts_per_token=2, shared_ffn=8 * (family != "mixtral"))
    layouts = [layout(shape, make_mesh(ep=2), rank) for rank in range(2)]
    for name, counts in held(layouts, shape, "causal_lm").items():
        assert counts == {1 + ("norm" in name or ".gate.weight" in name or "expert_gate" in name)}, name
    for rank, mine in enumerate(layouts):
        _, places, _ = determine_expert_map(2, rank, shape.experts)
        pieces = [piece for each in mine for piece in each.pieces if ".experts." in piece.name]
        assert places is not None and {piece.box[1] for piece in pieces} == {_ends(places >= 0)}


def _ends(chosen: Tensor) -> tuple[int, int]:
    """The range of those that are chosen, one behind the other."""
    found = chosen.nonzero()[:, 0].tolist()
    assert found == list(range(found[0], found[-1] + 1))
    return found[0], found[-1] + 1
