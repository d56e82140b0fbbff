"""vLLM as it was when systems were published that are compared here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

from rlgraph.backends.enginespec.rates import WorkKind
from rlgraph.passes.cost.constants import default_constants

NO_HOST: Mapping[str, float] = {"host": 0.0, "host_row": 0.0}
"""An engine whose host never holds up its device, or one whose device always waits, which adds up in its other
constants."""

ROW: Mapping[str, float] = {**NO_HOST, "row": 4.5e-5}
"""Before 0.14, which does not prepare a step while another one runs: with what the host takes for each row (fitted to
GA01 to GA17, of 0.12)."""

_DEVICE = 1e-5
"""What a device takes for a row (fitted to SB01 to SB20, of 0.30)."""

IN_2024: Mapping[str, float] = {**NO_HOST, "block": 2.5e-4, "row": 4.2e-5 + _DEVICE}
"""vLLM 0.6, whose host takes 0.25 ms of a step and 42 us of each of its rows (`python benchmarks/peers/vllm_steps.py`,
on an AMD EPYC: 0.29, 0.55, 2.89 and 10.96 ms of 1, 8, 64 and 256), while the device waits."""

IN_SUMMER_2024: Mapping[str, float] = {**NO_HOST, "block": 3.3e-4, "row": 5.5e-5 + _DEVICE}
"""The same of vLLM 0.5.4 (0.4, 0.8, 1.1, 4.1 and 14.1 ms of 1, 8, 16, 64 and 256)."""

VERSIONS: Sequence[tuple[tuple[int, int], Mapping[str, float]]] = (
    ((0, 6), IN_SUMMER_2024),
    ((0, 8), IN_2024),
    ((0, 14), ROW),
)
"""What differs before a version. 0.8 samples with the second engine (V1), 0.14 has `async_scheduling` on (pull request
27614)."""

INSIDE: Mapping[str, str] = {"nemo-rl 0.6": "0.17.1", "nemo-rl 0.7": "0.20.0"}
"""The vLLM of systems, by their pull requests 2384 and 3137."""


def other_vllm(engine: str, ranks: int) -> Mapping[str, float]:
    """Return in what a row's vLLM differs from our engine: `vllm 0.12.0`, `nemo-rl 0.7`. One of no known version is
    taken for one before 0.14; so are several ranks in NeMo-RL, which start by Ray, with which vLLM waits (`Async
    scheduling will be disabled because it is not supported with the ray distributed executor backend`)."""
    if engine in INSIDE and ranks > 1:
        return ROW
    version = re.search(r"(?<=^vllm )(\d+)\.(\d+)", f"vllm {INSIDE[engine]}" if engine in INSIDE else engine)
    if version is None:
        return ROW
    return next((differs for below, differs in VERSIONS if (int(version[1]), int(version[2])) < below), {})


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
