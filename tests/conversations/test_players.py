"""Episodes in which several players speak: each has its own tokens and turns, of its own model."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from scheduled import apart, compiled, debug_metrics, together, traced
from tiny import Run, Seen, compile_text, weights

import rlgraph
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.ray.backend import RayBackend
from rlgraph.backends.recording import claim_folder
from rlgraph.backends.rows import TableData
from rlgraph.backends.worker.session import Settings
from rlgraph.errors import ProgramError
from rlgraph.explain.simulate import simulate
from tests.conversations.files import user
from tests.conversations.test_turns import OWN, SHAPE, codec

EXAMPLE = Path(__file__).parents[2] / "examples" / "self_play"
NIM = '''
class Nim:
    """Take 1 to 3 of what is left in turns; who takes the last one loses."""

    def __init__(self, left=7):
        self.left = left

    def reset(self, row):
        self.players = ["white", "black"] if row.get("first") != "black" else ["black", "white"]
        return self.players[0], TOLD

    def step(self, action):
        acting, other = self.players
        self.left -= max(1, min(3, len(action)))
        self.players.reverse()
        over = self.left <= 0
        return other, ANSWER, {acting: -1.0, other: 1.0} if over else len(action) / 8, over
'''
ROWS = [{"prompt": "ab"}, {"prompt": "c", "first": "black"}, {"prompt": "dab", "black": "cc"}]
PROGRAM = f"""algorithm t
model actor = causal_lm({weights()}, dtype="float64")
model rival = causal_lm({weights(1)}, dtype="float64")
data rows = jsonl("rows.jsonl", batch=3, shuffle=false)
env game = python("game.py:Nim")
step:
    games = interact(game, rows, white=actor, black=BLACK, n=4, max_turns=8, max_tokens=30, turn_tokens=4)
    white = sum(games.white.reward, turn)
    black = sum(games.black.reward, turn)
    off   = max(abs(BLACK.logprobs(games.black) - games.black.logprobs), token)
    report off = max(off * (games.black.turns > 0)), white = mean(white), black = mean(black)
    report turns = mean(games.white.turns), others = mean(games.black.turns), finished = mean(games.finished)
    train actor(lr=0.01, eps=0.01):
        minimize mean(-actor.logprobs(games.white) * center(white, rows))
    train BLACK(lr=0.01, eps=0.01):
        minimize mean(-BLACK.logprobs(games.black) * center(black, rows))
    report after = mean(actor.logprobs(games.black)), chance = mean(games.black.logprobs)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return with_game(tmp_path)


def with_game(folder: Path, told: str = '"a>"', answer: str = 'action[:2] + ">"', rows: Any = ROWS) -> Path:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    (folder / "game.py").write_text(NIM.replace("TOLD", told).replace("ANSWER", answer), "utf-8")
    return folder


def play(folder: Path, steps: int = 1, black: str = "rival", **settings: Any) -> list[Seen]:
    return Run(compile_text(PROGRAM.replace("BLACK", black)), folder, **settings).steps(steps)


def tables(seen: Seen) -> tuple[TableData, TableData]:
    return seen.values["games"], seen.values["games.black"]


def test_each_player_has_its_own_tokens(folder: Path) -> None:
    """The environment is played again by hand from what was sampled: its rules give each player's row."""
    run = Run(compile_text(PROGRAM.replace("BLACK", "rival")), folder)
    [seen] = run.steps(1)
    code = run.backend.session.models["actor"].engine.codec
    parts = dict(zip(("white", "black"), tables(seen), strict=True))
    sampled = {name: [list(row) for row in _actions(table)] for name, table in parts.items()}
    for place in range(12):
        row = ROWS[place // 4]
        players = ["black", "white"] if row.get("first") == "black" else ["white", "black"]
        left, told, over = 7, "a>", False
        rows = {name: code.encode_prompt(row.get(name, row["prompt"])) for name in players}
        rewards: dict[str, list[float]] = {name: [] for name in players}
        while not over and sum(map(len, rewards.values())) < 8:
            acting, other = players
            if len(rows[acting]) + len(code.encode_text(told)) >= 30 + len(code.encode_prompt(row["prompt"])):
                break
            action = sampled[acting][place].pop(0)
            rows[acting] += [*code.encode_text(told), *action]
            text = code.decode(action)
            left, told, over = left - max(1, min(3, len(text))), text[:2] + ">", False
            over = left <= 0
            rewards[acting].append(-1.0 if over else len(text) / 8)
            if over and rewards[other]:
                rewards[other][-1] += 1.0
            players.reverse()
        for name, table in parts.items():
            turns = table.columns["turns"].tolist()
            start = sum(turns[:place])
            assert table.columns["reward"].tolist()[start : start + turns[place]] == rewards[name]
            assert table.sequences is not None and table.sequences.rows()[place] == rows[name]
            assert bool(table.columns["finished"][place]) == over
    assert not any(action for table in sampled.values() for action in table)
    # The other player's log-probabilities are of its own model: here in another process of thought, the same number.
    assert seen.metrics["off"] < 1e-12 and seen.metrics["others"] > 0


def _actions(table: TableData) -> list[list[list[int]]]:
    """The actions of each row, turn by turn: runs of tokens with loss."""
    assert table.sequences is not None
    found: list[list[list[int]]] = []
    for row, scored in zip(table.sequences.rows(), table.sequences.scored_by_row(), strict=True):
        actions: list[list[int]] = []
        for place, (token, mine) in enumerate(zip(row, scored, strict=True)):
            if mine and not (place and scored[place - 1]):
                actions.append([])
            if mine:
                actions[-1].append(token)
        found.append(actions)
    return found


@pytest.mark.parametrize("black", ["rival", "actor"])
def test_any_block_and_plan_comes_to_the_same(folder: Path, black: str) -> None:
    text = PROGRAM.replace("BLACK", black)
    whole = play(folder, 3, black)
    for settings in ({"block": 1}, {"micro_rows": 3}):
        for seen, expected in zip(play(folder, 3, black, **settings), whole, strict=True):
            assert seen.metrics == pytest.approx(expected.metrics, rel=1e-9)
            torch.testing.assert_close(seen.weights, expected.weights, atol=1e-9, rtol=0)
    for schedule in (together, apart):
        made = compiled(text, {}, schedule(compile_text(text)), folder)
        for metrics, expected in zip(debug_metrics(made, folder, 3), whole, strict=True):
            assert metrics == pytest.approx(expected.metrics, rel=1e-9)


ALONE = """algorithm t
model actor = causal_lm({weights}, dtype="float64")
data rows = jsonl("rows.jsonl", batch=3, shuffle=false)
env game = python("game.py:{name}")
step:
    games = {call}, n=4, max_turns=4, max_tokens=20, turn_tokens=4)
    train actor(lr=0.01, eps=0.01):
        minimize mean(-actor.logprobs(games) * center(sum(games.reward, turn), rows))
"""
BOTH = """
class Shell:
    def reset(self, row):
        return row["prompt"] + ">"

    def step(self, action):
        return action[:2] + ">", len(action) / 3, "d" in action

class OnePlayer(Shell):
    def reset(self, row):
        return "white", super().reset(row)

    def step(self, action):
        return ("white", *super().step(action))
"""


def test_one_player_is_what_an_environment_answers(tmp_path: Path) -> None:
    """Token by token, and so are the weights after a step."""
    with_game(tmp_path)
    (tmp_path / "game.py").write_text(BOTH, "utf-8")
    calls = {"Shell": "actor.interact(game, rows", "OnePlayer": "interact(game, rows, white=actor"}
    plain, players = (
        Run(compile_text(ALONE.format(weights=weights(), name=name, call=call)), tmp_path).steps(1)[0]
        for name, call in calls.items()
    )
    one, other = (seen.values["games"] for seen in (plain, players))
    assert isinstance(one.sequences, Sequences) and one.sequences.rows() == other.sequences.rows()
    for name in ("logprobs", "reward", "turns", "version"):
        assert torch.equal(one.columns[name], other.columns[name])
    torch.testing.assert_close(plain.weights, players.weights, atol=0, rtol=0)


def test_what_others_say_is_a_turn_of_the_user_by_each_template(tmp_path: Path) -> None:
    """Each player reads the other through its own model's template; None is what was said since it was told."""
    rows = [{"prompt": [user("Play.")], "black": [{"role": "system", "content": "Win."}]}]
    with_game(tmp_path, told="None", answer="None", rows=rows)
    codec(OWN).save(tmp_path / "one")
    codec(OWN.replace("'<' + m.role + '>'", "'[' + m.role + ']'").replace("<assistant>", "[assistant]")).save(
        tmp_path / "two"
    )
    shape = f'{SHAPE}, max_position_embeddings=2048, tokenizer="'
    text = f"""algorithm t
model actor = causal_lm(random("qwen2", {shape}one"))
model rival = causal_lm(random("qwen2", seed=1, {shape}two"))
data rows = jsonl("rows.jsonl", batch=1)
env game = python("game.py:Nim", left=9)
step:
    games = interact(game, rows, white=actor, black=rival, n=2, max_turns=4, max_tokens=900, turn_tokens=5)
    report n = mean(games.black.turns), text = mean(games.black.length)
"""
    run = Run(compile_text(text), tmp_path)
    [seen] = run.steps(1)
    white, black = tables(seen)
    for place in range(2):
        texts = []
        for name, table in (("actor", white), ("rival", black)):
            code = run.backend.session.models[name].engine.codec
            said = [code.decode(action) for action in _actions(table)[place]]
            assert table.sequences is not None
            texts.append((said, str(code.tokenizer.decode(table.sequences.rows()[place]))))
        (ours, white_text), (theirs, black_text) = texts
        assert white_text.startswith(f"<user>Play.<eos>\n<assistant>{ours[0]}") and len(ours) == 2
        assert f"<user>{theirs[0]}<eos>\n<assistant>{ours[1]}" in white_text
        assert black_text.startswith(f"[system]Win.<eos>\n[user]{ours[0]}<eos>\n[assistant]{theirs[0]}")


def test_a_recording_plays_again(folder: Path) -> None:
    program = compile_text(PROGRAM.replace("BLACK", "rival"))
    kept = folder / "kept"
    with claim_folder(kept, "t", 0):
        first = Run(program, folder, record=kept).steps(2)
    again = Run(program, folder, replay=kept).steps(2)
    assert [seen.metrics for seen in again] == [pytest.approx(seen.metrics, rel=1e-12) for seen in first]


def test_rows_are_kept_with_all_their_players(folder: Path) -> None:
    """A `keep` of episodes keeps what each player said in them; functions see a player's own words."""
    (folder / "f.py").write_text("def letters(completions):\n    return [len(text) for text in completions]\n", "utf-8")
    text = f"""algorithm t
model actor = causal_lm({weights()}, dtype="float64")
data rows = jsonl("rows.jsonl", batch=3, shuffle=false)
env game = python("game.py:Nim")
func letters = python("f.py:letters")
step:
    games = interact(game, rows, white=actor, black=actor, n=4, max_turns=8, max_tokens=30, turn_tokens=4)
    told  = letters(games.black)
    won   = sum(games.white.reward, turn) > sum(games.black.reward, turn)
    all   = sum(games.black.length * won)
    count = sum(told * won)
    keep games where won
    report all = all, kept = sum(games.black.length), count = count, told = sum(letters(games.black))
"""
    metrics = Run(compile_text(text), folder).steps(1)[0].metrics
    assert metrics["kept"] == metrics["all"] > 0 and metrics["count"] == metrics["told"] > 0


@pytest.mark.parametrize(
    ("told", "answer", "said"),
    [
        ('"a"', '"b"), ("c"', "5 values from `step`"),
        ('"a"); return ("red", "a"', '"b"', "a player"),
    ],
)
def test_an_environment_that_names_nobody_is_told(folder: Path, told: str, answer: str, said: str) -> None:
    with_game(folder)
    text = (folder / "game.py").read_text("utf-8")
    if said == "a player":
        text = text.replace("return other,", 'return "red",')
    else:
        text = text.replace("return other,", "return 1, other,")
    (folder / "game.py").write_text(text, "utf-8")
    with pytest.raises(ProgramError, match=said) as caught:
        play(folder)
    [problem] = caught.value.diagnostics
    assert said != "a player" or "the players are 'white', 'black'" in problem.hint


def test_players_in_different_processes_are_refused(folder: Path) -> None:
    text = PROGRAM.replace("BLACK", "rival")
    schedule = (
        "pool left = 1 devices\npool right = 1 devices\n"
        "place actor on left(engine=transformers)\nplace rival on right(engine=transformers)\n"
    )
    with pytest.raises(ProgramError) as caught:
        compiled(text, {}, schedule, folder).plan  # noqa: B018
    [problem] = caught.value.diagnostics
    assert (
        problem.code == "E0839"
        and problem.span.line == 5
        and "place actor.interact, rival.interact on left" in problem.hint
    )


@pytest.mark.parametrize("cluster", ["1x8:h100-80gb", "1x2:a100-40gb"])
def test_a_search_keeps_players_together(cluster: str) -> None:
    made = rlgraph.compile(EXAMPLE / "self_play.rlf", cluster=cluster)
    roles = {(role.model, role.operation): role.group for role in made.plan.roles}
    assert roles["actor", "interact"] == roles["first", "interact"]


def test_players_that_nothing_places_follow_the_one_that_a_line_places(folder: Path) -> None:
    schedule = "pool left = 1 devices\npool right = 1 devices\nplace rival.interact on right(engine=transformers)\n"
    made = compiled(PROGRAM.replace("BLACK", "rival"), {}, schedule, folder)
    roles = {(role.model, role.operation): role.group for role in made.plan.roles}
    assert roles["actor", "interact"] == roles["rival", "interact"] == "right.transformers"


def test_players_that_sleep_are_awake_while_they_play(folder: Path) -> None:
    text = PROGRAM.replace("BLACK", "rival")
    made = compiled(text, {}, together(compile_text(text)).replace("s)\n", "s, sleep=true)\n"), folder)
    assert [holding.offload for holding in made.plan.holdings] == [True, True]
    assert debug_metrics(made, folder, 2) == [seen.metrics for seen in play(folder, 2)]


def test_one_model_may_play_all_where_steps_overlap(folder: Path, tmp_path: Path) -> None:
    """Its rows are of known versions, and each that is trained on was sampled."""
    text = PROGRAM.replace("BLACK", "actor").replace("step:", "step async(staleness=1):")
    made = compiled(text, {}, apart(compile_text(text)), folder)
    with closing(RayBackend(made.program, made.plan, Settings(folder=folder), debug=True)) as backend:
        checked = traced(made, list(backend.run_steps(2)), tmp_path / "run")
    assert checked.accepted and checked.trained and checked.sampled


def test_a_simulated_step_counts_every_player(folder: Path) -> None:
    """Each further player of a model takes as long."""
    text = PROGRAM.replace("BLACK", "actor")
    seconds = []
    for players in ("black=actor", "black=actor, red=actor"):
        made = compiled(text.replace("black=actor", players), {}, together(compile_text(text)), folder)
        [played] = {work.parts["other players"] for work in simulate(made).works if work.op == "interact"}
        seconds.append(played)
    assert 0 < seconds[0] < seconds[1] == pytest.approx(2 * seconds[0])


def test_the_example_plays(tmp_path: Path) -> None:
    for file in EXAMPLE.iterdir():
        if file.is_file():
            (tmp_path / file.name).write_text(file.read_text("utf-8"), "utf-8")
    text = (EXAMPLE / "self_play.rlf").read_text("utf-8").replace("n=32", "n=2").replace("every 10", "every 2")
    seen = Run(compile_text(text), tmp_path).steps(2)[1].metrics
    assert {"begins", "answers", "white"} <= set(seen) and seen["turns"] >= 1
