"""Tables stream where that pays although no schedule says so, and do not where it does not although one says so."""

from __future__ import annotations

import signal
from pathlib import Path
from unittest.mock import patch

import pytest

import rlgraph
from rlgraph.api.compiled import Compiled
from rlgraph.passes.compilation import overlapping_work, streaming
from rlgraph.passes.compilation.overlap_simulation import SimulationCache, simulate_step_seconds, steady_step_count
from rlgraph.passes.compilation.stream_blocks import STEPS
from rlgraph.passes.compilation.target import parse_workload
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.workload import Workload
from tests.passes.placement.test_block_choice import APART, LONG, PROGRAM

pytestmark = pytest.mark.usefixtures("slow_rows")

SLEEPS = """algorithm t
model actor = causal_lm("Qwen/Qwen2.5-7B")
model ref   = frozen(actor)
data prompts = jsonl("prompts.jsonl", batch=128)
step:
    rollout = actor.generate(prompts, n=4, max_tokens=2048)
    score   = ref.logprobs(rollout)
    train actor(lr=1e-6):
        minimize mean(-actor.logprobs(rollout) * score)
"""


def made(folder: Path, schedule: str | None = APART, cluster: str = "1x4:a100-80gb", stream: bool = True) -> Compiled:
    (folder / "t.rlf").write_text(PROGRAM)
    return rlgraph.compile(
        folder / "t.rlf", schedule=schedule, cluster=cluster, workload=Workload(response=LONG), stream=stream
    )


def test_a_table_streams_that_no_line_names(folder: Path) -> None:
    """With the blocks that it has where one does, and `stream=False` leaves it whole."""
    found, whole = made(folder), made(folder, stream=False)
    assert found.plan.blocks == made(folder, APART + "stream rollout\n").plan.blocks != ()
    assert whole.plan.blocks == () and not found.diagnostics
    before = simulate_step_seconds(whole.choice)
    assert before and found.plan_file_sections["predicted"]["seconds"] < (1 - streaming.PAYS) * before
    assert found.plan_file_sections["predicted"]["in_turn_seconds"] >= whole.plan_file_sections["predicted"]["seconds"]
    assert found.choice.search_result.bound <= whole.choice.search_result.seconds


def test_where_it_does_not_pay_the_plan_is_that_of_whole_batches(folder: Path) -> None:
    """All is done on one device, one work after the other."""
    found = made(folder, None, "1x1:h200-141gb")
    assert found.plan == made(folder, None, "1x1:h200-141gb", stream=False).plan and found.plan.blocks == ()
    assert "in_turn_seconds" not in found.plan_file_sections["predicted"]


@pytest.mark.long
def test_a_line_that_does_not_pay_costs_nothing(folder: Path) -> None:
    """Models sleep in the plan by whole batches, and would wake up for each block."""
    rows = Workload(response=Lengths.lognormal(mean=1000, p99=2000))
    (folder / "s.rlf").write_text(SLEEPS)
    whole, said = (
        rlgraph.compile(folder / "s.rlf", schedule=line, cluster="1x2:h100-80gb", workload=rows, stream=False)
        for line in (None, "schedule t\nstream rollout\n")
    )
    assert any(each.offload for each in whole.plan.holdings)
    assert said.plan == whole.plan
    assert [each.code for each in said.diagnostics] == ["W0905"]


def test_ctrl_c_leaves_batches_whole(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(timed: object, choice: object) -> float:
        signal.raise_signal(signal.SIGINT)
        return 0.0

    with patch.object(SimulationCache, "simulate_once", interrupted):
        found = made(folder)
    assert found.plan.blocks == ()
    assert "interrupted: no table streams that the schedule does not name" in capsys.readouterr().err


@pytest.mark.parametrize("mean, pays", [(600, True), (1000, True), (1500, False)])
def test_where_steps_run_ahead_few_rows_stream(mean: int, pays: bool) -> None:
    """Of many rows the simulations would take too long. With a mean of 1,000 the smallest block alone pays."""
    program = SLEEPS.replace("step:", "step async(lag=1):").replace("batch=128", "batch=16").replace("n=4", "n=8")
    program = program.replace("max_tokens=2048", "max_tokens=4096").replace("model ref   = frozen(actor)\n", "")
    program = program.replace("    score   = ref.logprobs(rollout)\n", "").replace(" * score", "")
    schedule = """schedule t
pool learn = 2 devices
pool play  = 6 devices
place actor.train    on learn
place actor.generate on play
"""

    def planned() -> Compiled:
        rows = parse_workload("150", f"mean={mean},p99=4096")
        return rlgraph.compile(program, schedule=schedule, cluster="1x8:h100-80gb", workload=rows)

    with patch.object(streaming, "_promising", wraps=streaming._promising) as promising:
        found = planned()
    # Of steps that end in bursts two tell little.
    assert promising.call_args.args[-1].steps == steady_step_count(found.choice) > STEPS
    with patch.object(overlapping_work, "FEW_ROWS", 1):
        whole = planned()
    assert bool(found.plan.blocks) == pays and not whole.plan.blocks
    seconds, before = (each.plan_file_sections["predicted"]["seconds"] for each in (found, whole))
    assert seconds <= (1 - streaming.PAYS) * before if pays else seconds == before
