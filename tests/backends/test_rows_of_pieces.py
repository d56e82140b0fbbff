"""Rows made of pieces: the same sampled tokens behind another prompt, beside a plain reference."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from scheduled import compiled, debug_metrics
from tiny import Run, compile_text, data_folder, weights

from rlgraph.backends.recording import claim_folder
from rlgraph.errors import RlgraphError

ANSWERS = ["ab", "", "dcd", "aabb", "c"]
TEXT = f"""algorithm hinted
model actor   = causal_lm({weights()}, dtype="float64")
model teacher = frozen(causal_lm({weights(3)}, dtype="float64"))
data prompts  = jsonl("prompts.jsonl", batch=5, shuffle=false)
step:
    rollout = actor.generate(prompts, n=3, max_tokens=5)
    hinted  = row("{{prompts.prompt}}>", prompts.hint, rollout)
    taught  = teacher.logprobs(hinted)
    plain   = teacher.logprobs(rollout)
    same    = teacher.logprobs(row(prompts, rollout))
    own     = actor.logprobs(hinted)
    train actor(lr=0.01, eps=0.01):
        minimize mean(k1(actor.logprobs(rollout), taught)) + mean(-actor.logprobs(hinted)) / 4
    report kl = mean(rollout.logprobs - taught), apart = mean(abs(plain - same)), moved = mean(abs(plain - taught))
    report own = mean(own - rollout.logprobs), length = mean(hinted.length), then = mean(actor.logprobs(hinted))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = data_folder(tmp_path)
    write_hints(folder, ANSWERS)
    return folder


def write_hints(folder: Path, hints: Sequence[object]) -> None:
    rows = [json.loads(line) for line in (folder / "prompts.jsonl").read_text().splitlines()]
    lines = [json.dumps({**row, "hint": hints[place % len(hints)]}) for place, row in enumerate(rows)]
    (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n")


def plain_logprobs(model: torch.nn.Module, prompt: list[int], answer: list[int]) -> list[float]:
    """The log-probability of each token of an answer, one row at a time and without padding."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *answer]])).logits[0].double()
    table = logits.log_softmax(-1)
    return [float(table[len(prompt) + place - 1, token]) for place, token in enumerate(answer)]


def test_the_same_tokens_have_the_probabilities_of_another_prompt(folder: Path) -> None:
    run = Run(compile_text(TEXT), folder)
    teacher = run.models["teacher"]
    codec = run.backend.session.models["actor"].engine.codec
    [seen] = run.steps(1)
    rows = [json.loads(line) for line in (folder / "prompts.jsonl").read_text().splitlines()][:5]
    sampled, hinted = seen.values["rollout"].sequences, seen.values["hinted"].sequences
    wanted = []
    for at, answer in enumerate(sampled.scored_tokens_by_row()):
        prompt = codec.encode_prompt(f"{rows[at // 3]['prompt']}>{rows[at // 3]['hint']}")
        assert hinted.rows()[at] == [*prompt, *answer]
        wanted += plain_logprobs(teacher, prompt, answer)
    taught = seen.values["taught"]
    assert taught.shape == seen.values["rollout"].columns["logprobs"].shape
    assert taught.tolist() == pytest.approx(wanted, rel=1e-9, abs=1e-9)
    assert seen.metrics["apart"] == pytest.approx(0, abs=1e-12) and seen.metrics["moved"] > 0.05
    # The actor's are not those with which it sampled, though it has the same weights.
    assert abs(seen.metrics["own"]) > 0.01


def test_any_block_ray_and_a_recording_say_the_same(folder: Path) -> None:
    program, record = compile_text(TEXT), folder / "recording"
    with claim_folder(record, program.name, 0):
        whole = [dict(step.metrics) for step in Run(program, folder, record=record).steps(2)]
    found = []
    for settings in ({"block": 1}, {"block": 3}, {"token_budget": 30}, {"replay": record, "block": 3}):
        found.append([dict(step.metrics) for step in Run(compile_text(TEXT), folder, **settings).steps(2)])
    schedule = "pool play = 2 devices\nplace actor on play(engine=transformers)\npool school = 2 devices\n"
    schedule += "place teacher on school(engine=transformers)\n"
    made = compiled(TEXT, {}, schedule, folder)
    found += [debug_metrics(made, folder, 2, block=block) for block in (None, 3)]
    for steps in found:
        assert [pytest.approx(step, rel=1e-9, abs=1e-9) for step in whole] == steps


def test_pieces_of_two_kinds_are_named(folder: Path) -> None:
    write_hints(folder, [*ANSWERS[:3], [{"role": "user", "content": "a"}], "b"])
    with pytest.raises(RlgraphError) as raised:
        Run(compile_text(TEXT), folder).steps(1)
    assert "E0892" in str(raised.value) and "prompts row 3" in str(raised.value)


def test_a_row_with_nothing_before_its_tokens_is_named(folder: Path) -> None:
    with pytest.raises(RlgraphError) as raised:
        Run(compile_text(TEXT.replace('row("{prompts.prompt}>", prompts.hint,', "row(prompts.hint,")), folder).steps(1)
    assert "E0892" in str(raised.value) and "prompts row 1, sample 0 have no token" in str(raised.value)


TWO_TOKENIZERS = f"""algorithm apart
model actor  = causal_lm({weights()}, dtype="float64")
model other  = causal_lm({weights(3).replace("abcd>", "abcdef>")}, dtype="float64")
model judge  = reward_lm({weights(3).replace("abcd>", "abcdef>")})
data prompts = jsonl("prompts.jsonl", batch=2, shuffle=false)
step:
    rollout = actor.generate(prompts, n=2, max_tokens=5)
    answer  = other.generate(prompts, max_tokens=5)
    report USE
"""


@pytest.mark.parametrize(
    ("use", "said"),
    [
        ("x = mean(row(rollout, answer).length)", "`other` and `actor` split texts into other tokens, and a row has"),
        ("x = mean(other.generate(row(rollout), max_tokens=2).length)", "`other` and `actor` split texts into other"),
        ("x = mean(judge.score(row(rollout, 'ab', rollout)))", "sample 0 is made of pieces, and `judge` splits"),
    ],
)
def test_tokens_of_another_tokenizer_are_refused(folder: Path, use: str, said: str) -> None:
    text = TWO_TOKENIZERS.replace("USE", use.replace("'", '"'))
    with pytest.raises(RlgraphError) as raised:
        Run(compile_text(text), folder).steps(1)
    shown = str(raised.value)
    assert "error[E0310]" in shown and said in shown and "^^^" in shown and "help: " in shown


def test_rows_of_pieces_go_where_rows_go(folder: Path) -> None:
    text = f"""algorithm travels
model actor  = causal_lm({weights()}, dtype="float64")
data prompts = jsonl("prompts.jsonl", batch=6, shuffle=false)
data tasks   = jsonl("tasks.jsonl", batch=4, shuffle=false)
env shell    = python("envs.py:Shell")
buffer old   = fifo(capacity=24)
step:
    rollout = actor.generate(prompts, n=3, max_tokens=5)
    hinted  = row("{{prompts.task}}", prompts, rollout)
    push old(hinted)
    back    = old.sample(6)
    episode = actor.interact(shell, tasks, n=2, max_turns=3, max_tokens=24)
    told    = row("{{tasks.prompt}}dd", episode)
    minibatch prompts(parts=3):
        train actor(lr=0.01, eps=0.01):
            inner = row("{{rollout.task}}>", rollout)
            minimize mean(-actor.logprobs(inner)) + mean(-actor.logprobs(hinted))
    keep rollout where rollout.length > 2
    again = row(">{{rollout.text}}", rollout)
    report again = mean(actor.logprobs(again)), back = mean(actor.logprobs(back))
    report longer = mean(again.length - rollout.length), told = mean(actor.logprobs(told) - episode.logprobs)
    report reward = mean(sum(told.reward, turn) - sum(episode.reward, turn))
"""
    runs = (Run(compile_text(text), folder, block=block) for block in (None, 3))
    whole, parts = ([dict(step.metrics) for step in run.steps(2)] for run in runs)
    assert whole == [pytest.approx(step, rel=1e-9, abs=1e-9) for step in parts]
    assert whole[1]["longer"] == 0 and whole[1]["reward"] == 0 and whole[1]["told"] != 0


JUDGED = f"""algorithm judged
model actor  = causal_lm({weights()}, dtype="float64")
data prompts = jsonl("prompts.jsonl", batch=5, shuffle=false)
data tasks   = jsonl("tasks.jsonl", batch=4, shuffle=false)
env shell    = python("envs.py:Shell")
step:
    rollout = actor.generate(prompts, n=2, max_tokens=5)
    asked   = row("{{prompts.prompt}}>", rollout, "a{{prompts.hint}}>")
    judged  = actor.generate(asked, n=2, max_tokens=4)
    both    = row(asked, judged)
    last    = row(rollout, "ab", judged, loss=last)
    episode = actor.interact(shell, tasks, n=2, max_turns=3, max_tokens=24)
    seen    = row(episode, loss=seen)
    told    = actor.logprobs(seen)
    train actor(lr=0.01, eps=0.01):
        minimize mean(-actor.logprobs(both)) + mean(-actor.logprobs(last)) + 0.1 * mean(-actor.logprobs(seen))
    report both = mean(both.length), apart = mean(both.logprobs), last = mean(last.logprobs - judged.logprobs)
    report told = mean(told), seen = mean(seen.length), over = mean(asked.finished)
"""


def test_a_judge_goes_on_behind_sampled_tokens(folder: Path) -> None:
    run = Run(compile_text(JUDGED), folder)
    model = run.models["actor"]
    codec = run.backend.session.models["actor"].engine.codec
    [step] = run.steps(1)
    model.load_state_dict(run.initial["actor"])
    rows = [json.loads(line) for line in (folder / "prompts.jsonl").read_text().splitlines()][:5]
    value = {name: step.values[name] for name in ("rollout", "asked", "judged", "both", "last", "seen", "episode")}
    answers = value["rollout"].sequences.scored_tokens_by_row()
    verdicts = value["judged"].sequences.scored_tokens_by_row()
    probability = step.values["both"].columns["logprobs"].split(value["both"].sequences.scored_counts().tolist())
    for at, verdict in enumerate(verdicts):
        row, answer = rows[at // 4], answers[at // 2]
        begin = codec.encode_prompt(f"{row['prompt']}>")
        between = codec.encode_text(f"a{row['hint']}>")
        whole = [*begin, *answer, *between, *verdict]
        assert value["both"].sequences.rows()[at] == whole
        assert value["both"].sequences.scored_tokens_by_row()[at] == [*answer, *verdict]
        # What was sampled keeps its log-probabilities: of the answer behind its own prompt, of the verdict behind this row.
        own = plain_logprobs(model, codec.encode_prompt(row["prompt"]), answer)
        wanted = [*own, *plain_logprobs(model, whole[: len(whole) - len(verdict)], verdict)]
        assert probability[at].tolist() == pytest.approx(wanted, rel=1e-9, abs=1e-9)
        prompt = codec.encode_prompt(row["prompt"])
        assert value["last"].sequences.rows()[at] == [*prompt, *answer, *codec.encode_text("ab"), *verdict]
    assert step.metrics["over"] == 0 and step.metrics["last"] == 0


def test_what_an_agent_saw_carries_loss(folder: Path) -> None:
    run = Run(compile_text(JUDGED), folder)
    model = run.models["actor"]
    [step] = run.steps(1)
    model.load_state_dict(run.initial["actor"])
    episodes, seen = step.values["episode"].sequences, step.values["seen"].sequences
    wanted = []
    for row, flags in zip(episodes.rows(), episodes.scored.split(episodes.lengths.tolist()), strict=True):
        actions = flags.nonzero()[:, 0].tolist()
        table = plain_logprobs(model, row[:1], row[1:])
        wanted += [table[at - 1] for at in range(len(row)) if actions and at > actions[0] and not flags[at]]
    assert seen.rows() == episodes.rows() and int(seen.scored.sum()) == len(wanted) > 0
    assert step.values["told"].tolist() == pytest.approx(wanted, rel=1e-9, abs=1e-9)


def test_judges_say_the_same_in_any_block_and_on_ray(folder: Path) -> None:
    whole = [dict(step.metrics) for step in Run(compile_text(JUDGED), folder).steps(2)]
    found = [[dict(step.metrics) for step in Run(compile_text(JUDGED), folder, block=3).steps(2)]]
    made = compiled(JUDGED, {}, "pool play = 2 devices\nplace actor on play(engine=transformers, dp=2)\n", folder)
    found.append(debug_metrics(made, folder, 2, block=3))
    for steps in found:
        assert [pytest.approx(step, rel=1e-9, abs=1e-9) for step in whole] == steps
