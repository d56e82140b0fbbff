"""A model that sleeps between any two calls computes what one that never does computes, to the bit; its bytes leave."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rlgraph.backends.engines.base import MicroBatch, ModelCall, TrainOptions
from rlgraph.backends.engines.offload import MemoryCounters, Offloader
from rlgraph.backends.engines.sources import ModelSpec, RandomWeights
from rlgraph.backends.engines.tensor_files import TensorView, write_tensors
from rlgraph.backends.engines.transformers.engine import TransformersEngine
from rlgraph.catalog.models.adapters import Adapters
from tests.backends.engines.sharded import MODELS, WORDS, Task, rows, updates
from tests.backends.engines.slept import Napping, same
from tests.passes.cost.allocated import Everywhere

OPTIONS = TrainOptions(lr=1e-2, clip_norm=0.5, settings={"weight_decay": 0.1})
TASK = Task(rows(6), (((0, 1), (2,), (3, 4, 5)),), OPTIONS, 4)


def opened(dtype: str = "float32", seed: int = 0, adapters: Adapters | None = None) -> TransformersEngine:
    family, config = MODELS["qwen2"]
    return TransformersEngine.open(
        ModelSpec("causal_lm", RandomWeights(family, config, WORDS, seed), dtype, adapters=adapters)
    )


def kept(engine: TransformersEngine) -> dict[str, torch.Tensor]:
    """What its optimizer keeps."""
    moments = engine.moments()
    found = {f"{kind}:{name}": each for kind, own in moments.tensors_by_kind.items() for name, each in own.items()}
    return {**found, "steps": torch.tensor(moments.steps)}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("lora", [False, True], ids=["whole", "adapters"])
def test_updates_go_on_to_the_bit(dtype: str, lora: bool) -> None:
    """Steps at once and in parts: gradients that have been added up sleep, too."""
    adapters = Adapters(4, 8.0, ("all-linear",)) if lora else None
    awake, napping = opened(dtype, adapters=adapters), Napping(opened(dtype, adapters=adapters))
    told = [updates(each, "causal_lm", TASK, TASK.blocks[0]) for each in (awake, napping)]
    assert told[0] == told[1] and napping.naps > 6
    assert same(awake.state(), napping.engine.state())
    assert same(kept(awake), kept(napping.engine)) and len(kept(awake)) > 1


def test_weights_are_read_and_written_where_they_sleep(tmp_path: Path) -> None:
    awake, other, sleeping = (opened("bfloat16", seed) for seed in (0, 1, 0))
    for each in (awake, sleeping):
        updates(each, "causal_lm", replace(TASK, steps=1), TASK.blocks[0])
    sleeping.sleep()
    moved = sleeping.offloader.arenas.host.bytes
    assert same(awake.state(), sleeping.state()) and awake.layout() == sleeping.layout()
    # What a checkpoint has.
    assert same(kept(awake), kept(sleeping))
    sleeping.save(tmp_path)
    assert same(TransformersEngine.open(ModelSpec("causal_lm", str(tmp_path), "bfloat16")).state(), awake.state())
    for each in (awake, sleeping):
        each.blend(other.state(), 0.75)
    assert sleeping.offloader.asleep and sleeping.offloader.arenas.host.bytes == moved
    sleeping.wake()
    assert same(awake.state(), sleeping.state())
    # What the optimizer keeps in float32 has followed.
    for each in (awake, sleeping):
        updates(each, "causal_lm", TASK, TASK.blocks[0])
    assert same(awake.state(), sleeping.state()) and same(kept(awake), kept(sleeping))


def test_weights_are_written_to_the_disk_while_others_take_their_memory(tmp_path: Path) -> None:
    """Piece by piece, whether the model sleeps or not, and whatever it was when they were named."""
    engine = opened("bfloat16")
    updates(engine, "causal_lm", replace(TASK, steps=1), TASK.blocks[0])
    kinds = engine.moments().tensors_by_kind
    views = {
        name: TensorView(each.detach(), (slice(1, each.shape[0]), *(slice(0, size) for size in each.shape[1:])))
        for name, each in {**engine.tensors(), **{f"m:{name}": each for name, each in kinds["exp_avg"].items()}}.items()
        if each.dim() and each.shape[0] > 1
    }
    write_tensors(tmp_path / "still", views, bucket=64)
    switches = 0

    @contextmanager
    def switching(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
        """It falls asleep or wakes up before each piece."""
        nonlocal switches
        engine.wake() if engine.offloader.asleep else engine.sleep()
        switches += 1
        with engine.offloader.kept_in_place(tensor) as there:
            yield there

    assert not write_tensors(tmp_path / "switched", views, 64, switching)[1]
    assert (tmp_path / "switched").read_bytes() == (tmp_path / "still").read_bytes()
    assert switches > 2
    if engine.offloader.asleep:
        engine.wake()
    # And at any other moment.
    with ThreadPoolExecutor(1) as pool:
        for asleep in (False, True):
            if asleep:
                engine.sleep()
            written = pool.submit(write_tensors, tmp_path / f"{asleep}", views, 64, engine.offloader.kept_in_place)
            while not written.done():
                engine.wake() if engine.offloader.asleep else engine.sleep()
                # The other one's turn, in either state.
                time.sleep(0.0002)
            assert not written.result()[1]
            if engine.offloader.asleep:
                engine.wake()
            assert (tmp_path / f"{asleep}").read_bytes() == (tmp_path / "still").read_bytes()


def test_all_bytes_leave_and_are_counted() -> None:
    torch.set_num_threads(1)
    with Everywhere() as live, live.resizing():
        engine = opened()
        updates(engine, "causal_lm", TASK, TASK.blocks[0])
        gc.collect()
        engine.clear_gradients()
        there, arenas = live.now, engine.offloader.arenas
        switched = engine.sleep()
        # Its copies are on this machine, too.
        assert live.now == pytest.approx(there, rel=0.01)
        assert arenas.host.bytes == switched.moved_bytes == pytest.approx(there, rel=0.01)
        assert arenas.device.bytes == 0 and arenas.device.peak == switched.moved_bytes
        engine.wake()
        assert live.now == pytest.approx(2 * there, rel=0.01)
        assert arenas.device.bytes == arenas.device.peak == arenas.host.bytes == switched.moved_bytes


def test_what_has_not_changed_is_not_copied_again() -> None:
    engine = opened()
    first = engine.sleep().moved_bytes
    assert first and engine.wake().moved_bytes == first
    assert engine.sleep().moved_bytes == 0 and engine.wake().moved_bytes == first
    engine.load_weights({name: 2 * tensor for name, tensor in engine.state().items()})
    assert engine.sleep().moved_bytes == first
    engine.wake()
    updates(engine, "causal_lm", replace(TASK, steps=1), TASK.blocks[0])
    # Weights and two moments.
    assert engine.sleep().moved_bytes == pytest.approx(3 * first, rel=0.01)


def test_weights_that_others_bring_are_not_kept() -> None:
    engine, twin = opened(), opened(seed=1)
    assert engine.sleep(keep=False).moved_bytes == 0 and engine.offloader.arenas.host.bytes == 0
    assert [tuple(each.shape) for each in engine.tensors().values()] == [
        tuple(each.shape) for each in twin.tensors().values()
    ]
    engine.wake()
    assert not any(tensor.any() for tensor in engine.state().values())
    engine.load_weights(twin.state())
    assert same(engine.state(), twin.state())


def test_gradients_of_a_step_that_goes_on_leave_when_it_is_over() -> None:
    engine = opened()
    engine.sleep()
    weights = engine.wake().moved_bytes

    def micro(block: Any) -> MicroBatch:
        return MicroBatch((ModelCall("logprobs", TASK.sequences),), lambda answers: answers[0].sum())

    engine.clear_gradients()
    engine.add_gradients([0], micro)
    assert engine.sleep().moved_bytes == weights and engine.offloader.arenas.host.bytes == 2 * weights
    engine.wake()
    assert engine.offloader.arenas.host.bytes == weights
    engine.apply_gradients(OPTIONS, 0)
    assert engine.sleep().moved_bytes == pytest.approx(3 * weights, rel=0.01)


def test_copies_of_tensors_that_are_no_more_make_room() -> None:
    engine = opened()
    weights = engine.sleep().moved_bytes
    engine.wake()
    for parameter in engine.model.parameters():
        parameter.data = parameter.detach().clone()
    engine.note_weights_written()
    assert (
        engine.sleep().moved_bytes == engine.offloader.arenas.host.bytes == engine.offloader.arenas.host.peak == weights
    )


def test_several_models_share_the_arenas_of_their_process() -> None:
    arenas, sizes = MemoryCounters(), []
    for seed in range(2):
        engine = opened(seed=seed)
        engine.offloader = Offloader(arenas)
        sizes.append(engine.sleep().moved_bytes)
        engine.wake()
    assert arenas.device.bytes == arenas.host.bytes == arenas.device.peak == sum(sizes)
