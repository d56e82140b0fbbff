"""The controller sends references and counts: no byte of a row passes through it, however long rows are."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("ray.util")

import ray.cloudpickle
from actors import weights
from scheduled import compiled
from tiny import data_folder

from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.ray.backend import RayBackend
from rlgraph.backends.ray.requests import Receipt
from rlgraph.backends.rows import TableData
from rlgraph.backends.worker.session import Settings

STEP = """
    rollout = actor.generate(prompts, n=4, max_tokens=LONG, min_tokens=LONG)
    score   = spread(rollout)
    old     = ref.logprobs(rollout)
    minibatch rollout(parts=2):
        train actor(lr=1e-4):
            minimize mean(exp(actor.logprobs(rollout) - rollout.logprobs) * (old - score))
    report reward = mean(score)
"""
PROGRAM = f"""
algorithm lengths
model actor  = causal_lm({weights(0)})
model ref    = frozen(actor)
data prompts = jsonl("prompts.jsonl", batch=10)
func spread  = python("rewards.py:spread")

phase warm(steps=3):{STEP.replace("LONG", "6")}
step:{STEP.replace("LONG", "48")}"""
ROWS = 40
SCHEDULE = """
pool learn = 1 devices
pool play = 2 devices
place actor.train on learn(engine=transformers)
place actor.generate, ref on play(engine=transformers, dp=2)
"""


@dataclass
class Passed:
    """What the controller sent and got in one step, but for references."""

    sizes: list[int] = field(default_factory=list)
    """Bytes of each call's arguments, and of each answer."""
    came: int = 0
    """Bytes of rows that went from process to process meanwhile, as those who got them say."""
    kinds: Counter[type] = field(default_factory=Counter)
    """Of everything inside that can hold rows."""
    arrays: list[np.ndarray] = field(default_factory=list)


class Counting:
    """Between the controller and its processes."""

    def __init__(self, backend: RayBackend, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = Passed()
        processes = backend.processes
        call, pack, get = processes.call, processes.pack_rows, processes.get

        def counted_call(who: Any, method: Any, *args: Any) -> Any:
            self.count([each for each in args if not isinstance(each, ray.ObjectRef)])
            return call(who, method, *args)

        def counted_pack(who: Any, parcels: Any) -> Any:
            self.count(parcels)
            return pack(who, parcels)

        def counted_get(references: Sequence[Any], what: Any, beside: Sequence[Any] = (), **more: Any) -> list[Any]:
            answers = get(references, what, beside, **more)
            for answer in answers:
                self.count(answer)
            return answers

        monkeypatch.setattr(processes, "call", counted_call)
        monkeypatch.setattr(processes, "pack_rows", counted_pack)
        monkeypatch.setattr(processes, "get", counted_get)

    def count(self, passing: Any) -> None:
        self.now.sizes.append(len(ray.cloudpickle.dumps(passing)))
        for each in held(passing):
            self.now.kinds[type(each)] += 1
            if isinstance(each, np.ndarray):
                self.now.arrays.append(each)
            if isinstance(each, Receipt):
                self.now.came += sum(each.received_bytes)

    def step(self) -> Passed:
        found, self.now = self.now, Passed()
        return found


def held(value: Any) -> Iterator[Any]:
    """All that lies in a message; orders and receipts travel as bytes."""
    if isinstance(value, bytes):
        value = pickle.loads(value)
    yield value
    if isinstance(value, dict):
        value = list(value.values())
    elif hasattr(value, "__dict__"):
        value = list(vars(value).values())
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from held(each)


def test_no_byte_of_a_row_passes_through_the_controller(
    kept: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = compiled(PROGRAM, {}, SCHEDULE, data_folder(tmp_path))
    backend = RayBackend(made.program, made.plan, Settings(folder=tmp_path), seconds=120)
    try:
        counting, passed = Counting(backend, monkeypatch), []
        # One at a time: the next step reads its data while the one before is still under way.
        for coming in list(backend.upcoming_steps(2)):
            list(backend.iter_step_frames([coming]))
            passed.append(counting.step())
    finally:
        backend.close()
    # Weights go for the first time in the second step, which plans their way.
    _, _, short, _, long = passed
    assert long.came > 4 * short.came > 0
    assert len(long.sizes) == len(short.sizes)
    # A count that is larger takes some bytes more: the number of an order, tokens that were sampled, bytes that came.
    assert sum(long.sizes) <= sum(short.sizes) + 8 * len(long.sizes)
    for each in (short, long):
        assert not each.kinds.keys() & {torch.Tensor, Sequences, TableData}
        assert all(array.dtype.kind == "i" and array.size <= ROWS for array in each.arrays)
        assert each.kinds[Receipt] > 10
