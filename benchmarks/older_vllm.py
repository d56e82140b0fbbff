"""vLLM as it was when systems were published that are compared here: each row of a decoding step took 49 us (fitted to
GA01 to GA17 of docs/why/accuracy.md, of vLLM 0.12), before it prepared the next step while one ran."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

from rlgraph.passes.cost.constants import default_constants

ROW: Mapping[str, float] = {"row": 4.9e-5}


@contextmanager
def older_vllm(constants: Mapping[str, float] = ROW) -> Iterator[None]:
    """Predict what vLLM samples on GPUs with some other constants than today's."""
    rates, kind = default_constants("gpu").rates, ("vllm", "generate")
    with patch.dict(rates, {kind: replace(rates[kind], **constants)}):  # type: ignore[arg-type]
        yield
