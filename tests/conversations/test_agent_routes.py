"""Routers of experts are replayed for what an agent was answered: on each line of its tree of requests. A run takes
about two seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import EPS, Run, compile_text

from rlgraph.backends.frame import Frame
from rlgraph.backends.recording import claim_folder
from rlgraph.backends.rows import TableData
from rlgraph.backends.worker.action_sampling import ActionSampling
from rlgraph.ir.graph import Node
from tests.conversations.branching import INTERACT, PLAIN, program

SHAPE = (
    "hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, "
    "head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8, initializer_range=0.3, "
    'experts_implementation="eager"'
)
CLIENT = PLAIN.replace("n=n, model=model", "n=n, model=model, stop=[chr(letter) for letter in range(64, 128)]")
"""Many answers end at a letter, before the last tokens that were sampled for them."""
DOES = ("retry", "several", "silent")
REPLAYED = INTERACT.replace("max_tokens", "routing=replay, max_tokens")
BODY = f"""{REPLAYED}    lines = episode.branch
    gain  = sum(episode.reward, turn)
    report off = max(max(abs(ref.logprobs(lines) - lines.logprobs), token)), gain = mean(gain)
    train actor(lr=0.01, eps={EPS}):
        minimize mean(-actor.logprobs(lines) * center(gain, rows))
"""


def played(folder: Path, **settings: Any) -> Watched:
    text = program(folder, DOES, BODY, client=CLIENT, shape=SHAPE).replace('random("qwen2"', 'random("qwen3_moe"')
    return Watched(text, folder, **settings)


class Watched:
    """A run of a step, between whose sampling and training the weights of routers change: they would choose otherwise."""

    def __init__(self, text: str, folder: Path, **settings: Any) -> None:
        self.run = Run(compile_text(text), folder, **settings)
        self.network = self.run.backend.session.models["actor"].engine._network
        self.chosen: list[torch.Tensor] = []
        """The experts that routers chose for each line, read by itself, before they changed."""
        self.run.also = self.look
        [self.seen] = self.run.steps(1)
        self.lines: TableData = self.seen.values["episode.branch"]

    def look(self, node: Node, frame: Frame) -> None:
        if node.op != "branch":
            return
        self.chosen = [self.experts(row) for row in frame.values[node.outputs[0].name].sequences.rows()]
        noise = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for name, weights in self.network.model.named_parameters():
                if name.endswith("mlp.gate.weight"):
                    weights += torch.randn(weights.shape, generator=noise, dtype=weights.dtype)
        self.trained = {name: weights.clone() for name, weights in self.network.model.state_dict().items()}

    def experts(self, row: list[int]) -> torch.Tensor:
        with torch.no_grad(), self.network.routing.recording() as last:
            self.network.model(torch.tensor([row]))
            return last()

    def loss(self, replays: bool) -> float:
        """That of a loop over the lines, each read by itself with the weights that were trained."""
        self.network.model.load_state_dict(self.trained)
        turns = self.seen.table("episode").columns["turns"].tolist()
        rewards = iter(self.seen.table("episode").columns["reward"].tolist())
        gains = [sum(next(rewards) for _ in range(count)) for count in turns]
        total, count = 0.0, 0
        sequences = self.lines.sequences
        parts = zip(sequences.rows(), sequences.scored_by_row(), sequences.routes_by_row(), self.owners(), strict=True)
        for row, flags, routes, owner in parts:
            with torch.no_grad():
                ids = torch.tensor([row])
                if replays:
                    with self.network.routing.replaying(routes):
                        logits = self.network.model(ids).logits[0]
                else:
                    logits = self.network.model(ids).logits[0]
            chances = logits.double().log_softmax(-1)
            first = 2 * (owner // 2)
            advantage = gains[owner] - (gains[first] + gains[first + 1]) / 2
            places = [place for place, own in enumerate(flags) if own]
            total -= sum(float(chances[place - 1, row[place]]) for place in places) * advantage
            count += len(places)
        return total / count

    def owners(self) -> list[int]:
        """The episode of each line."""
        return [2 * DOES.index(row["does"]) + self.sample_of(at) for at, row in enumerate(self.lines.data)]

    def sample_of(self, line: int) -> int:
        """Which of the two episodes of its row a line is in."""
        counts = {"retry": 3, "several": 2}
        before = [row["does"] for row in self.lines.data[:line]]
        name = self.lines.data[line]["does"]
        return before.count(name) // counts[name]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    return played(tmp_path_factory.mktemp("routes"))


def test_each_line_has_the_experts_of_all_that_was_read(watched: Watched) -> None:
    """In the order of its tokens, up to the last that was sampled: also of turns that another line has, too, and of
    answers that end before their last tokens."""
    sequences = watched.lines.sequences
    assert sequences is not None and sequences.routes is not None and len(sequences) == 10
    for routes, flags, chosen in zip(sequences.routes_by_row(), sequences.scored_by_row(), watched.chosen, strict=True):
        read = max(place for place, own in enumerate(flags) if own)
        assert routes is not None and (routes[:read] >= 0).all() and (routes[read:] == -1).all()
        assert routes[:read].sort(-1)[0].equal(chosen[:read].sort(-1)[0].to(routes.dtype))
    assert watched.seen.metrics["off"] < 1e-9
    lengths = watched.lines.columns["_turn_tokens"].tolist()
    assert min(lengths) < 6 == max(lengths)


def test_lines_are_trained_with_their_experts(watched: Watched) -> None:
    """Though the routers would choose others by now."""
    loss, [(trained, _)] = watched.loss(replays=True), watched.seen.losses["actor"]
    assert trained == pytest.approx(loss, abs=1e-9) and abs(watched.loss(replays=False) - loss) > 1e-3


def test_answers_as_they_come_and_recorded_ones_have_them(
    watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with an engine that takes rows while it samples others."""
    monkeypatch.setattr(ActionSampling, "takes_rows_meanwhile", True)
    with claim_folder(tmp_path / "kept", "t", 0):
        first = played(tmp_path, record=tmp_path / "kept")
    monkeypatch.undo()
    again = played(tmp_path, replay=tmp_path / "kept")
    for other in (first, again):
        assert other.lines.sequences.routes.equal(watched.lines.sequences.routes)
        assert other.seen.losses == watched.seen.losses
