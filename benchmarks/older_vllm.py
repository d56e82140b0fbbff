"""vLLM as it was when systems were published that are compared here: each row of a decoding step took 49 us (fitted to
GA01 to GA17 of docs/why/accuracy.md, of vLLM 0.12), before it prepared the next step while one ran."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

from rlgraph.backends.enginespec.rates import WorkKind
from rlgraph.passes.cost.constants import default_constants

ROW: Mapping[str, float] = {"row": 4.9e-5}

IN_2024: Mapping[str, float] = {"block": 2.5e-4, "row": 4.2e-5}
"""vLLM 0.6, whose device waits while its host schedules a step and prepares it: seconds of a step, and of each of its
rows (`python benchmarks/peers/vllm_steps.py`, on an AMD EPYC: 0.29, 0.55, 2.89 and 10.96 ms of 1, 8, 64 and 256)."""

IN_SUMMER_2024: Mapping[str, float] = {"block": 3.3e-4, "row": 5.5e-5}
"""The same of vLLM 0.5.4 (0.4, 0.8, 1.1, 4.1 and 14.1 ms of 1, 8, 16, 64 and 256)."""


@contextmanager
def differing(engines: Mapping[tuple[str, WorkKind], Mapping[str, float]]) -> Iterator[None]:
    """Predict what engines do on GPUs with some other constants than today's, by engine and kind of work."""
    rates = default_constants("gpu").rates
    others = {key: replace(rates[key], **constants) for key, constants in engines.items()}  # type: ignore[arg-type]
    with patch.dict(rates, others):  # type: ignore[arg-type]
        yield


@contextmanager
def older_vllm() -> Iterator[None]:
    """Predict what vLLM samples on GPUs as it did then."""
    with differing({("vllm", "generate"): ROW}):
        yield
