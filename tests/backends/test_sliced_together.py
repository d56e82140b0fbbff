"""`minibatch A(beside=B)` slices two tables that have nothing to do with each other, against losses written here."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny import EPS, Seen, data_folder, run_text, weights

PROGRAM = f"""algorithm t
model actor = causal_lm({weights()}, dtype="float64")
data prompts = jsonl("prompts.jsonl", batch=5, shuffle=false)
data experts = jsonl("sft.jsonl", batch=7, shuffle=false)
func spread = python("rewards.py:spread")
step:
    rollout = actor.generate(prompts, n=2, max_tokens=4)
    taught  = encode(experts)
    score   = spread(rollout)
    minibatch prompts(parts=3, OPTIONS):
        rows  = taught.length * 2
        own   = rollout.length * 3
        train actor(lr=0.0, eps={EPS}):
            minimize mean(-actor.logprobs(rollout) * score) + mean(-actor.logprobs(taught) * taught.length)
    report sum = sum(rows * taught.length), own = sum(own * rollout.length)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("together"))


def ran(folder: Path, options: str, **settings: int) -> Seen:
    [seen] = run_text(PROGRAM.replace("OPTIONS", options), folder, **settings)
    return seen


def cut(count: int) -> list[list[int]]:
    """The rows of each of three slices, as equal as they can be."""
    sizes = [count // 3 + (part < count % 3) for part in range(3)]
    return [list(range(sum(sizes[:part]), sum(sizes[: part + 1]))) for part in range(3)]


@pytest.mark.parametrize("micro", [0, 2])
def test_each_slice_has_a_part_of_both(folder: Path, micro: int) -> None:
    """Costs half a second."""
    seen = ran(folder, "beside=experts", micro_rows=micro)
    sampled, taught = seen.table("rollout"), seen.table("taught")
    counts = [sum(flags) for flags in taught.scored]
    tokens = [sum(flags) for flags in sampled.scored]
    scores = torch.cat(seen.scores).tolist()
    assert seen.metrics["sum"] == 2 * sum(count**2 for count in counts), "rows beside are put together again"
    assert seen.metrics["own"] == 3 * sum(count**2 for count in tokens)
    mine = sampled.columns["logprobs"].split(tokens)
    # The weights stay (lr=0).
    for part, (prompts, experts) in enumerate(zip(cut(5), cut(7), strict=True)):
        rows = [row for prompt in prompts for row in (2 * prompt, 2 * prompt + 1)]
        sampled_loss = -sum(float(mine[row].sum()) * scores[row] for row in rows) / sum(tokens[row] for row in rows)
        given = seen.losses["actor"][part][0] - sampled_loss
        alone = run_text(ALONE.replace("ROWS", " or ".join(f"place == {row}" for row in experts)), folder)
        assert given == pytest.approx(alone[0].metrics["loss"], abs=1e-9)


ALONE = f"""algorithm t
model actor = causal_lm({weights()}, dtype="float64")
data experts = jsonl("sft.jsonl", batch=7, shuffle=false)
step:
    taught = encode(experts)
    place  = rank(0 * taught.length)
    keep experts where ROWS
    report loss = mean(-actor.logprobs(taught) * taught.length)
"""


def test_shuffled_slices_of_each_table_are_its_own(folder: Path) -> None:
    """Costs a second."""
    first = ran(folder, "beside=experts, shuffle=true")
    again = ran(folder, "beside=experts, shuffle=true", micro_rows=1)
    plain = ran(folder, "beside=experts")
    assert first.metrics["sum"] == again.metrics["sum"] == plain.metrics["sum"]
    losses, others = [loss for loss, _ in first.losses["actor"]], [loss for loss, _ in again.losses["actor"]]
    assert losses == pytest.approx(others, abs=1e-12)
    assert losses != pytest.approx([loss for loss, _ in plain.losses["actor"]], abs=1e-6)
