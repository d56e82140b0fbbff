"""All lines of an agent's episodes are rows in them, and each answer is learned from once."""

from __future__ import annotations

import importlib.util
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from scheduled import apart, assert_goes_on_bit_for_bit, compiled, debug_metrics, together, traced
from tiny import EPS, Run, Seen, compile_text

from rlgraph.backends.engines.tokenizers import ByteTokenizer, build_tokenizer
from rlgraph.backends.ray.backend import RayBackend
from rlgraph.backends.recording import claim_folder
from rlgraph.backends.rows import TableData
from rlgraph.backends.worker.session import Settings
from rlgraph.explain.simulate import simulate
from rlgraph.ir.text.parse import parse_program
from rlgraph.ir.text.program_text import program_text
from tests.conversations.branching import INTERACT, OPENAI, PLAIN, TURNS, program


def play(folder: Path, steps: int = 1, text: str = "", **settings: Any) -> list[Seen]:
    return Run(compile_text(text or program(folder)), folder, **settings).steps(steps)


def actions(table: TableData) -> list[list[list[int]]]:
    """The sampled tokens of each turn of each row."""
    assert table.sequences is not None
    tokens = iter(token for row in table.sequences.scored_tokens_by_row() for token in row)
    counts, turns = iter(table.columns["_turn_tokens"].tolist()), table.columns["turns"].tolist()
    return [[[next(tokens) for _ in range(next(counts))] for _ in range(count)] for count in turns]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A step with OpenAI's own client, where it is installed: `run.now` has what it did."""
    folder = tmp_path_factory.mktemp("branches")
    client = OPENAI if importlib.util.find_spec("openai") else PLAIN
    run = Run(compile_text(program(folder, client=client)), folder)
    [seen] = run.steps(1)
    run.now = seen
    return run


def test_all_lines_are_rows_in_their_episode(run: Run) -> None:
    """In the order in which they begin; tokens and log-probabilities are those that the client was told."""
    seen, lines, episodes = run.now, run.now.values["episode.branch"], run.now.table("episode")
    wanted = [turns for turns in TURNS.values() for _ in range(2)]
    assert lines.columns["turns"].tolist() == [count for turns in wanted for count in turns]
    assert [row["does"] for row in lines.data] == [
        name for name, turns in TURNS.items() for _ in range(2) for _ in turns
    ]
    assert seen.metrics["off"] < 1e-5 and seen.metrics["same"] < 1e-5 and seen.metrics["told"] == 0
    assert seen.metrics["turns"] == seen.metrics["requests"] == 32 and seen.metrics["lines"] == 20
    # Of an episode without lines the mean is 0.
    assert seen.metrics["shares"] == pytest.approx((2 + 1.5 + 2 + 4 / 3 + 1.5 + 0) / 6)
    by_line, place = actions(lines), 0
    for turns, total in zip(wanted, episodes.columns["total"].tolist(), strict=True):
        of_episode = by_line[place : place + len(turns)]
        place += len(turns)
        assert total == sum(sum(at * token for at, token in enumerate(ids, 1)) for line in of_episode for ids in line)
    # The table of episodes has the line of the last answer, whole.
    assert [sum(flags) > 0 for flags in episodes.scored] == [True] * 10 + [False] * 2
    assert episodes.columns["turns"].tolist() == [2] * 10 + [0] * 2


def test_a_turn_that_two_lines_have_carries_loss_in_the_first(run: Run) -> None:
    lines = run.now.values["episode.branch"]
    code, rows = build_tokenizer(ByteTokenizer()), lines.sequences.rows()
    first = next(place for place, row in enumerate(lines.data) if row["does"] == "retry")
    _, kept, other = (list(zip(rows[at], flags, strict=True)) for at, flags in _three(lines, first))
    begins = len("<user>a") + 1 + len("<assistant>")
    shared = next(place for place, (one, two) in enumerate(zip(kept, other, strict=False)) if one[0] != two[0])
    assert [own for _, own in kept[:shared]].count(True) == 6 and kept[begins][1]
    assert not any(own for _, own in other[:shared]) and sum(own for _, own in other) == 6
    said = str(code.decode([token for token, own in other if not own]))
    assert said.endswith("<user>bad?<eos><assistant>") and said.startswith("<user>a<eos><assistant>")


def _three(lines: TableData, first: int) -> list[tuple[int, list[bool]]]:
    assert lines.sequences is not None
    return [(at, lines.sequences.scored_by_row()[at]) for at in range(first, first + 3)]


def test_the_loss_is_that_of_a_loop_over_the_lines(run: Run) -> None:
    """In float64: each line is read by itself, and its tokens have the advantage of its episode."""
    lines, reward = run.now.values["episode.branch"], run.now.table("episode").columns["reward"].tolist()
    turns = run.now.table("episode").columns["turns"].tolist()
    net = run.models["actor"]
    net.load_state_dict(run.initial["actor"])
    gains = [sum(reward[end - count : end]) for count, end in zip(turns, _ends(turns), strict=True)]
    advantages = [gain - (gains[2 * (at // 2)] + gains[2 * (at // 2) + 1]) / 2 for at, gain in enumerate(gains)]
    owners = [2 * kind + sample for kind, of_line in enumerate(TURNS.values()) for sample in (0, 1) for _ in of_line]
    total, count = 0.0, 0
    for row, flags, owner in zip(lines.sequences.rows(), lines.sequences.scored_by_row(), owners, strict=True):
        with torch.no_grad():
            chances = net(torch.tensor([row])).logits[0].double().log_softmax(-1)
        for place, own in enumerate(flags):
            if own:
                total -= float(chances[place - 1, row[place]]) * advantages[owner]
                count += 1
    assert abs(total) > 1 and run.now.losses["actor"][0][0] == pytest.approx(total / count, abs=1e-9)


def _ends(counts: list[int]) -> list[int]:
    return [sum(counts[: at + 1]) for at in range(len(counts))]


CLIPPED = f"""{INTERACT}    gain = sum(episode.reward, turn)
    adv  = gain - mean(gain, by=rows)
    train actor(lr=0.01, eps={EPS}):
        ratio = exp(actor.logprobs(LINES) - LINES.logprobs)
        minimize mean(-min(ratio * adv, clip(ratio, 0.8, 1.2) * adv))
    report gain = mean(gain), turns = mean(mean(LINES.turns, by=episode)), length = mean(LINES.length)
"""


def test_one_line_is_learned_from_as_without_branches(tmp_path: Path) -> None:
    """Bit for bit."""
    plain, kept = (
        play(tmp_path, 2, program(tmp_path, ["single"] * 2, CLIPPED.replace("LINES", table), branches))
        for table, branches in (("episode", "refuse"), ("episode.branch", "all"))
    )
    for one, other in zip(plain, kept, strict=True):
        assert one.metrics == other.metrics and one.losses == other.losses
        torch.testing.assert_close(one.weights, other.weights, atol=0, rtol=0)


def test_any_block_and_plan_comes_to_the_same(tmp_path: Path) -> None:
    whole, text = play(tmp_path), program(tmp_path)
    for settings in ({"block": 1}, {"micro_rows": 3}):
        for seen, expected in zip(play(tmp_path, **settings), whole, strict=True):
            assert seen.metrics == pytest.approx(expected.metrics, rel=1e-9, abs=1e-9)
            torch.testing.assert_close(seen.weights, expected.weights, atol=1e-9, rtol=0)
    halves = "pool all = 2 devices\nplace actor, ref on all(dp=2, engine=transformers)\n"
    for schedule in (apart(compile_text(text)), halves):
        made = compiled(text, {}, schedule, tmp_path)
        for metrics, expected in zip(debug_metrics(made, tmp_path, 1), whole, strict=True):
            assert metrics == pytest.approx(expected.metrics, rel=1e-9, abs=1e-9)


def test_a_recording_plays_again(tmp_path: Path) -> None:
    with claim_folder(tmp_path / "kept", "t", 0):
        first = play(tmp_path, 2, record=tmp_path / "kept")
    again = play(tmp_path, 2, replay=tmp_path / "kept")
    assert [seen.metrics for seen in again] == [seen.metrics for seen in first]


@pytest.mark.long
def test_a_run_that_is_resumed_goes_on_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert_goes_on_bit_for_bit(program(tmp_path), "actor", 2)


COLLECTED = f"""    collect rows(6, ahead=1.5, rest=carry):
    {INTERACT}        keep rows where max(sum(episode.reward, turn), by=rows) > 0
    lines = episode.branch
    train actor(lr=0.01, eps={EPS}):
        weight = min(exp(actor.logprobs(lines) - lines.logprobs), 5.0)
        minimize mean(-weight * center(sum(episode.reward, turn), rows))
"""


@pytest.mark.parametrize("step", ["async(staleness=1)", "async(lag=1), collected"])
def test_each_line_is_trained_on_once_where_steps_overlap(step: str, tmp_path: Path) -> None:
    """By the trace, in which a line that is left out is seen, and one that is trained on twice."""
    word, _, collects = step.partition(", ")
    text = program(tmp_path, body=COLLECTED) if collects else program(tmp_path)
    text = text.replace("step:", f"step {word}:").replace("model ref = frozen(actor)\n" if collects else "\0", "")
    made = compiled(text, {}, apart(compile_text(text)), tmp_path)
    with closing(RayBackend(made.program, made.plan, Settings(folder=tmp_path), debug=True)) as backend:
        steps = list(backend.run_steps(2))
    checked = traced(made, steps, tmp_path / "run")
    assert checked.accepted and checked.trained > 20
    assert steps[-1].trace is not None
    [trained] = steps[-1].trace["trained"]
    whole = list(trained["rows"])
    for place, (rows, said) in enumerate(((whole[:-1], ""), ([*whole, whole[0]], "trained on 2 times"))):
        trained["rows"] = rows
        again = traced(made, steps, tmp_path / f"run{place}")
        # The last line of all may have been left over by a `collect`.
        assert not again.accepted or (collects and not said)
        assert said in str(again.diagnostics)


CHOSEN = f"""{INTERACT}    lines = episode.branch
    gain  = sum(episode.reward, turn)
    old   = actor.logprobs(episode.branch)
    asked = letters(lines)
    all   = sum(lines.length * (gain > 1))
    keep episode where gain > 1
    more  = sum(episode.branch.length * (lines.turns > 1))
    report same = max(abs(old - actor.logprobs(episode.branch))), all = all - sum(episode.branch.length)
    keep lines where lines.turns > 1
    report more = more - sum(episode.branch.length), lines = size(lines.length), letters = mean(asked)
    minibatch episode(parts=2):
        train actor(lr=0.01, eps={EPS}):
            minimize mean(-actor.logprobs(episode.branch) * discount(lines.reward, 0.9))
"""


def test_lines_are_kept_and_sliced_with_their_episodes(tmp_path: Path) -> None:
    """`keep episode` keeps their lines, `keep lines` some of these, and `episode.branch` is what is left."""
    (tmp_path / "f.py").write_text(
        "def letters(completions, **more):\n    return list(map(len, completions))\n", "utf-8"
    )
    text = program(tmp_path, body=CHOSEN, more='func letters = python("f.py:letters")\n')
    [seen] = play(tmp_path, text=text.replace("model ref = frozen(actor)\n", ""))
    assert (seen.metrics["same"], seen.metrics["all"], seen.metrics["more"]) == (0, 0, 0)
    assert seen.metrics["lines"] > 3 and len(seen.losses["actor"]) == 2 and seen.metrics["letters"] > 1


PLAYED = f"""    games  = interact(bot, rows, one=actor, two=rival, n=2, max_turns=8, max_tokens=400)
    mine   = games.branch
    theirs = games.two.branch
    gain   = sum(games.reward, turn)
    off    = max(max(abs(rival.logprobs(theirs) - theirs.logprobs), token))
    told   = sum(where(mine.tokens >= 0, 1, 0), by=games) + sum(where(theirs.tokens >= 0, 1, 0), by=games)
    report off = off, told = max(abs(told - games.made)), requests = sum(games.requests)
    report turns = sum(mine.turns), others = sum(theirs.turns)
    train rival(lr=0.01, eps={EPS}):
        minimize mean(-rival.logprobs(theirs) * center(gain, rows))
"""


def test_each_model_has_its_lines(tmp_path: Path) -> None:
    text = program(tmp_path, ["sub", "retry"], PLAYED)
    text = text.replace(
        "model ref = frozen(actor)",
        'model rival = causal_lm(random("qwen2", seed=2,' + text.split('"qwen2",')[1].split("model ref")[0].rstrip(),
    )
    [seen] = play(tmp_path, text=text)
    assert (seen.metrics["turns"], seen.metrics["others"], seen.metrics["requests"]) == (12, 2, 14)
    assert seen.metrics["told"] == 0 and seen.metrics["off"] < 1e-5


def test_a_program_with_branches_is_simulated_and_read_again(tmp_path: Path) -> None:
    """A simulation takes each episode to have one line."""
    text = program(tmp_path)
    made = compiled(text, {}, together(compile_text(text)), tmp_path)
    assert {work.rows for work in simulate(made).works if work.op in ("interact", "branch", "train")} == {12}
    assert program_text(parse_program(program_text(made.program))) == program_text(made.program)
