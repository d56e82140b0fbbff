"""Faults of several GPUs that a CPU hides: each is red on hard devices as it was, and green as it is."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from rlgraph.api.compiled import Compiled
from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.offload import MemoryCounters
from rlgraph.backends.enginespec.registry import engines_by_name
from rlgraph.backends.enginespec.start_demand import StartDemand, StartDevice
from rlgraph.backends.hard.demands import start_demands
from rlgraph.backends.hard.ledger import DeviceLedger
from rlgraph.backends.hard.meetings import Communicator
from rlgraph.backends.hard.node import HardNodes, read_hard_nodes
from rlgraph.backends.hard.process import HardProcess, HardSeat, Reservation
from rlgraph.backends.hard.seats import hard_seats
from rlgraph.backends.ray.cluster import process_env_vars
from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.catalog.models.shape import Shape
from rlgraph.errors import RunError
from rlgraph.passes.cost.constants import default_constants
from rlgraph.passes.cost.peak_memory import usable_device_bytes
from rlgraph.passes.cost.work import model_parallel_parameter_count
from rlgraph.passes.pipelines.fuse import best_rule_schedule
from rlgraph.passes.pipelines.messages import Programs, StageTransfer, make_stage_programs
from rlgraph.passes.pipelines.problem import PipelineModel, PipelineProblem
from rlgraph.passes.pipelines.stage_programs import training_stage_programs
from rlgraph.passes.pipelines.timetable import ScheduleEntry
from rlgraph.passes.placement.model_load_order import model_load_rounds
from tests.shared_pool import compiled, place_as_on_gpus
from tests.suites import few

NODE = read_hard_nodes("hard:8x80GiB")


@pytest.fixture(autouse=True)
def on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with GPUs, to the compiler."""
    place_as_on_gpus(monkeypatch)


def demand_of(made: Compiled) -> StartDemand:
    [demand] = start_demands(made.program, made.plan, made.placed.shapes, NODE.memory).values()
    return demand


def start(demand: StartDemand, free: int = NODE.memory, visible: int = 1) -> int:
    pytest.importorskip("vllm")
    from rlgraph.backends.engines.vllm.start_check import check_start

    return check_start(demand, StartDevice(NODE.memory, free, visible), "host:1/token")


class SleepingModel:
    """A model that sleeps where its plan says so, while others load or work."""

    def __init__(self, sleeps: bool) -> None:
        self.sleeps, self.asleep = sleeps, sleeps


def loaded(made: Compiled, folder: Path) -> dict[str, tuple[HardProcess, dict[str, SleepingModel]]]:
    """The first process of each group of a plan on its device, with their models loaded round by round; within a round
    those that train come first, which is the worst for others."""
    demands = start_demands(made.program, made.plan, made.placed.shapes, NODE.memory)
    seats = hard_seats(made.plan, NODE, folder, demands)
    processes = {}
    for name in [name for names in model_load_rounds(made.plan) for name in sorted(names)]:
        group = made.plan.group(name)
        if not group.models:
            continue
        process = HardProcess(seats[name, 0], 0, MemoryCounters())
        processes[name] = (
            process,
            {model: SleepingModel(made.plan.holding(model, name).offload) for model in group.models},
        )
        for model, state in processes[name][1].items():
            shape = made.placed.shapes[model]
            assert isinstance(shape, Shape)
            state.asleep = False
            if (name, model) in demands:
                size = start(demands[name, model], process.free_bytes())
            else:
                size = int(2 * model_parallel_parameter_count(shape, "causal_lm", 1, group.mesh.axis_size("tp")))
            process.reserve(Reservation(size, lambda state=state: state.asleep))  # type: ignore[misc]
            state.asleep = state.sleeps
            process.charge(0)
    return processes


def train(made: Compiled, folder: Path) -> None:
    """Load all models, and then train, which needs gradients and moments beside the weights: 16 bytes a weight, shared
    by two ranks of a layer and four replicas."""
    processes = loaded(made, folder)
    process, models = processes[made.plan.group_of_role("actor", "train").name]
    models["actor"].asleep = False
    shape = made.placed.shapes["actor"]
    assert isinstance(shape, Shape)
    process.charge(int(model_parallel_parameter_count(shape, "causal_lm", 1, 2) * (4 + 12 / 4)))


def test_ranks_of_vllm_do_not_ask_for_devices_that_they_do_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vllm")
    from rlgraph.backends.engines.vllm import start as starting

    demand = demand_of(compiled())
    assert demand.ranks == 2 and start(demand) == pytest.approx(demand.share * NODE.memory, rel=0.01)
    # As it was: its own all-reduce, which asks whether the devices reach each other.
    monkeypatch.setattr(starting, "sees_all_devices", lambda ranks: True)
    with pytest.raises(EngineError, match="vLLM cannot start with this model: "):
        start(demand)
    # One process that saw both would have an answer.
    start(demand, visible=2)


def test_vllm_starts_beside_a_model_that_is_awake() -> None:
    demand = demand_of(compiled("", ", cache=20e9"))
    free = NODE.memory - (40 << 30)
    assert start(demand, free) == demand.weight_bytes + int(20e9)
    # As it was: nine tenths of the device, whatever its cache is.
    with pytest.raises(EngineError, match="Free memory on device cuda:0 "):
        start(replace(demand, share=0.9), free)


def test_a_schedule_of_one_pool_without_a_cluster_leaves_room(tmp_path: Path) -> None:
    train(compiled(), tmp_path)


def test_as_it_was_nobody_slept_and_training_had_the_rest(tmp_path: Path) -> None:
    """vLLM was opened first, by chance, and took its nine tenths."""
    made = compiled(", sleep=false", ", sleep=false, share=0.8")
    with pytest.raises(torch.OutOfMemoryError, match="rank 0 of all.vllm "):
        train(made, tmp_path)
    with pytest.raises(EngineError, match="Free memory on device cuda:0 "):
        loaded(compiled(", sleep=false", ", sleep=false"), tmp_path)


def test_the_cache_has_room_for_the_row_that_is_told() -> None:
    demand = demand_of(compiled("", ", cache=1e9"))
    assert demand.cache_bytes == int(1e9) and start(demand) > 0
    # As it was: all positions of the model, whatever the cache is.
    positions = replace(demand, row_tokens=131072, row_bytes=131072 * demand.row_bytes // demand.row_tokens)
    with pytest.raises(EngineError, match="To serve at least one request with the model's max seq len"):
        start(positions)


def filled(spare: float, folder: Path) -> None:
    """A device as full as a plan may fill it, and then two communicators that nobody has counted."""
    island = read_cluster("1x8:h100-80gb").islands[0]
    nodes = HardNodes(1, 1, int(island.device.memory), process=0, communicator=688 << 20, host=1 << 40)
    DeviceLedger.create(folder / "devices", 1)
    process = HardProcess(HardSeat(nodes, str(folder / "devices"), 0, "rank 0 of all", 0), 0, MemoryCounters())
    constants = replace(default_constants("gpu"), fragmentation=0.0, reserved=1 << 30, spare=spare)
    process.charge(int(0.999 * usable_device_bytes(island, constants)))
    for _ in range(2):
        process.charge(nodes.communicator)


def test_a_plan_leaves_room_for_communicators(tmp_path: Path) -> None:
    filled(default_constants("gpu").spare, tmp_path)
    # As it was: plans filled devices up to 99.9%.
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate 721.4MB"):
        filled(0.0, tmp_path)


def test_processes_begin_with_the_environment_of_gpus() -> None:
    for name, spec in engines_by_name().items():
        begun = process_env_vars("GPU", True, name, hard=True)
        assert spec.gpu_environment.items() <= begun.items() and begun["OMP_NUM_THREADS"] == "1"
    assert process_env_vars("GPU", True, "megatron", hard=True)["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"


# Messages between stages


def as_needed(programs: Programs) -> list[list[Any]]:
    """As it was: what comes is waited for where it is needed, and what goes is sent where it was made."""
    lists = []
    for program in programs:
        moved: dict[tuple[str, int, str, int], deque[StageTransfer]] = defaultdict(deque)
        for step in program:
            if isinstance(step, StageTransfer):
                moved[step.kind, step.replica, step.part, step.chunk].append(step)
        steps: list[Any] = []
        for entry in (step for step in program if isinstance(step, ScheduleEntry)):
            part = "F" if entry.part == "F" else "B"
            for kind, at in (("receive", len(steps)), ("send", len(steps) + 1)):
                if queue := moved[kind, entry.replica, part, entry.chunk]:
                    steps.insert(at, queue.popleft())
                if kind == "receive":
                    steps.append(entry)
        lists.append(steps)
    return lists


def carried(programs: Sequence[Sequence[Any]], seconds: float = 20.0) -> list[str]:
    """What the stages of a pipeline hear that send each other what is in their lists."""
    store, heard = HashStore(), [""] * len(programs)

    def run(stage: int) -> None:
        communicator = Communicator(
            store, stage, [f"stage {number}" for number in range(len(programs))], stage, seconds
        )
        under_way: list[tuple[int, int]] = []
        awaited: dict[tuple[int, str, int], deque[tuple[int, int]]] = defaultdict(deque)
        try:
            for step in programs[stage]:
                if isinstance(step, StageTransfer):
                    number = communicator.begin_message(f"{step.kind}s", step.peer, 1)
                    under_way.append((step.peer, number))
                    if step.kind == "receive":
                        awaited[step.replica, step.part, step.chunk].append((step.peer, number))
                elif queue := awaited[step.replica, "F" if step.part == "F" else "B", step.chunk]:
                    communicator.meet_message(*queue.popleft())
            for message in under_way:
                communicator.meet_message(*message)
        except RunError as error:
            heard[stage] = error.diagnostics[0].message

    threads = [threading.Thread(target=run, args=(stage,)) for stage in range(len(programs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return heard


def problem(stages: int, chunks: int, models: int, turned: bool) -> PipelineProblem:
    return PipelineProblem(
        tuple(
            PipelineModel(f"m{number}", stages, 4, 1.0, 2.0, chunks=chunks, reverse=turned and number % 2 == 1)
            for number in range(models)
        )
    )


LISTS = {
    "1F1B, two stages": (problem(2, 1, 1, False), False),
    "two chunks": (problem(2, 2, 1, False), True),
    "fused, reversed": (problem(2, 1, 2, True), True),
    "fused, reversed, four stages": (problem(4, 1, 2, True), True),
}
"""Pipelines, and whether two of their stages sent to each other as it was."""


@pytest.mark.parametrize("name", few(LISTS, *LISTS))
def test_stages_do_not_send_to_each_other_at_once(name: str) -> None:
    pipeline, hung = LISTS[name]
    programs = training_stage_programs(pipeline)
    assert carried(programs) == [""] * len(programs)
    if hung:
        said = carried(as_needed(programs), 1.0)
        assert any("each sends it" in text or "has not come to it" in text for text in said), said


def test_messages_of_a_search_meet() -> None:
    for pipeline, _ in LISTS.values():
        same = replace(pipeline, models=tuple(replace(model, weight=1.0) for model in pipeline.models))
        programs = make_stage_programs(same, best_rule_schedule(same))
        assert carried(programs) == [""] * len(programs)
        counts = Counter(step.kind for program in programs for step in program if isinstance(step, StageTransfer))
        assert counts["send"] == counts["receive"] > 0
