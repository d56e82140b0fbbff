"""What processes hold on hard devices is counted, and refused beyond what there is."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rlgraph.backends.engines.offload import MemoryCounters, Offloader
from rlgraph.backends.hard.ledger import DeviceLedger
from rlgraph.backends.hard.node import HardNodes, read_hard_nodes
from rlgraph.backends.hard.process import HardProcess, HardSeat, Reservation, visible_device
from rlgraph.backends.hard.seats import device_peaks, hard_seats
from rlgraph.backends.ray.backend import RayBackend
from rlgraph.backends.worker.session import Settings
from rlgraph.errors import RunError, UsageMistake
from tests.passes.cost.test_memory_program import predicted, program

MB = 1 << 20
SMALL = HardNodes(1, 2, 16 * MB, process=0, communicator=MB, host=8 * MB)


def processes(folder: Path, *devices: int, nodes: HardNodes = SMALL, process_bytes: int = 0) -> list[HardProcess]:
    """A process on each of these devices."""
    ledger = folder / "devices"
    DeviceLedger.create(ledger, len(devices))
    return [
        HardProcess(
            HardSeat(nodes, str(ledger), number, f"rank {number}", device, process_bytes), device, MemoryCounters()
        )
        for number, device in enumerate(devices)
    ]


def megabytes(count: float) -> torch.Tensor:
    return torch.empty(int(count * MB), dtype=torch.uint8)


def test_tensors_are_counted_while_they_are_there(tmp_path: Path) -> None:
    [here] = processes(tmp_path, 0)
    with here.counting():
        first = megabytes(3)
        views = [first[:10], first.view(-1), first[:3].clone()]
        assert here.device_bytes == 3 * MB + 3
        second = megabytes(4)
        del first, views
        assert here.device_bytes == 4 * MB
        second.untyped_storage().resize_(0)
        assert here.device_bytes == 0
        second.untyped_storage().resize_(2 * MB)
    assert here.device_bytes == 2 * MB and here.peak_bytes == 7 * MB + 3


def test_two_processes_share_a_device_and_not_two(tmp_path: Path) -> None:
    one, other, apart = processes(tmp_path, 0, 0, 1)
    with one.counting():
        ours = megabytes(10)
    with apart.counting():
        theirs = megabytes(15)
    with other.counting():
        little = megabytes(5)
        with pytest.raises(torch.OutOfMemoryError) as caught:
            megabytes(2)
    assert str(caught.value) == (
        "CUDA out of memory. Tried to allocate 2.097MB. GPU 0 has a total capacity of 16.78MB of which 1.049MB is free. "
        "rank 1 has 5.243MB in use, rank 0 10.49MB"
    )
    # What was refused is not held.
    assert other.device_bytes == 5 * MB and other.free_bytes() == MB
    del ours
    one.charge(0)
    with other.counting():
        more = megabytes(2)
    assert len(theirs) + len(little) + len(more) == 22 * MB


def test_a_model_that_sleeps_is_on_its_host(tmp_path: Path) -> None:
    [here] = processes(tmp_path, 0)
    offloader = Offloader(here._counters)
    with here.counting():
        weights = megabytes(6)
        offloader.sleep([weights])
        assert here.device_bytes == 0
        others = megabytes(12)
        with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate 6.291MB"):
            offloader.wake(lambda: None)
        del others
    too_large = processes(tmp_path, 0)[0]
    with too_large.counting():
        weights = megabytes(9)
        with pytest.raises(torch.OutOfMemoryError, match="want to pin 9.437MB of its host's memory, of which 8.389MB"):
            Offloader(too_large._counters).sleep([weights])


def test_what_a_gpu_would_have_beside_tensors(tmp_path: Path) -> None:
    """The runtime, communicators, and the cache of an engine that takes a share of the device."""
    one, other = processes(tmp_path, 0, 0, process_bytes=2 * MB)
    asleep = False
    one.charge(SMALL.communicator)
    one.reserve(Reservation(8 * MB, lambda: asleep))
    assert one.device_bytes == 11 * MB and other.free_bytes() == 3 * MB
    with other.counting(), pytest.raises(torch.OutOfMemoryError):
        megabytes(4)
    asleep = True
    one.charge(0)
    assert other.free_bytes() == 11 * MB
    with pytest.raises(torch.OutOfMemoryError):
        other.charge(12 * MB)


def test_ray_says_which_device_it_is() -> None:
    seat = HardSeat(SMALL, "", 0, "", 0)
    assert [visible_device(seat, text) for text in (None, "", "1", "1,0", "7", "GPU-a")] == [0, 0, 1, 1, 0, 0]
    assert replace(SMALL, nodes=2).place_name(3) == "GPU 1 of node 1"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hard:8", "`hard:8` is no number of devices with a memory"),
        ("hard:", "`hard:` is no number of devices with a memory"),
        ("hard:0x80GB", "`hard:0x80GB` has no device"),
        ("hard:8x80", "`80` has no unit: expected "),
        ("hard:8x0", "a device without memory holds nothing"),
        ("hard:8x80GB(cache=1GB)", "`cache=1GB` is none of `process=BYTES`"),
        ("hard:8x80GB(process)", "`process` is none of "),
    ],
)
def test_hard_devices_that_cannot_be(text: str, said: str) -> None:
    with pytest.raises(UsageMistake) as caught:
        read_hard_nodes(text)
    [told] = caught.value.diagnostics
    assert told.code == "E0749" and said in told.message and "hard:8x80GB" in told.hint


def test_hard_devices_that_can() -> None:
    assert read_hard_nodes("hard:8x80GB") == HardNodes(1, 8, 80_000_000_000, None, 688 << 20, 640_000_000_000)
    told = read_hard_nodes("hard:2x4x64MiB(process=0, communicator=1MiB, host=1GiB)")
    assert told == HardNodes(2, 4, 64 * MB, 0, MB, 1 << 30) and told.devices == 8


NAME = "grpo with large weights"


def run(folder: Path, memory: int) -> dict[int, int]:
    """Two steps on one hard device; returns what it had at most."""
    torch.set_num_threads(1)
    made = program(NAME, folder)
    nodes = HardNodes(1, 1, memory, process=0, communicator=0, host=1 << 30)
    with closing(RayBackend(made.program, made.plan, Settings(folder=folder), debug=True, hard=nodes)) as backend:
        list(backend.run_steps(2))
        return device_peaks(spec.hard for spec in backend.processes.specs.values() if spec.hard is not None)


def test_a_step_has_the_peak_of_its_plan_and_is_refused_on_less(tmp_path: Path) -> None:
    [(device, peak)] = run(tmp_path, 1 << 30).items()
    assert device == 0 and peak == pytest.approx(predicted(NAME).used_bytes, rel=0.05)
    with pytest.raises(RunError) as caught:
        run(tmp_path, int(0.95 * peak))
    [told] = caught.value.diagnostics
    assert told.code == "E0750" and told.span.line and "sleep=true" in told.hint
    assert "has no room left: CUDA out of memory. Tried to allocate " in told.message
    assert "rank 0 of all.transformers has " in told.message


def test_a_plan_for_more_devices_is_refused(tmp_path: Path) -> None:
    made = program(NAME, tmp_path)
    pool = replace(made.plan.pools[0], devices=3)
    with pytest.raises(RunError) as caught:
        hard_seats(replace(made.plan, pools=(pool,)), SMALL, tmp_path)
    assert caught.value.diagnostics[0].message == "the plan needs 3 devices, and there are 2 hard devices"
