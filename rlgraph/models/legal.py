"""Which splits of a model an engine can do, and what to say of one that it cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rlgraph.ir.mesh import Mesh
from rlgraph.models import vllm
from rlgraph.models.families import Kind
from rlgraph.models.shape import Shape

_AXES = {"transformers": ("dp",), "megatron": ("dp", "pp", "tp"), "vllm": ("dp", "tp")}
"""Along which axes an engine can spread a model."""

_WHAT = {"value_lm": "values", "reward_lm": "scores"}


def problems(shape: Shape, engine: str, mesh: Mesh, kind: Kind = "causal_lm") -> list[str]:
    """Why an engine (`transformers`, `megatron`, `vllm`) cannot lay out a model on a mesh, in the user's words and with
    the nearest sizes that it can; empty where it can."""
    found = []
    for axis, size in mesh.axes:
        if size > 1 and axis not in _AXES[engine]:
            found.append(
                f"{engine} does not split along {axis}, but {axis}={size}: it can use {', '.join(_AXES[engine])}"
            )
    if shape.experts and engine != "transformers":
        return [*found, f"{engine} cannot lay out the experts of {shape.family} models here yet: use transformers"]
    if engine == "vllm" and kind != "causal_lm":
        found.append(f"vllm generates: for a model that gives {_WHAT[kind]}, use megatron or transformers")
    if engine == "megatron":
        found += _misfits("pp", mesh.length("pp"), lambda pp: _stage_problems(shape, pp))
        found += _rope_problems(shape)
    if engine != "transformers":
        found += _misfits("tp", mesh.length("tp"), lambda tp: list(_tensor_problems(shape, engine, tp)))
    return found


def _misfits(axis: str, size: int, complaints: Callable[[int], list[str]]) -> list[str]:
    """What is wrong with a size, in one sentence, with the sizes next to it that have no fault."""
    found = complaints(size)
    if not found:
        return []
    below = next(other for other in range(size - 1, 0, -1) if not complaints(other))
    above = next((other for other in range(size + 1, 2 * size + 1) if not complaints(other)), None)
    nearest = f"{axis}={below}" if above is None else f"{axis}={below} or {axis}={above}"
    return [f"{axis}={size} {' and '.join(found)}: the nearest that fits is {nearest}"]


def _stage_problems(shape: Shape, pp: int) -> list[str]:
    return [f"does not divide the {shape.layers} layers"] if shape.layers % pp else []


def _tensor_problems(shape: Shape, engine: str, tp: int) -> Iterator[str]:
    if shape.heads % tp:
        yield f"does not divide the {shape.heads} attention heads"
    if shape.kv_heads % tp and tp % shape.kv_heads:
        yield f"neither divides the {shape.kv_heads} key-value heads nor is a multiple of them"
    if shape.ffn % tp:
        yield f"does not divide the {shape.ffn} columns of the feed-forward network"
    if engine == "vllm" and vllm.padded_vocab(shape) % tp:
        yield f"does not divide the {vllm.padded_vocab(shape)} rows of the padded vocabulary"
    fused = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    # Where whole heads fall to each rank this is no further condition.
    if engine == "megatron" and shape.heads % tp == 0 and fused % tp:
        yield f"does not divide the {fused} fused rows of queries, keys and values"


_MEGATRON_ROPE = {
    "rope_type": "llama3",
    "low_freq_factor": 1,
    "high_freq_factor": 4,
    "original_max_position_embeddings": 8192,
}
"""The one scaling of rotary positions that megatron-core's GPTModel has; its factor is free."""


def _rope_problems(shape: Shape) -> list[str]:
    scaling = dict(shape.rope_scaling)
    scaling.pop("factor", None)
    if not scaling or scaling == _MEGATRON_ROPE:
        return []
    return [f"megatron cannot scale rotary positions as this model does ({scaling['rope_type']}): use transformers"]
