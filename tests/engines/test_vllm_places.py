"""Where in its response vLLM samples a row's next token."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch

pytest.importorskip("vllm")

from vllm import SamplingParams
from vllm.v1.sample.logits_processor.interface import BatchUpdate

from rlgraph.engines.base import Sampling
from rlgraph.engines.sampling import sample
from rlgraph.engines.vllm.sampling import Batch, Row, RowSampling


def test_a_row_that_another_copy_has_begun_goes_on_behind_its_tokens() -> None:
    sampling = Sampling(8, min_tokens=3)
    row = Row(Batch(sampling, (1,)), 0, 7, logprobs=[-1.0, -2.0], begun=[5, 6])
    places = RowSampling(cast(Any, None), torch.device("cpu"), False)
    response = [4]
    added: Any = (0, SamplingParams(extra_args={"rlgraph": row}), [2, 3], response)
    row.logprobs.append(-3.0)
    places.update_state(BatchUpdate(1, removed=[], added=[added], moved=[]))
    logits = torch.arange(16.0)[None] / 4
    [token], [logprob] = sample(logits, np.array([7], dtype=np.uint64), np.array([3]), sampling, None)
    assert places.apply(logits.clone()).argmax() == token
    assert row.logprobs == [-1.0, -2.0, -3.0, logprob]
