"""Engines whose work takes a random time: those that ship, with sleeps before each call, between tokens, and at both
ends of a transfer. `delays.py` puts them into a run, as those of a package, and `SLEEPS` says where they are told how
long to sleep.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from rlgraph.backends.engines.transformers.spec import SPEC as TRANSFORMERS
from rlgraph.backends.engines.vllm.spec import SPEC as VLLM
from rlgraph.backends.enginespec.registry import rank_opener
from rlgraph.backends.enginespec.spec import EngineSpec

SLEEPS = "DELAYS"
"""The variable with the path of a file: `seed`, and `most`, the seconds of a usual sleep at most."""


@cache
def _told() -> tuple[random.Random, float]:
    """Of this process."""
    found = json.loads(Path(os.environ[SLEEPS]).read_text())
    return random.Random(f"{found['seed']} {os.getpid()}"), found["most"]


def sleep(part: float = 1.0) -> None:
    """Half of the time not at all; now and then five times as long as usual. part: of the usual time."""
    chance, most = _told()
    kind, seconds = chance.random(), part * chance.uniform(0, most)
    if kind > 0.5:
        time.sleep(5 * seconds if kind > 0.95 else seconds)


class Delayed:
    """An engine that sleeps before whatever it is asked for."""

    def __init__(self, engine: Any) -> None:
        self._slept = engine
        # A process may serve one run after the other.
        _told.cache_clear()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._slept, name)
        if name in _SLOW:
            sleep()
        return found

    def generate(self, *args: Any, refresh: Any = None, **named: Any) -> Any:
        sleep()
        return self._slept.generate(*args, **named, **_slow(refresh))

    def parts(self, *args: Any, refresh: Any = None, **named: Any) -> Iterator[Any]:
        for part in self._slept.parts(*args, **named, **_slow(refresh)):
            sleep()
            yield part


_SLOW = {"logprobs", "train_step", "clear_gradients", "add_gradients", "apply_gradients", "tensors", "written"}
"""`tensors` and `written` are the beginning and the end of a transfer."""


class _Refresh:
    """Is asked before each token."""

    def __init__(self, refresh: Any) -> None:
        self._slept = refresh

    def __getattr__(self, name: str) -> Any:
        sleep(0.1)
        return getattr(self._slept, name)


def _slow(refresh: Any) -> dict[str, Any]:
    return {} if refresh is None else {"refresh": _Refresh(refresh)}


def _delayed(spec: EngineSpec) -> EngineSpec:
    return replace(spec, name=f"late_{spec.name}", opens=f"{__name__}:open_{spec.name}", embedded=False, preference=0)


LATE_TRANSFORMERS, LATE_VLLM = _delayed(TRANSFORMERS), _delayed(VLLM)


def open_transformers(model: Any, rank: Any) -> Delayed:
    return Delayed(rank_opener(TRANSFORMERS)(model, rank))


def open_vllm(model: Any, rank: Any) -> Delayed:
    return Delayed(rank_opener(VLLM)(model, rank))
