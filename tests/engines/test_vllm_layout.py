"""Where vLLM keeps each number of a checkpoint, found out by loading one whose numbers say where they were."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("vllm")

from rlgraph.engines.base import Sampling
from rlgraph.engines.sequences import Sequences
from rlgraph.engines.transformers.engine import TransformersEngine
from rlgraph.engines.vllm.engine import VllmEngine
from rlgraph.engines.weights import ModelWeights, fill
from rlgraph.ir.mesh import mesh
from rlgraph.models.families import CORRECTION
from tests.engines.vllm_models import MODELS, misplaced, spec

PROMPTS = Sequences.from_lists([[5, 6, 7], [8], [9, 10, 11, 12, 13, 14, 15]])


@pytest.mark.parametrize("model", MODELS)
def test_each_number_is_where_the_layout_says(model: str) -> None:
    # A copy along dp is an engine of its own.
    engine, trainer = VllmEngine.open(spec(model), mesh(dp=2), 1), TransformersEngine.open(spec(model))
    keys = np.arange(6, dtype=np.uint64)
    for new in (None, TransformersEngine.open(spec(model, seed=5))):
        if new is not None:
            trainer = new
            for name, buffer in new.model.named_buffers():
                if name.endswith(CORRECTION):
                    buffer.normal_(std=0.3)
            fill(engine.tensors(), engine.layout(), ModelWeights(new.model))
            engine.written()
        made = engine.generate(PROMPTS, 2, Sampling(10), keys)
        assert made.sequences.rows() == trainer.generate(PROMPTS, 2, Sampling(10), keys).sequences.rows()
        torch.testing.assert_close(made.logprobs, trainer.logprobs(made.sequences).detach(), rtol=0, atol=1e-5)
    assert engine.speaks and not misplaced(engine, trainer.model)
