"""Sampling that goes on from the middle of sampled tokens: trees of rollouts, beside a plain reference."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from scheduled import compiled, debug_metrics
from tiny import Run, compile_text, data_folder, weights

from rlgraph.backends.recording import claim_folder
from rlgraph.errors import RlgraphError

# A tree in the manner of TreeRL and SPO-chain: the value of the place where the branches begin is the mean reward of
# what grows from it, the stem is paid for how much better that is than the prompt's mean, a branch for how much better
# it is than the place.
TREE = f"""algorithm tree
model actor  = causal_lm({weights()}, dtype="float64")
data prompts = jsonl("prompts.jsonl", batch=5, shuffle=false)
func spread  = python("rewards.py:spread")
step:
    stem   = actor.generate(prompts, n=2, max_tokens=6)
    head   = prefix(stem, tokens=3)
    leaf   = actor.generate(head, n=3, max_tokens=5)
    score  = spread(row(head, leaf))
    place  = mean(score, by=stem)
    before = place - mean(place, by=prompts)
    after  = score - place
    train actor(lr=0.01, eps=0.01):
        minimize -(sum(actor.logprobs(head) * before) + sum(actor.logprobs(leaf) * after)) / 30
    report score = mean(score), place = std(place), kept = mean(head.length), grown = mean(leaf.length)
    report again = mean(actor.logprobs(head)), then = mean(actor.logprobs(leaf)), ended = mean(head.finished)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return data_folder(tmp_path)


def plain_logprobs(model: torch.nn.Module, row: list[int], first: int) -> torch.Tensor:
    """The log-probabilities of the tokens of a row from number `first` on, without padding."""
    table = model(torch.tensor([row])).logits[0].double().log_softmax(-1)
    return (
        torch.stack([table[place - 1, row[place]] for place in range(first, len(row))])
        if first < len(row)
        else table[:0, 0]
    )


@pytest.mark.parametrize("tokens", ["3", "floor(stem.length / 2)"])
def test_a_tree_of_rollouts_is_what_its_formula_says(folder: Path, tokens: str) -> None:
    assert len([line for line in TREE.splitlines() if line.strip()]) <= 30
    run = Run(compile_text(TREE.replace("tokens=3", f"tokens={tokens}")), folder)
    model = run.models["actor"]
    [seen] = run.steps(1)
    model.load_state_dict(run.initial["actor"])
    model.zero_grad()
    stem, head, leaf = (seen.values[name].sequences for name in ("stem", "head", "leaf"))
    prompts = [sum(1 for flag in flags if not flag) for flags in stem.scored.split(stem.lengths.tolist())]
    stems, heads, leaves = stem.rows(), head.rows(), leaf.rows()
    logprobs = seen.values["stem"].columns["logprobs"].split(stem.scored_counts().tolist())
    kept = seen.values["head"].columns["logprobs"].split(head.scored_counts().tolist())
    finished = seen.values["stem"].columns["finished"].tolist()
    scores = []
    for at, (whole, part) in enumerate(zip(stems, heads, strict=True)):
        length = len(whole) - prompts[at]
        count = min(3, length) if tokens == "3" else length // 2
        assert part == whole[: prompts[at] + count]
        assert kept[at].tolist() == logprobs[at][:count].tolist()
        assert seen.values["head"].columns["finished"].tolist()[at] == (finished[at] and count == length)
        for grown in leaves[3 * at : 3 * at + 3]:
            assert grown[: len(part)] == part
            # A row that has ended goes on with nothing.
            assert (len(grown) == len(part)) == (finished[at] and count == length)
            answer = grown[prompts[at] :]
            scores.append((3 * sum(answer) + len(answer)) % 7 / 6)
    assert seen.values["score"].tolist() == pytest.approx(scores, abs=1e-12)
    place = torch.tensor(scores, dtype=torch.float64).view(10, 3).mean(1)
    before = place - place.view(5, 2).mean(1).repeat_interleave(2)
    after = torch.tensor(scores, dtype=torch.float64) - place.repeat_interleave(3)
    loss = torch.zeros((), dtype=torch.float64)
    for at, part in enumerate(heads):
        loss = loss - before[at] * plain_logprobs(model, part, prompts[at]).sum() / 30
        for branch in range(3):
            grown = leaves[3 * at + branch]
            loss = loss - after[3 * at + branch] * plain_logprobs(model, grown, len(part)).sum() / 30
    loss.backward()
    norm = sum(float(weight.grad.square().sum()) for weight in model.parameters() if weight.grad is not None) ** 0.5
    [(found, found_norm)] = seen.losses["actor"]
    assert (found, found_norm) == (pytest.approx(float(loss.detach()), rel=1e-9), pytest.approx(norm, rel=1e-9))
    assert (seen.metrics["ended"] > 0) == (tokens == "3") and seen.metrics["ended"] < 1 and norm > 1e-3


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        ("stem.length / 4", "`tokens` is 1.5 for prompts row 0, sample 0, and no count of tokens"),
        ("stem.length - 7", "`tokens` is -1 for prompts row 0, sample 0"),
    ],
)
def test_what_is_no_count_of_tokens_is_refused(folder: Path, tokens: str, said: str) -> None:
    text = TREE.replace("tokens=3", f"tokens={tokens}").replace("max_tokens=6", "max_tokens=6, min_tokens=6")
    with pytest.raises(RlgraphError) as raised:
        Run(compile_text(text), folder).steps(1)
    shown = str(raised.value)
    assert "error[E0313]" in shown and said in shown and "^^^" in shown and "`max(floor(x), 0)` is one" in shown


def test_any_block_and_a_recording_say_the_same(folder: Path) -> None:
    program, record = compile_text(TREE), folder / "recording"
    with claim_folder(record, program.name, 0):
        whole = [dict(step.metrics) for step in Run(program, folder, record=record).steps(2)]
    for settings in ({"block": 1}, {"block": 3}, {"token_budget": 30}, {"replay": record, "block": 3}):
        steps = [dict(step.metrics) for step in Run(compile_text(TREE), folder, **settings).steps(2)]
        assert [pytest.approx(step, rel=1e-9, abs=1e-9) for step in whole] == steps


def test_ray_and_two_copies_of_the_model_say_the_same(folder: Path) -> None:
    whole = [dict(step.metrics) for step in Run(compile_text(TREE), folder).steps(2)]
    schedule = "pool play = 2 devices\nplace actor on play(engine=transformers, dp=2)\n"
    steps = debug_metrics(compiled(TREE, {}, schedule, folder), folder, 2, block=3)
    assert [pytest.approx(step, rel=1e-9, abs=1e-9) for step in whole] == steps
