"""A stage with several parts of a model: each can be called as if it were a stage of its own."""

from __future__ import annotations

from copy import copy
from typing import Any

from megatron.core.models.gpt.gpt_model import GPTModel
from torch import nn

from rlgraph.backends.engines.megatron.groups import Stages


def parts(model: GPTModel, chunks: int, stages: Stages) -> list[GPTModel]:
    """Of all layers of a stage those that lie behind each other in the model, with what is before the first ones and
    behind the last ones. They have no tensors of their own: gradients, updates and names are those of the whole."""
    if chunks == 1:
        return [model]
    each = len(model.decoder.layers) // chunks
    found = []
    for chunk in range(chunks):
        first = stages.rank() == 0 and chunk == 0
        last = stages.rank() == stages.size() - 1 and chunk == chunks - 1
        part, block = _view(model), _view(model.decoder)
        block.layers = nn.ModuleList(model.decoder.layers[chunk * each : (chunk + 1) * each])
        block.num_layers_per_pipeline_rank = each
        part.pre_process = block.pre_process = first
        part.post_process = block.post_process = last
        if not last:
            block.final_layernorm = None
        for own, name in ((first, "embedding"), (last, "output_layer")):
            if not own and hasattr(part, name):
                delattr(part, name)
        part.decoder = block
        found.append(part)
    return found


def _view(module: Any) -> Any:
    """The same modules and parameters, of which others can be put in the place."""
    view = copy(module)
    view._modules = dict(module._modules)
    return view
