"""How each engine lays a model's parameters out over the ranks of a mesh."""

from __future__ import annotations

from collections.abc import Callable

from rlgraph.ir.layout import Local
from rlgraph.models import huggingface, megatron, vllm

LayoutOf = Callable[..., tuple[Local, ...]]
"""Of (shape, mesh, rank, kind of model): what that rank holds."""

LAYOUTS: dict[str, LayoutOf] = {
    "transformers": huggingface.layout,
    "megatron": megatron.layout,
    "vllm": vllm.layout,
}
