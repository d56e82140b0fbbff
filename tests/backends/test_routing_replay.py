"""`routing=replay` in programs: what is recorded and trained with, and where it cannot be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import Run, compile_text, without_answers
from torch import Tensor

import rlgraph
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.enginespec.registry import engine
from rlgraph.backends.frame import Frame
from rlgraph.errors import ProgramError, RunError
from rlgraph.ir.graph import Node
from rlgraph.passes.placement import routing_errors

MODEL = (
    'random("qwen3_moe", hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, '
    "num_key_value_heads=2, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, "
    "initializer_range=0.3, max_position_embeddings=64, "
    'tokenizer=words("red green blue"))'
)
PROGRAM = """
algorithm replayed

model actor  = causal_lm({model}, dtype="float32")
data prompts = jsonl("prompts.jsonl", batch=2)

step:
    rollout = actor.generate(prompts, n=2, max_tokens=6, routing={routing})
    train actor(lr=1e-2):
        minimize mean(-actor.logprobs(rollout) * rollout.length)
    report length = mean(rollout.length)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [json.dumps({"prompt": text}) + "\n" for text in ("red", "green blue", "blue blue red", "red green")]
    (tmp_path / "prompts.jsonl").write_text("".join(rows), "utf-8")
    return tmp_path


def written(folder: Path, routing: str = "replay", model: str = MODEL) -> Path:
    path = folder / f"{routing}.rlf"
    path.write_text(PROGRAM.format(model=model, routing=routing), "utf-8")
    return path


def metrics(program: Path, **options: object) -> list[dict[str, float]]:
    """What two steps report, without their seconds."""
    run = rlgraph.compile(program).run(2, progress=False, **options)  # type: ignore[arg-type]
    return [{name: value for name, value in step.items() if name != "seconds"} for step in run.metrics]


def test_the_first_step_is_that_without_replay_and_a_recording_has_the_experts(folder: Path) -> None:
    replayed = metrics(written(folder), record=folder / "kept")
    free = metrics(written(folder, "free"))
    assert replayed[0] == pytest.approx(free[0], abs=1e-5)
    assert metrics(written(folder), replay=folder / "kept") == [pytest.approx(step) for step in replayed]
    lines = [
        json.loads(line)
        for file in sorted((folder / "kept").glob("step-*.jsonl"))
        for line in file.open(encoding="utf-8")
    ]
    assert lines and all(line["routes"][:2] == [2, 2] for line in lines)


def test_a_recording_without_experts_is_refused(folder: Path) -> None:
    metrics(written(folder, "free"), record=folder / "kept")
    with pytest.raises(RunError) as caught:
        metrics(written(folder), replay=folder / "kept")
    assert [diagnostic.code for diagnostic in caught.value.diagnostics] == ["E0849"]


def test_a_dense_model_is_refused(folder: Path) -> None:
    """Where there is a plan before it is loaded."""
    dense = 'random("qwen2", hidden_size=32, num_attention_heads=4, num_key_value_heads=2, tokenizer=words("red green blue"))'
    program = written(folder, model=dense)
    with pytest.raises(RunError) as caught:
        metrics(program)
    assert [diagnostic.code for diagnostic in caught.value.diagnostics] == ["E0847"]
    schedule = folder / "s.rls"
    schedule.write_text("schedule replayed\npool a = 1 devices\nplace actor on a\n", "utf-8")
    with pytest.raises(ProgramError) as refused:
        rlgraph.compile(program, schedule=schedule)
    [diagnostic] = refused.value.diagnostics
    assert diagnostic.code == "E0847" and "routing" in diagnostic.hint


def test_rows_without_answers_need_no_experts(folder: Path) -> None:
    program = without_answers(compile_text(PROGRAM.format(model=MODEL, routing="replay")), longest=6)
    assert [seen.metrics["length"] for seen in Run(program, folder).steps(2)] == [0, 0]


def test_an_engine_that_cannot_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that ship can; one of another package may not."""
    without = replace(engine("vllm"), replays_routes=False)
    monkeypatch.setattr(routing_errors, "spec_of", lambda _: without)
    schedule = folder / "s.rls"
    schedule.write_text("schedule replayed\npool a = 1 devices\nplace actor.generate on a(engine=vllm)\n", "utf-8")
    with pytest.raises(ProgramError) as caught:
        rlgraph.compile(written(folder), schedule=schedule)
    assert "E0849" in {diagnostic.code for diagnostic in caught.value.diagnostics}


def test_vllm_samples_what_others_replay(folder: Path) -> None:
    made = rlgraph.compile(written(folder), cluster="1x8:h100-80gb")
    engines = {role.operation: made.plan.group(role.group).engine for role in made.plan.roles}
    assert engines["generate"] == "vllm" and engines["train"] in ("megatron", "transformers")


EPISODES = """
algorithm played

model actor  = causal_lm({model}, dtype="float32")
{rival}
data prompts = jsonl("prompts.jsonl", batch=2)
env game     = python("game.py:Game")

step:
    episode = {interact}, n=2, max_turns=3, max_tokens=30, turn_tokens=3, routing={routing})
    {said}
    train actor(lr=1e-2):
        minimize mean(-actor.logprobs(said) * said.length)
    report length = mean(said.length)
"""
GAME = """
class Game:
    def reset(self, row):
        self.turn = 0
        return "red green"

    def step(self, action):
        self.turn += 1
        return "blue " * self.turn, 1.0, False
"""
PLAYED = """
class Game:
    def reset(self, row):
        self.turn = 0
        return "a", "red green"

    def step(self, action):
        self.turn += 1
        return "ab"[self.turn % 2], "blue " * self.turn, 1.0, False
"""


def episodes(folder: Path, routing: str = "replay", rival: str = "") -> str:
    """A program that plays alone, or as the second player against a rival."""
    (folder / "game.py").write_text(PLAYED if rival else GAME, "utf-8")
    interact = "interact(game, prompts, a=rival, b=actor" if rival else "actor.interact(game, prompts"
    given = f'model rival = frozen(causal_lm({rival}, dtype="float32"))' if rival else ""
    said = "said = episode.b" if rival else "said = episode"
    return EPISODES.format(model=MODEL, rival=given, interact=interact, routing=routing, said=said)


def chosen(run: Run, model: str, rows: Sequences) -> Tensor:
    """The experts that a model's routers choose for rows, each read by itself."""
    network = run.backend.session.models[model].engine._network
    parts = []
    for row in rows.rows():
        with torch.no_grad(), network.routing.recording() as last:
            network.model(torch.tensor([row]))
            parts.append(last())
    return torch.cat(parts)


def known_routes(rows: Sequences) -> list[int]:
    """How many tokens of each row have experts; those behind them have none."""
    assert rows.routes is not None
    parts = [part[:, 0, 0] >= 0 for part in rows.routes.split(rows.lengths.tolist())]
    counts = [int(part.sum()) for part in parts]
    assert all(bool(part[:count].all()) for part, count in zip(parts, counts, strict=True))
    return counts


@pytest.mark.parametrize("rival", ["", MODEL.replace("num_experts=4", "num_experts=8")])
def test_an_episode_has_the_experts_of_all_that_was_read(folder: Path, rival: str) -> None:
    """Observations, too, in the order of its tokens: up to the last token that was sampled, which nobody has read."""
    run = Run(compile_text(episodes(folder, rival=rival)), folder)
    seen: list[tuple[str, Sequences, Tensor]] = []

    def look(node: Node, frame: Frame) -> None:
        if node.op in ("interact", "player"):
            table = frame.values[node.outputs[0].name]
            # Before it is trained.
            seen.append((table.owner, table.sequences, chosen(run, table.owner, table.sequences)))

    run.also = look
    run.steps(1)
    assert [owner for owner, _, _ in seen] == (["rival", "actor"] if rival else ["actor"])
    for _, rows, expected in seen:
        assert rows.routes is not None
        last = [max(place for place, own in enumerate(row) if own) for row in rows.scored_by_row()]
        assert known_routes(rows) == last and len(set(last)) > 1
        known = rows.routes[:, 0, 0] >= 0
        assert rows.routes[known].sort(-1)[0].equal(expected[known].sort(-1)[0])


def test_episodes_are_trained_with_their_experts(folder: Path) -> None:
    """With the weights that sampled them the loss is what it is with experts that routers choose again."""
    (folder / "replayed.rlf").write_text(episodes(folder), "utf-8")
    (folder / "chosen.rlf").write_text(episodes(folder, "free"), "utf-8")
    replayed = metrics(folder / "replayed.rlf", record=folder / "kept")
    free = metrics(folder / "chosen.rlf")
    assert replayed[0] == pytest.approx(free[0], abs=1e-5)
    assert metrics(folder / "replayed.rlf", replay=folder / "kept") == [pytest.approx(step) for step in replayed]


def test_a_dense_player_is_refused(folder: Path) -> None:
    dense = 'random("qwen2", hidden_size=32, num_attention_heads=4, num_key_value_heads=2, tokenizer=words("red green blue"))'
    (folder / "p.rlf").write_text(episodes(folder, rival=dense), "utf-8")
    schedule = folder / "s.rls"
    schedule.write_text("schedule played\npool a = 1 devices\nplace actor, rival on a\n", "utf-8")
    with pytest.raises(ProgramError) as refused:
        rlgraph.compile(folder / "p.rlf", schedule=schedule)
    [diagnostic] = refused.value.diagnostics
    assert diagnostic.code == "E0847" and "`rival`" in diagnostic.message
