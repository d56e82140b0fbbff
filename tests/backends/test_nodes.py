"""What single operations do at their edges: no rows, odd rows, and code of the user's that goes wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import ENVS, EPS, Run, Seen, compile_text, data_folder, run_text, weights, without_answers

from rlgraph.backends.engines.transformers.engine import TransformersEngine
from rlgraph.backends.frame import Frame
from rlgraph.backends.rows import TableData
from rlgraph.errors import ProgramError, RlgraphError, RunError
from rlgraph.ir.graph import Node
from rlgraph.ir.plan import ModelHolding
from tests.backends.engines.refreshing import Coming
from tests.suites import few


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = data_folder(tmp_path_factory.mktemp("nodes"))
    (made / "bad.py").write_text(BAD)
    return made


BAD = """
def short(prompts, completions, **columns):
    return [1.0] * (len(completions) - 1)

def nan(prompts, completions, place, **columns):
    return [float("nan") if at == 3 else 1.0 for at in place]

def raises(prompts, completions, place, **columns):
    return [1 / (at - 2) for at in place]

def text(prompts, completions, **columns):
    return ["good" for _ in completions]

def given(prompts, completions, double, place, **columns):
    return [d - 2 * p for d, p in zip(double, place)]
"""

MODEL = f'model actor = causal_lm({weights()}, dtype="float64")\n'
DATA = 'data prompts = jsonl("prompts.jsonl", batch=5, shuffle=false)\n'
HEAD = "algorithm t\n" + MODEL + DATA + 'func spread = python("rewards.py:spread")\n'
ROLL = "\nstep:\n    rollout = actor.generate(prompts, n=2, max_tokens=4)\n    score   = spread(rollout)\n"
TRAIN = "    train actor(lr=0.05):\n        minimize mean(-actor.logprobs(rollout) * score)\n"


def step(lines: str, folder: Path, head: str = HEAD + ROLL, **settings: Any) -> Seen:
    return run_text(head + lines, folder, **settings)[0]


def failure(lines: str, folder: Path, head: str = HEAD + ROLL) -> str:
    with pytest.raises(RlgraphError) as error:
        step(lines, folder, head)
    return str(error.value)


# Rows that a model has no positions for


@pytest.mark.parametrize("family", ["qwen2", "gpt2"])
def test_a_prompt_with_its_answer_has_to_fit(family: str, folder: Path) -> None:
    """GPT-2 has no vector for the next position; Qwen goes on, and says nonsense."""
    shape = "hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1"
    shape = (
        f"{shape}, max_position_embeddings=8" if family == "qwen2" else "n_embd=8, n_layer=1, n_head=2, n_positions=8"
    )
    head = f'algorithm t\nmodel actor = causal_lm(random("{family}", {shape}, tokenizer=chars("abcd>")))\n{DATA}'
    step = "step:\n    rollout = actor.generate(prompts, max_tokens={})\n    report n = mean(rollout.length)\n"
    text = failure("", folder, head + step.format(5))
    assert "error[E0748]: the prompt of prompts row 2 has 4 tokens: with the 5 of `max_tokens` more it is" in text
    assert "longer than the 8 that a row of `actor` may have" in text and "^^^^" in text
    assert run_text(head + step.format(4), folder)[0].metrics["n"] <= 4


def test_a_cache_that_a_plan_says_has_to_have_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hint names what to change there, if that would help."""
    asked = []
    # The rows that a `keep` leaves are not counted before the first step.
    kept = ROLL.replace("step:\n", "step:\n    keep prompts where prompts.prompt.length > 0\n")

    def roomier(_: TransformersEngine, tokens: int) -> ModelHolding | None:
        asked.append(tokens)
        return ModelHolding("actor", "play.vllm", kv_bytes=12345)

    monkeypatch.setattr(TransformersEngine, "max_row_tokens", 7)
    monkeypatch.setattr(TransformersEngine, "holding_for_longer_rows", roomier, raising=False)
    text = failure("    report n = mean(rollout.length)\n", folder, HEAD + kept)
    assert "error[E0748]: the prompt of prompts row 2 has 4 tokens: with the 4 of `max_tokens` more it is" in text
    assert "help: raise `kv_bytes` of `actor` on `play.vllm` in the plan file to 12345 at least, lower" in text
    assert asked == [8]
    monkeypatch.setattr(TransformersEngine, "holding_for_longer_rows", lambda *_: None)
    text = failure("    report n = mean(rollout.length)\n", folder, HEAD + kept)
    assert "help: lower `max_tokens`, or leave such rows out of the data" in text


def test_a_judge_that_cannot_read_a_chat_says_so(folder: Path) -> None:
    """It has tokens of its own, and no template to write messages with."""
    (folder / "chat.jinja").write_text("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    (folder / "chats.jsonl").write_text('{"prompt": [{"role": "user", "content": "ab"}]}\n')
    other = weights(3).replace('"abcd>"', '"dcba>x"')
    head = f'algorithm t\nmodel actor = causal_lm({weights()}, chat=chat(template="chat.jinja"))\n'
    head += f'model reward = reward_lm({other})\ndata chats = jsonl("chats.jsonl", batch=1)\n'
    lines = "step:\n    rollout = actor.generate(chats, max_tokens=4)\n    train reward(lr=0.1):\n"
    text = failure(lines + "        minimize mean(reward.score(rollout))\n", folder, head)
    assert "error[E0731]: `reward` cannot read chats row 0: it is a list of messages" in text
    assert "minimize mean(reward.score(rollout))" in text and "has no chat template" in text


def test_a_row_that_is_read_has_to_fit(folder: Path) -> None:
    """Texts of the data, which nobody generated."""
    short = weights().replace("max_position_embeddings=64", "max_position_embeddings=7")
    head = f'algorithm t\nmodel actor = causal_lm({short})\ndata pairs = jsonl("sft.jsonl", batch=10, shuffle=false)\n'
    lines = "step:\n    rows = encode(pairs.prompt, pairs.response)\n    train actor(lr=0.1):\n"
    lines += "        minimize mean(-actor.logprobs(rows))\n"
    text = failure(lines, folder, head)
    assert (
        "error[E0748]: pairs row 5 has 8 tokens in `prompt` and `response`" in text
        and "more than the 7 that a row of `actor` may have" in text
    )


def test_a_model_with_other_tokens_is_not_asked_for_each_of_them(folder: Path) -> None:
    """A score is of a whole text, which it may read in tokens of its own."""
    other = weights(3).replace('"abcd>"', '"dcba>x"')
    head = HEAD + f'model judge = causal_lm({other}, dtype="float64")\nmodel reward = reward_lm({other})\n' + ROLL
    text = failure("    report odd = mean(judge.logprobs(rollout))\n" + TRAIN, folder, head)
    assert "error[E0734]: `judge` and `actor` split texts into other tokens" in text
    assert "^^^^" in text and "only `score` can read rows of a model with another tokenizer" in text
    scored = step("    report score = mean(reward.score(rollout))\n" + TRAIN, folder, head)
    assert scored.metrics["score"] != 0


# keep and pick


@pytest.mark.parametrize("block", [None, 2])
def test_keep_may_leave_nothing(folder: Path, block: int | None) -> None:
    lines = "    keep prompts where prompts.place > 100\n" + TRAIN
    lines += "    report score = mean(score), rows = size(score), best = max(score), spread = std(score)\n"
    run = Run(compile_text(HEAD + ROLL + lines), folder, block=block)
    (seen,) = run.steps(1)
    assert seen.metrics == {"score": 0, "rows": 0, "best": 0, "spread": 0, "actor.skipped_empty": 1}
    assert all(torch.equal(value, seen.weights["actor"][name]) for name, value in run.initial["actor"].items())
    assert "actor" not in seen.losses, "no update is made"


@pytest.mark.parametrize("block", [None, 1, 3])
def test_keep_of_answers_may_leave_empty_groups(folder: Path, block: int | None) -> None:
    lines = """    every_score = score
    keep rollout where score > 0.6
    left = size(score, by=prompts)
    best = max(score, by=prompts)
    report groups = size(left), empty = count(left == 0), rows = size(score), least = min(score), sum = sum(mean(score, by=prompts)), best = sum(best)
"""
    lines = lines.replace("    every_score = score\n", "")
    seen = step(lines, folder, block=block)
    scores = torch.cat(seen.scores).tolist()
    groups = [[s for s in scores[at : at + 2] if s > 0.6] for at in range(0, 10, 2)]
    assert seen.metrics["empty"] == sum(not group for group in groups) > 0
    assert seen.metrics["groups"] == 5
    assert seen.metrics["rows"] == sum(map(len, groups)) > 0
    assert seen.metrics["least"] > 0.6
    assert seen.metrics["sum"] == pytest.approx(sum(sum(g) / len(g) for g in groups if g))
    assert seen.metrics["best"] == pytest.approx(sum(max(g) for g in groups if g))


def test_keep_moves_every_live_value_alike(folder: Path) -> None:
    """Rows, tokens, columns and statistics of before still belong to each other."""
    lines = """    lp   = actor.logprobs(rollout, temperature=2.0)
    tot  = sum(lp, token)
    keep rollout where score > 0.3
    keep prompts where prompts.place != 1
    report off = max(abs(tot - sum(actor.logprobs(rollout, temperature=2.0), token))), again = max(abs(score - spread(rollout))), one = count(rollout.place == 1), rows = size(tot)
"""
    metrics = step(lines, folder).metrics
    assert metrics["off"] < 1e-12 and metrics["again"] == 0 and metrics["one"] == 0
    assert 0 < metrics["rows"] < 10


def test_pick_from_an_empty_group_names_the_row(folder: Path) -> None:
    lines = "    keep rollout where rollout.place != 2\n    best = pick(rollout, argmax(score, by=prompts))\n    report n = mean(best.length)\n"
    text = failure(lines, folder)
    assert "error[E0736]: prompts row 2 has no rows left to pick from" in text
    assert "best = pick(rollout, argmax(score, by=prompts))" in text and "^^^^" in text
    assert "help: drop it first: `keep prompts where ...`" in text


def test_pick_takes_the_first_of_equals(folder: Path) -> None:
    lines = "    same = score * 0\n    best = pick(rollout, argmax(same, by=prompts))\n    worst = pick(rollout, argmin(same, by=prompts))\n"
    lines += "    report a = mean(spread(best)), b = mean(spread(worst))\n"
    seen = step(lines, folder)
    scores = seen.scores[0].tolist()
    assert seen.metrics["a"] == seen.metrics["b"] == pytest.approx(sum(scores[::2]) / 5)


def test_a_picked_row_keeps_its_columns(folder: Path) -> None:
    lines = """    best = pick(rollout, argmax(score, by=prompts))
    own  = actor.logprobs(best, temperature=2.0)
    report off = max(abs(best.logprobs - actor.logprobs(best, temperature=1.0))), place = sum(best.place), top = mean(spread(best) - max(score, by=prompts)), own = mean(own)
"""
    metrics = step(lines, folder).metrics
    assert metrics["off"] < 1e-12 and metrics["place"] == 10 and abs(metrics["top"]) < 1e-12


# encode, columns, two data sources


def test_an_empty_response_is_its_end_alone(folder: Path) -> None:
    head = "algorithm t\n" + MODEL + 'data pairs = jsonl("sft.jsonl", batch=5, shuffle=false)\n\nstep:\n'
    seen = step(
        "    answer = encode(pairs.prompt, pairs.response)\n    report lengths = sum(answer.length), lp = mean(actor.logprobs(answer))\n",
        folder,
        head,
    )
    (table,) = seen.sampled
    written = [[t for t, s in zip(*row, strict=True) if s] for row in zip(table.tokens, table.scored, strict=True)]
    assert [len(row) for row in written] == [3, 1, 2, 5, 1]
    assert all(row[-1] == 1 for row in written)
    assert seen.metrics["lengths"] == 12


def test_two_data_sources_in_one_step(folder: Path) -> None:
    head = HEAD + 'data pairs = jsonl("sft.jsonl", batch=3, shuffle=false)\n' + ROLL
    lines = f"""    answer = encode(pairs.prompt, pairs.response)
    train actor(lr=0.05, eps={EPS}):
        minimize mean(-actor.logprobs(rollout) * score) + 0.5 * mean(-actor.logprobs(answer))
    report a = size(score), b = size(answer.length)
"""
    for settings in ({}, {"block": 2}, {"micro_rows": 1}):
        seen = step(lines, folder, head, **settings)
        assert (seen.metrics["a"], seen.metrics["b"]) == (10, 3)
        whole = step(lines, folder, head)
        torch.testing.assert_close(seen.weights["actor"], whole.weights["actor"], atol=1e-12, rtol=0)


def test_columns_of_the_data(folder: Path) -> None:
    lines = '    report a = count(rollout.task == "a"), high = count(prompts.place > 2), sum = sum(rollout.place)\n'
    assert step(lines, folder).metrics == {"a": 4, "high": 2, "sum": 20}


def test_a_column_that_is_no_number(folder: Path) -> None:
    with pytest.raises(ProgramError) as error:
        step("    report a = mean(rollout.task)\n", folder)
    assert "error[E0735]: `rollout.task` holds a text in prompts.jsonl:1, and one calculates with it" in str(
        error.value
    )


def test_numbers_of_other_libraries_and_one_that_is_too_large(tmp_path: Path) -> None:
    text = "from decimal import Decimal\nimport numpy as np\ndef rows(price):\n    prices = {prices}\n"
    text += "    return [{'prompt': 'ab', 'price': each} for each in prices[price]]\n"
    prices = "{0: [Decimal('1.25'), np.int64(3), np.float32(0.5), 2**63 - 1], 1: [1.0, 2**63]}"
    (tmp_path / "rows.py").write_text(text.replace("{prices}", prices))
    head = (
        f'algorithm t\n{MODEL}data prompts = python("rows.py:rows", price=PRICE, batch=COUNT, shuffle=false)\nstep:\n'
    )
    lines = "    rollout = actor.generate(prompts, max_tokens=1)\n    report a = sum(prompts.price)\n"
    seen = step(lines, tmp_path, head.replace("PRICE", "0").replace("COUNT", "4"))
    assert seen.metrics["a"] == pytest.approx(1.25 + 3 + 0.5 + 2.0**63)
    with pytest.raises(ProgramError) as error:
        step(lines, tmp_path, head.replace("PRICE", "1").replace("COUNT", "2"))
    assert "error[E0735]: `prompts.price` holds a whole number of more than 64 bits in row 1 of `rows`" in str(
        error.value
    )


def test_a_column_that_is_not_there(folder: Path) -> None:
    text = failure("    report a = mean(rollout.palce)\n", folder)
    assert "error[E0711]: prompts row 0" in text and "has no column `palce`" in text and "`place`" in text


# The user's functions


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("short", ["9 numbers for 10 rows"]),
        ("nan", ["row 3", "nan", "each must be a finite number"]),
        ("raises", ["row 2", "ZeroDivisionError"]),
        ("text", ["good"]),
    ],
)
def test_a_function_that_goes_wrong_is_a_diagnostic(folder: Path, name: str, said: list[str]) -> None:
    head = "algorithm t\n" + MODEL + DATA + f'func spread = python("bad.py:{name}", trial=false)\n' + ROLL
    text = failure("    report a = mean(score)\n", folder, head)
    assert text.startswith("error[E07")
    assert f'func spread = python("bad.py:{name}", trial=false)' in text and "^" in text
    for piece in said:
        assert piece in text, text


def test_a_function_is_given_columns_of_the_program(folder: Path) -> None:
    head = "algorithm t\n" + MODEL + DATA + 'func given = python("bad.py:given")\n\nstep:\n'
    lines = """    rollout = actor.generate(prompts, n=2, max_tokens=2)
    off     = given(rollout, double=prompts.place * 2)
    report off = max(abs(off))
"""
    assert step(lines, folder, head).metrics == {"off": 0}
    assert step(lines, folder, head, block=3).metrics == {"off": 0}


def test_a_gradient_that_is_not_finite(folder: Path) -> None:
    lines = "    train actor(lr=0.05):\n        minimize mean(log(0 * actor.logprobs(rollout)))\n    report a = mean(score)\n"
    run = Run(compile_text(HEAD + ROLL + lines), folder)
    with pytest.raises(RunError, match=r"training `actor` failed: the gradient of .* is not finite") as error:
        run.steps(1)
    assert "train actor(lr=0.05):" in str(error.value) and "^" in str(error.value)
    now = run.backend.session.models["actor"].engine.state()
    assert all(torch.equal(value, now[name]) for name, value in run.initial["actor"].items()), (
        "the weights were left alone"
    )


# Sampling


def test_a_row_is_sampled_alike_whatever_is_sampled_beside_it(folder: Path) -> None:
    """More prompts, more samples, another place in the batch: the same row has the same answer."""
    few = step("    report a = mean(score)\n", folder)
    many = step(
        "    report a = mean(score)\n", folder, HEAD.replace("batch=5", "batch=9") + ROLL.replace("n=2", "n=3")
    ).sampled[0]
    known = dict(zip(many.ids, many.tokens, strict=True))
    (table,) = few.sampled
    assert all(known[row] == tokens for row, tokens in zip(table.ids, table.tokens, strict=True))


def test_two_calls_sample_other_answers(folder: Path) -> None:
    seen = step(
        "    other = actor.generate(prompts, n=2, max_tokens=4)\n    report a = mean(score), b = mean(other.length)\n",
        folder,
    )
    assert seen.table("rollout").tokens != seen.table("other").tokens


def test_steps_sample_other_answers_to_the_same_prompts(folder: Path) -> None:
    first, second = run_text(HEAD.replace("batch=5", "batch=10") + ROLL + "    report a = mean(score)\n", folder, 2)
    places = [[row[2] for row in seen.sampled[0].ids] for seen in (first, second)]
    assert places[0] == places[1]
    assert first.sampled[0].tokens != second.sampled[0].tokens


@pytest.mark.parametrize(
    ("first", "settings"),
    few(
        ((first, settings) for first in (1, 2, 5) for settings in ({}, {"block": 1}, {"block": 2}, {"threads": 2})),
        (1, {"block": 2}),
        (2, {}),
        (2, {"block": 1}),
        (5, {"threads": 2}),
    ),
    ids=str,
)
def test_samples_that_end_first(folder: Path, first: int, settings: dict[str, int]) -> None:
    """The rows that are kept are those of sampling all, with their tokens; with one of each they are the prompts'."""
    lines = "    report score = mean(score), rows = size(score), each = max(size(score, by=prompts))\n"
    head = HEAD + ROLL.replace("n=2", "n=6")
    whole, seen = step(lines, folder, head), step(lines, folder, head.replace("n=6", f"n=6, first={first}"), **settings)
    lengths = {row: sum(scored) for row, scored in zip(whole.sampled[0].ids, whole.sampled[0].scored, strict=True)}
    tokens = dict(zip(whole.sampled[0].ids, whole.sampled[0].tokens, strict=True))
    kept = []
    for prompt in range(5):
        group = [row for row in whole.sampled[0].ids if row[2] == prompt]
        kept += sorted(sorted(group, key=lambda row: (lengths[row], row[3]))[:first])
    ids = [row[:3] for row in kept] if first == 1 else kept
    assert [row for table in seen.sampled for row in table.ids] == ids
    assert [row for table in seen.sampled for row in table.tokens] == [tokens[row] for row in kept]
    assert seen.metrics["rows"] == 5 * first and seen.metrics["each"] == first
    assert seen.metrics["rollout.kept.length"] == sum(lengths[row] for row in kept) / len(kept)
    ends = [max(lengths[row] for row in kept[at : at + first]) for at in range(0, len(kept), first)]
    assert seen.metrics["rollout.dropped.length"] == sum(ends) / 5


def test_what_is_dropped_in_a_loop_is_about_all_its_rows(folder: Path) -> None:
    """Rows that `keep` leaves out are in no metric of a `collect`."""
    lines = """
step:
    collect prompts(4):
        rollout = actor.generate(prompts, n=4, first=2, max_tokens=4)
        keep prompts where prompts.place % 3 == 1
    report length = mean(rollout.length), longest = mean(max(rollout.length, by=prompts))
"""
    (seen,) = run_text(HEAD + lines, folder)
    assert len(seen.sampled) > 1
    assert seen.metrics["rollout.kept.length"] == seen.metrics["length"]
    assert seen.metrics["rollout.dropped.length"] == seen.metrics["longest"]


def test_min_tokens_and_stop(folder: Path) -> None:
    head = HEAD + ROLL.replace("max_tokens=4", 'max_tokens=5, min_tokens=2, stop="d"')
    table = step("    report a = mean(score), done = mean(rollout.finished)\n", folder, head).sampled[0]
    ends = set()
    for tokens, scored in zip(table.tokens, table.scored, strict=True):
        answer = [t for t, s in zip(tokens, scored, strict=True) if s]
        assert len(answer) >= 3 or len(answer) == 5, "two tokens before the end"
        assert not {1, 6} & set(answer[:-1]), "nothing behind an end"
        ends.add(answer[-1])
    assert 6 in ends


def test_nothing_is_asked_for_and_nothing_is_written(folder: Path) -> None:
    head = HEAD + ROLL.replace("max_tokens=4", "max_tokens=1")
    lines = (
        TRAIN
        + "    report length = sum(rollout.length), lp = mean(rollout.logprobs), finished = count(rollout.finished)\n"
    )
    for block in (None, 3):
        [seen] = Run(without_answers(compile_text(head + lines)), folder, block=block).steps(1)
        assert seen.metrics == {"length": 0, "lp": 0, "finished": 0}


# Episodes


AGENT = (
    "algorithm t\n"
    + MODEL
    + """data tasks = jsonl("tasks.jsonl", batch=6, shuffle=false)
env shell = python("envs.py:Shell")

step:
    episode = actor.interact(shell, tasks, n=2, max_turns=TURNS, max_tokens=MOST, temperature=TEMP)
    gap = actor.logprobs(episode, temperature=1.0) - episode.logprobs
    report gap = max(abs(gap)), reward = sum(sum(episode.reward, turn)), turns = sum(episode.turns), length = sum(episode.length), finished = count(episode.finished)
"""
)


class Hand:
    """An episode played by hand against the same environment: tokens only, and one forward pass for each of them."""

    def __init__(self, net: Any, row: dict[str, Any], shell: Any, turns: int, most: int) -> None:
        letters = "abcd>"
        self.tokens = [3 + letters.index(c) for c in row["prompt"]]
        self.scored = [False] * len(self.tokens)
        start, self.rewards, self.finished = len(self.tokens), [], False
        self.read(shell.reset(row))
        for turn in range(turns):
            action: list[int] = []
            while len(self.tokens) - start < most and (not action or action[-1] != 1):
                logits = net(input_ids=torch.tensor([self.tokens])).logits[0, -1]
                action.append(int(logits.argmax()))
                self.tokens.append(action[-1])
                self.scored.append(True)
            if not action:
                break
            said = "".join(letters[t - 3] for t in action if t > 2)
            observation, reward, self.finished = shell.step(said)
            self.rewards.append(reward)
            if self.finished or turn + 1 == turns:
                break
            if len(self.tokens) - start + len(observation) >= most:
                break  # What is cut off could not be answered; the environment has not ended it.
            self.read(observation)

    def read(self, text: str) -> None:
        self.tokens += [3 + "abcd>".index(c) for c in text]
        self.scored += [False] * len(text)


@pytest.mark.parametrize(
    ("turns", "most"), few([(4, 14), (4, 12), (4, 6), (2, 30), (1, 3), (5, 1)], (4, 12), (2, 30), (5, 1))
)
def test_episodes_are_those_played_by_hand(folder: Path, turns: int, most: int) -> None:
    text = AGENT.replace("TURNS", str(turns)).replace("MOST", str(most)).replace("TEMP", "0")
    # A model whose greedy actions end: there are second and third turns, and observations that fill the room exactly.
    run = Run(compile_text(text.replace(weights(), weights(15))), folder)
    net = run.models["actor"]
    (seen,) = run.steps(1)
    space: dict[str, Any] = {}
    exec(ENVS, space)
    table = seen.table("episode")
    ends = list(table.columns["turns"].tolist())
    rewards = [part.tolist() for part in table.columns["reward"].split(ends)]
    for at in range(len(table.tokens)):
        hand = Hand(net, dict(table.data[at]), space["Shell"](), turns, most)
        assert table.tokens[at] == hand.tokens
        assert table.scored[at] == hand.scored
        assert rewards[at] == hand.rewards
        assert bool(table.columns["finished"][at]) == hand.finished
    assert seen.metrics["turns"] == sum(ends)
    assert most < 6 or turns < 4 or max(ends) == 3


@pytest.mark.parametrize("block", few([None, 1, 4], 4))
def test_tokens_in_are_tokens_out(folder: Path, block: int | None) -> None:
    """What the model wrote is scored as it wrote it, not as its text would be encoded again: the gap is 0."""
    text = AGENT.replace("TURNS", "4").replace("MOST", "14").replace("TEMP", "1.0")
    run = Run(compile_text(text), folder, block=block)
    (seen,) = run.steps(1)
    assert seen.metrics["gap"] < 1e-12
    tables = [table for table in seen.sampled if table.name == "episode"]
    flags = [flag for table in tables for row in table.scored for flag in row]
    assert seen.metrics["length"] == sum(flags) < len(flags), "the environment's tokens carry no loss"
    assert seen.metrics == pytest.approx(run_text(text, folder)[0].metrics, abs=1e-11)
    unknown = [token for table in tables for row in table.tokens for token in row if token in (0, 1, 2)]
    assert unknown, "special tokens, which no text holds, are in the rows"


@pytest.mark.parametrize("span", ["token", "turn"])
def test_episodes_go_on_with_newer_weights(folder: Path, span: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two tokens, or between two turns only: each token is of the version that it says."""
    text = AGENT.replace("step:", f"step async(staleness=2, span={span}):")
    most = "20" if span == "token" else "20, turn_tokens=4"
    run = Run(compile_text(text.replace("TURNS", "4").replace("MOST", most).replace("TEMP", "1.0")), folder)
    engine: Any = run.backend.session.models["actor"].engine
    states = [{name: tensor * scale for name, tensor in engine.state().items()} for scale in (1.0, 0.9, 0.8)]
    # Within the turns of an episode it asks for each token, or for each turn of all rows.
    coming = Coming(lambda version: engine.load_weights(states[version]), after=(3, 8) if span == "token" else (1, 2))
    frame = run.backend.new_frame
    monkeypatch.setattr(run.backend, "new_frame", lambda *step: replace(frame(*step), refresh=coming))
    tables: list[TableData] = []
    run.also = lambda node, frame: tables.append(frame.values[node.name]) if node.op == "interact" else None
    run.steps(1)
    [table] = tables
    assert table.sequences is not None
    logprobs, versions = table.columns["logprobs"], table.columns["version"]
    assert set(versions.tolist()) == {0, 1, 2}
    for version, state in enumerate(states):
        engine.load_weights(state)
        mine = versions == version
        with torch.no_grad():
            torch.testing.assert_close(logprobs[mine], engine.logprobs(table.sequences)[mine], rtol=0, atol=1e-12)
    # What stands between two actions is the environment's.
    turns = (table.sequences.scored.int().diff(prepend=torch.zeros(1)) == 1).cumsum(0)[table.sequences.scored]
    kept = [len(set(versions[turns == turn].tolist())) for turn in turns.unique().tolist()]
    assert (max(kept) > 1) == (span == "token")


def test_the_frame_that_a_watcher_sees_is_whole(folder: Path) -> None:
    sizes: list[tuple[int, int]] = []

    def note(node: Node, frame: Frame) -> None:
        if node.op == "interact":
            table = frame.values["episode"]
            sizes.append((frame.row_count("episode.turn"), int(table.columns["turns"].sum())))

    run = Run(compile_text(AGENT.replace("TURNS", "3").replace("MOST", "12").replace("TEMP", "1.0")), folder)
    run.also = note
    run.steps(1)
    assert len(sizes) == 1 and sizes[0][0] == sizes[0][1]
