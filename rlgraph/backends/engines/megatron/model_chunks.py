"""Splits a pipeline stage into several parts of a model, each of which can be called as if it were a stage of its
own."""

from __future__ import annotations

from copy import copy
from typing import Any

from megatron.core.models.gpt.gpt_model import GPTModel
from torch import nn

from rlgraph.backends.engines.megatron.groups import Stages
from rlgraph.ir.stages import stage_layers


def split_chunks(model: GPTModel, chunks: int, stages: Stages) -> list[GPTModel]:
    """Return the parts of a stage, each with layers that follow each other in the model, and with what comes before the
    first ones and after the last ones. They have no tensors of their own: gradients, updates and names are those of the
    whole."""
    if chunks == 1:
        return [model]
    chunk_models, after = [], 0
    for chunk, (start, stop) in enumerate(stage_layers(model.config.num_layers, stages.size(), stages.rank(), chunks)):
        before, after = after, after + stop - start
        first = stages.rank() == 0 and chunk == 0
        last = stages.rank() == stages.size() - 1 and chunk == chunks - 1
        part, block = _view(model), _view(model.decoder)
        block.layers = nn.ModuleList(model.decoder.layers[before:after])
        block.num_layers_per_pipeline_rank = stop - start
        part.pre_process = block.pre_process = first
        part.post_process = block.post_process = last
        if not last:
            block.final_layernorm = None
        for present, name in ((first, "embedding"), (last, "output_layer")):
            if not present and hasattr(part, name):
                delattr(part, name)
        part.decoder = block
        chunk_models.append(part)
    return chunk_models


def _view(module: Any) -> Any:
    """Return a module with the same modules and parameters, which can be replaced in it."""
    view = copy(module)
    view._modules = dict(module._modules)
    return view
