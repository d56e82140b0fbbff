"""Models that are written by the ranks that have trained them, and gone on with by others: other splits, other engines."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.distributed as dist

from rlgraph.backends.engines.base import EngineError, Rank, TrainOptions
from rlgraph.backends.engines.moments import flat_range_boxes
from rlgraph.backends.engines.offload import Offloader
from rlgraph.backends.engines.sources import ModelSpec
from rlgraph.backends.engines.tensor_files import StoredTensors, select_views, write_tensors
from rlgraph.backends.engines.transformers.engine import TransformersEngine
from rlgraph.backends.enginespec.registry import engine as spec_of
from rlgraph.backends.enginespec.registry import rank_opener
from rlgraph.backends.saved_models import SavedModel
from rlgraph.backends.weight_versions import PastWeights
from rlgraph.backends.worker import saving
from rlgraph.backends.worker.saving import (
    boxes_to_write,
    check_saved_layout,
    load_saved_part,
    model_part,
    take_snapshot,
    write_part,
)
from rlgraph.backends.worker.session import SessionModel
from rlgraph.catalog.models.adapters import Adapters
from rlgraph.digests import STRETCH, DamagedFile, FileDigests, digests_of
from rlgraph.ir.layout import LocalTensor, TensorPiece, box_elements, cut_tensor, full_box
from rlgraph.ir.mesh import Mesh, make_mesh
from rlgraph.ir.plan import ModelHolding
from rlgraph.passes.resharding.divide_writing import divide_writing
from tests.backends.engines import sharded
from tests.backends.engines.ranks import Ranks
from tests.backends.engines.sharded import Clipped, Task, elsewhere, rows
from tests.passes.cost.live import Live
from tests.suites import few

OPTIONS = TrainOptions(lr=1e-2, clip_norm=0.5, settings={"eps": 1e-2, "weight_decay": 0.1})
BLOCKS = ((0, 1, 2), (4, 5)), ((3, 6, 7), (8, 9, 10, 11))


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    pytest.importorskip("megatron.core")
    started = Ranks(4)
    yield started
    started.close()


def state_of(engine: Any) -> SessionModel:
    return SessionModel(engine, cast(Any, None), PastWeights("model", cast(Any, None)))


def kept(state: SessionModel, place: Path) -> None:
    """As a controller has the ranks write, and all of them know what each has."""
    stocks: list[Any] = [model_part(state)]
    if dist.is_initialized():
        stocks = [None] * dist.get_world_size()
        dist.all_gather_object(stocks, model_part(state))
    own = boxes_to_write(stocks)[dist.get_rank() if dist.is_initialized() else 0]
    assert not write_part(state, take_snapshot(state), place, own).failure
    if dist.is_initialized():
        dist.barrier()


def go_on(split: Mesh, engine: str, spec: ModelSpec, task: Task, step: int, before: SavedModel | None, to: Path) -> Any:
    """One update, behind those that others took; what was read is written again before."""
    state = state_of(rank_opener(spec_of(engine))(spec, Rank(split, dist.get_rank(), ModelHolding("", ""))))
    if before is not None:
        elsewhere(load_saved_part, state, before)
        kept(state, to / "again")
    blocks = (
        task.blocks[split.axis_position(dist.get_rank(), "dp")] if split.axis_size("dp") > 1 else sum(task.blocks, ())
    )
    told = elsewhere(update, state.engine, spec, task, blocks, step)
    kept(state, to)
    return told


def update(engine: Any, spec: ModelSpec, task: Task, blocks: Sequence[Any], step: int) -> dict[str, float]:
    found: dict[str, float] = engine.train_step(
        blocks, lambda block: task.micro(spec.kind, step, block), task.options, step
    )
    return found


def digested(files: Iterable[Path]) -> dict[Path, FileDigests]:
    return {file: digests_of(file) for file in files}


def saved(place: Path, updates: int, changed: int, version: int) -> SavedModel:
    """What ranks have written into a folder."""
    files = {file.name: told for file, told in digested(place.glob("*.safetensors")).items()}
    return SavedModel(place, updates, changed, version, (), files)


def content(saved: SavedModel) -> dict[str, torch.Tensor]:
    stored = {kind: StoredTensors(saved.files_of_kind(kind)) for kind in ("weights", "moments")}
    return {
        f"{kind} {name}": each.read(name, each.full_box(name)) for kind, each in stored.items() for name in each.names
    }


DENSE = [
    ("megatron", make_mesh(pp=2, tp=2)),
    ("transformers", make_mesh(dp=2)),
    ("megatron", make_mesh()),
    ("megatron", make_mesh(dp=2, pp=2, chunks=2)),
    ("megatron", make_mesh(dp=2, tp=2)),
    ("transformers", make_mesh(fsdp=2)),
    ("megatron", make_mesh(pp=3)),
    ("megatron", make_mesh(cp=2, dp=2)),
    ("transformers", make_mesh(fsdp=2, tp=2)),
    ("megatron", make_mesh(dp=2, pp=2)),
]
SPARSE = [
    ("megatron", make_mesh(ep=2, dp=2)),
    ("transformers", make_mesh(fsdp=2)),
    ("megatron", make_mesh(ep=2, tp=2)),
    ("transformers", make_mesh()),
    ("megatron", make_mesh(pp=2, ep=2)),
]


SOME = [
    ("megatron", make_mesh(dp=2)),
    ("megatron", make_mesh(pp=3)),
    ("transformers", make_mesh(fsdp=2)),
]


ADAPTED = [
    ("transformers", make_mesh(tp=2)),
    ("transformers", make_mesh(fsdp=2)),
    ("megatron", make_mesh(pp=2, tp=2)),
    ("transformers", make_mesh()),
    ("megatron", make_mesh(dp=2, tp=2)),
    ("transformers", make_mesh(fsdp=2, tp=2)),
    ("transformers", make_mesh(tp=2)),
]
SOME_ADAPTED = ADAPTED[2:5]


@pytest.mark.parametrize(
    "model,kind,chain",
    few(
        [
            ("tied", "causal_lm", SOME),
            ("tied", "causal_lm", DENSE),
            ("qwen2_moe", "causal_lm", SPARSE),
            ("deepseek_v3", "causal_lm", SPARSE),
            ("qwen2", "value_lm", ADAPTED),
            ("qwen2", "causal_lm", SOME_ADAPTED),
        ],
        ("tied", "causal_lm", SOME),
        ("qwen2", "causal_lm", SOME_ADAPTED),
    ),
)
def test_training_goes_on_with_other_engines_and_splits(
    ranks: Ranks, model: str, kind: Any, chain: list[tuple[str, Mesh]], tmp_path: Path
) -> None:
    """Copies that share the optimizer out have ranges of parameters, whose ends are nobody's rows."""
    spec, task = sharded.write(model, kind, tmp_path / "model"), Clipped(rows(12), BLOCKS, OPTIONS)
    spec = replace(spec, adapters=Adapters(3, 6.0)) if chain in (ADAPTED, SOME_ADAPTED) else spec
    alone = TransformersEngine.open(spec)
    expected = [update(alone, spec, task, sum(BLOCKS, ()), step) for step in range(len(chain))]
    before: SavedModel | None = None
    for step, (engine, split) in enumerate(chain):
        to = tmp_path / str(step)
        for told in ranks.run(split, go_on, engine, spec, task, step, before, to):
            assert told["loss"] == pytest.approx(expected[step]["loss"], rel=5e-6), (engine, split)
            assert told["grad_norm"] == pytest.approx(expected[step]["grad_norm"], rel=1e-5), (engine, split)
        if before is not None:
            first, second = content(before), content(saved(to / "again", 0, 0, 0))
            assert first.keys() == second.keys()
            assert [name for name in first if not torch.equal(first[name], second[name])] == []
        before = saved(to, step + 1, step + 1, step + 1)
    weights = {name.split()[1]: each for name, each in content(cast(SavedModel, before)).items() if name[0] == "w"}
    assert weights.keys() == alone.tensors().keys()


@pytest.mark.parametrize(
    "chain",
    few(
        [[make_mesh(fsdp=2), make_mesh()], [make_mesh(fsdp=2), make_mesh(tp=2), make_mesh()]],
        [make_mesh(fsdp=2), make_mesh()],
    ),
)
def test_wide_copies_of_narrow_weights_go_on(ranks: Ranks, tmp_path: Path, chain: list[Mesh]) -> None:
    spec = ModelSpec("causal_lm", sharded.write("llama", "causal_lm", tmp_path / "model").source, "bfloat16")
    task = Clipped(rows(12), BLOCKS, OPTIONS)
    before: SavedModel | None = None
    for step, split in enumerate(chain):
        ranks.run(split, go_on, "transformers", spec, task, step, before, tmp_path / str(step))
        if before is not None:
            first, second = content(before), content(saved(tmp_path / str(step) / "again", 0, 0, 0))
            assert first.keys() == second.keys() and any(name.startswith("moments master:") for name in first)
            assert [name for name in first if not torch.equal(first[name], second[name])] == []
        before = saved(tmp_path / str(step), step + 1, step + 1, step + 1)


def test_every_element_is_written_once_and_by_all_alike(tmp_path: Path) -> None:
    half = [
        LocalTensor("a", (4, 3), (TensorPiece("a", ((4 * rank, 4 * rank + 4), (0, 3)), (0, 0)),)) for rank in range(2)
    ]
    both = [LocalTensor(name, (6, 6), (TensorPiece(name, full_box((6, 6)), (0, 0)),)) for name in "bcde"]
    found = divide_writing([[half[0], *both], [half[1], *both]])
    assert [box for name, box in found[0] + found[1] if name == "a"] == [((0, 4), (0, 3)), ((4, 8), (0, 3))]
    sizes = [sum(box_elements(box) for _, box in each) for each in found]
    assert sizes == [12 + 72, 12 + 72]
    assert sorted(name for name, _ in found[0] + found[1]) == ["a", "a", *"bcde"]


def test_a_copys_share_of_a_parameter_lies_where_it_begins() -> None:
    """The second half of the twelve elements: the last two of four rows."""
    pytest.importorskip("megatron.core")
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    from rlgraph.backends.engines.megatron.moments import moments

    weight, share = torch.nn.Parameter(torch.zeros(4, 3)), torch.nn.Parameter(torch.zeros(6))
    share.grad = torch.arange(6.0)
    adamw = torch.optim.AdamW([share])
    adamw.step()
    adam = DistributedOptimizer.__new__(DistributedOptimizer)
    adam.optimizer, adam.model_param_group_index_map = adamw, {weight: (0, 0)}
    adam._get_model_param_range_map = lambda _: {"param": SimpleNamespace(start=6)}
    box = full_box((4, 3))
    found = moments(adam, {"w": weight}, [LocalTensor("w", (4, 3), (TensorPiece("w", box, (0, 0)),))], Offloader())
    [[piece]] = [local.pieces for local in found.layout]
    assert piece.box == ((2, 4), (0, 3)) and found.steps == 1
    assert found.tensors_by_kind["exp_avg"]["w#0"].equal(adamw.state[share]["exp_avg"].view(2, 3))


@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 4)])
def test_a_stretch_of_memory_is_boxes(shape: tuple[int, ...]) -> None:
    places = np.arange(box_elements(full_box(shape))).reshape(shape)
    # Whose first two columns, where there are so many dimensions, are another tensor's.
    cut = tuple((0, size) for size in shape[:-1]) + ((2, shape[-1]),)
    local = LocalTensor(
        "own",
        shape,
        (TensorPiece("theirs", tuple((5, 5 + stop - low) for low, stop in cut), (0,) * len(cut[:-1]) + (2,)),),
    )
    for start, stop in itertools.combinations(range(places.size + 1), 2):
        boxes = list(flat_range_boxes(shape, start, stop))
        found = [places[tuple(slice(*side) for side in box)].reshape(-1) for box in boxes]
        assert np.concatenate(found).tolist() == list(range(start, stop))
        assert len(boxes) <= 2 * len(shape) - 1
        for box in boxes:
            part = cut_tensor(local, box, "part")
            assert part.shape == tuple(high - low for low, high in box)
            held = np.full(shape, -1)
            for piece in part.pieces:
                size = tuple(high - low for low, high in piece.box)
                inside = tuple(slice(at, at + length) for at, length in zip(piece.at, size, strict=True))
                there = tuple(
                    slice(low - 5 + first, high - 5 + first)
                    for (low, high), (first, _) in zip(piece.box, cut, strict=True)
                )
                held[there] = places[tuple(slice(*side) for side in box)][inside]
            wanted = np.full(shape, -1)
            both = tuple(slice(max(a, low), min(b, high)) for (a, b), (low, high) in zip(box, cut, strict=True))
            wanted[both] = places[both]
            assert (held == wanted).all()


def test_no_more_than_a_bucket_is_needed_beside_what_is_written(tmp_path: Path) -> None:
    bucket, whole = 1 << 18, torch.randn(600, 700)
    wide = whole.bfloat16().t()
    with Live([whole, wide]) as live:
        assert write_tensors(tmp_path / "lies.safetensors", {"whole": whole}, bucket)[1] == ""
        # What the numbers are looked at for.
        assert live.peak < 100
        assert write_tensors(tmp_path / "turned.safetensors", {"wide": wide, "turned": whole.t()}, bucket)[1] == ""
        assert bucket / 2 < live.peak < bucket + 100


def room(split: Mesh, engine: str, spec: ModelSpec, task: Task, to: Path, bucket: int) -> tuple[int, int]:
    """After an update: bytes of tensors that are there, at most, beside the model and its moments while a rank writes
    its part; and what it writes."""
    state = state_of(rank_opener(spec_of(engine))(spec, Rank(split, dist.get_rank(), ModelHolding("", ""))))
    blocks = (
        task.blocks[split.axis_position(dist.get_rank(), "dp")] if split.axis_size("dp") > 1 else sum(task.blocks, ())
    )
    elsewhere(update, state.engine, spec, task, blocks, 0)
    stocks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(stocks, model_part(state))
    own, left = boxes_to_write(stocks)[dist.get_rank()], take_snapshot(state)
    known = [
        *left.tensors.values(),
        *(each for kept in left.moments.tensors_by_kind.values() for each in kept.values()),
    ]
    with pytest.MonkeyPatch.context() as patch, Live(known) as live:
        patch.setattr(saving, "write_tensors", partial(write_tensors, bucket=bucket))
        written = write_part(state, left, to, own)
    assert not written.failure
    dist.barrier()
    return live.peak, sum(each.bytes for each in written.files.values())


@pytest.mark.parametrize(
    "engine,split",
    few(
        [
            ("megatron", make_mesh(pp=2, tp=2)),
            ("megatron", make_mesh(dp=2, tp=2)),
            ("transformers", make_mesh(fsdp=2)),
            ("transformers", make_mesh(tp=2)),
        ],
        ("megatron", make_mesh(dp=2, tp=2)),
        ("transformers", make_mesh(fsdp=2)),
    ),
)
def test_no_rank_needs_more_than_a_bucket_beside_its_part(
    ranks: Ranks, engine: str, split: Mesh, tmp_path: Path
) -> None:
    spec, task = sharded.write("llama", "causal_lm", tmp_path / "model"), Clipped(rows(12), BLOCKS, OPTIONS)
    bucket = 1 << 10
    for peak, size in ranks.run(split, room, engine, spec, task, tmp_path / "saved", bucket):
        assert peak <= bucket
        assert size > 50 * bucket


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_not_finite_is_found_wherever_it_is(dtype: torch.dtype, odd: float, tmp_path: Path) -> None:
    for place in (0, 4_000, 40_000, 99_999):
        tensor = torch.full((100, 1000), 1e4, dtype=dtype)
        assert write_tensors(tmp_path / "fine.safetensors", {"a": tensor}, 1 << 16)[1] == ""
        tensor.view(-1)[place] = odd
        assert write_tensors(tmp_path / "odd.safetensors", {"a": tensor}, 1 << 16)[1] == "a"


def test_files_are_read_by_slices_and_told_when_they_are_others(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    tensors = {"a": torch.arange(24.0).view(6, 4).t(), "n": torch.tensor(3.0), "h": torch.ones(3, 2).bfloat16()}
    assert write_tensors(tmp_path / "all.safetensors", tensors, bucket=16)[1] == ""
    for name, each in load_file(tmp_path / "all.safetensors").items():
        assert torch.equal(each, tensors[name]) and each.dtype == tensors[name].dtype
    assert (
        write_tensors(tmp_path / "odd.safetensors", {"a": torch.ones(3), "b": torch.tensor([1.0, float("inf")])})[1]
        == "b"
    )
    local = LocalTensor("a", (4, 6), (TensorPiece("a", full_box((4, 6)), (0, 0)),))
    files = []
    for number, box in enumerate((((0, 4), (0, 2)), ((0, 3), (2, 6)), ((3, 4), (2, 6)))):
        files.append(tmp_path / f"{number}.safetensors")
        write_tensors(files[-1], select_views(tensors, [local], [("a", box)], {"a": full_box((4, 6))}))
    stored = StoredTensors(digested(files))
    assert stored.names == ["a"] and stored.full_box("a") == full_box((4, 6))
    for box in (full_box((4, 6)), ((1, 4), (1, 5)), ((3, 4), (5, 6))):
        assert torch.equal(stored.read("a", box), tensors["a"][tuple(slice(*side) for side in box)])
    for box in (((0, 5), (0, 6)), ((0, 4),)):
        with pytest.raises(EngineError, match="another shape there: 4 x 6"):
            stored.read("a", box)
    with pytest.raises(EngineError, match="no tensor b"):
        stored.read("b", ((0, 1),))
    with pytest.raises(EngineError, match="another shape"):
        StoredTensors(digested(files[:2])).read("a", full_box((4, 6)))
    write_tensors(tmp_path / "weights.safetensors", tensors)
    before = saved(tmp_path, 1, 1, 1)
    like = [
        LocalTensor(name, tuple(each.shape), (TensorPiece(name, full_box(tuple(each.shape)), (0,) * each.dim()),))
        for name, each in tensors.items()
    ]
    check_saved_layout([like], before)
    with pytest.raises(EngineError, match="h is only among those that were saved"):
        check_saved_layout([like[:2]], before)
    with pytest.raises(EngineError, match="a is 4 x 5, and was 4 x 6"):
        check_saved_layout(
            [[LocalTensor("a", (4, 5), (TensorPiece("a", full_box((4, 5)), (0, 0)),)), *like[1:]]], before
        )


def flipped(file: Path, place: int) -> None:
    """One bit of it."""
    with file.open("r+b") as opened:
        opened.seek(place)
        byte = opened.read(1)[0]
        opened.seek(place)
        opened.write(bytes([byte ^ 16]))


def test_who_reads_a_part_looks_at_that_part_alone(tmp_path: Path) -> None:
    """The digests that a file was written with are those of what is there; a bit that has changed is told to who reads
    it, and to nobody else."""
    file, numbers = tmp_path / "weights.safetensors", STRETCH // 4
    tensors = {
        "a": torch.arange(4.0 * numbers).view(4, numbers),
        "b": torch.ones(3),
        "wide": torch.ones(2, 3 * numbers),
    }
    told, _ = write_tensors(file, tensors, bucket=STRETCH // 2 + 12)
    assert told == digests_of(file) and FileDigests.from_plain(told.to_plain()) == told
    begin = file.stat().st_size - sum(each.nbytes for each in tensors.values())
    # In the last row of `a`, and in the last third of the first row of `wide`.
    flipped(file, begin + tensors["a"].nbytes - STRETCH // 2)
    flipped(file, begin + tensors["a"].nbytes + 12 + 5 * STRETCH // 2)
    stored = StoredTensors({file: told})
    for name, box in (("a", ((0, 2), (0, numbers))), ("wide", ((0, 2), (0, numbers)))):
        assert torch.equal(stored.read(name, box), tensors[name][tuple(slice(*side) for side in box)])
    for name, box in (("a", ((2, 4), (0, numbers))), ("wide", ((0, 1), (2 * numbers, 3 * numbers)))):
        with pytest.raises(DamagedFile, match="weights.safetensors` is not as it was written: it differs between byte"):
            stored.read(name, box)
    flipped(file, 20)
    with pytest.raises(DamagedFile, match="between byte 0 and byte 1,048,576"):
        StoredTensors({file: told})
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DamagedFile, match="in place of"):
        StoredTensors({file: told})
