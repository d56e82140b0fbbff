"""Rows of several orders that a copy samples together: they are in its engine at the same time, as it counts them, and
have the numbers of one process."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("ray.util")
pytest.importorskip("vllm")

from scheduled import compiled
from tiny import EPS, data_folder

from rlgraph.api.compiled import Compiled
from rlgraph.backends.local.backend import LocalBackend
from rlgraph.backends.ray.backend import RayBackend
from rlgraph.backends.steps import SilentObserver
from rlgraph.backends.worker.session import Settings
from rlgraph.ir.graph import Node
from tests.suites import few

PROGRAM = f"""
algorithm together
model actor  = causal_lm(random("qwen2", hidden_size=64, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
                                num_key_value_heads=1, max_position_embeddings=256, initializer_range=0.1,
                                tokenizer=chars("abcd>")), dtype="float32")
model ref    = frozen(actor)
data prompts = jsonl("prompts.jsonl", batch=6)
data tasks   = jsonl("tasks.jsonl", batch=4)
env shell    = python("envs.py:Shell")

step async(lag=1):
    rollout = actor.generate(prompts, n=3, max_tokens=120, min_tokens=60)
    likely  = actor.generate(prompts, n=1, max_tokens=90, min_tokens=80, temperature=0)
    episode = actor.interact(shell, tasks, n=2, max_turns=3, max_tokens=40)
    old     = ref.logprobs(rollout)
    gain    = mean(ref.logprobs(likely), by=likely)
    train actor(lr=0.01, eps={EPS}):
        minimize mean(-actor.logprobs(rollout) * (old - mean(gain))) + mean(actor.logprobs(episode))
    report first = mean(rollout.logprobs), likely = mean(gain), length = mean(rollout.length), old = mean(old)
    report acted = mean(episode.logprobs), turns = mean(episode.turns), won = mean(sum(episode.reward, turn))
"""
SCHEDULE = """
pool learn = 1 devices
pool play = 2 devices
place actor.train, ref on learn(engine=transformers)
place actor.generate on play(engine=vllm, tp=2)
stream rollout(block=1)
"""


class Spans(SilentObserver):
    """Of what was sampled, how many rows of others were sampled together with it."""

    def __init__(self) -> None:
        self.beside: dict[str, int] = {}
        self.interrupts = False
        """When the second table is about to be sampled."""

    def node_started(self, node: Node, pool: str = "") -> None:
        if self.interrupts and node.op == "generate" and pool == "play":
            self.interrupts = node.name == "rollout"
            if not self.interrupts:
                raise KeyboardInterrupt

    def add_span(
        self, pool: str, rank: int | str, name: str, category: str, start: float, end: float, **args: object
    ) -> int:
        beside = args.get("beside", 0)
        assert isinstance(beside, int)
        if category in ("generate", "interact"):
            self.beside[name] = max(beside, self.beside.get(name, 0))
        return 0


def in_one_process(made: Compiled, settings: Settings) -> list[dict[str, float]]:
    """The metrics of three steps."""
    local = LocalBackend(made.program, settings)
    try:
        return [dict(step.metrics) for step in local.run_steps(3)]
    finally:
        local.close()


@pytest.mark.long
def test_rows_of_two_orders(kept: None, tmp_path: Path) -> None:
    settings = Settings(folder=data_folder(tmp_path))
    made = compiled(PROGRAM, {}, SCHEDULE, tmp_path)
    expected = in_one_process(made, settings)
    spans = Spans()
    backend = RayBackend(made.program, made.plan, settings, spans, seconds=120)
    try:
        found = [step.metrics for step in backend.run_steps(3)]
        # Who is interrupted while rows of several orders are sampled can still save the model.
        spans.interrupts = True
        with pytest.raises(KeyboardInterrupt):
            list(backend.run_steps(2))
        backend.save("actor", tmp_path / "saved")
        assert (tmp_path / "saved" / "config.json").exists()
    finally:
        backend.close()
    # Rows with the same weights, and no others: there are 18, 6 and 8 of them in a step, and the first two steps have
    # the same ones.
    for name, own in {"rollout": 18, "likely": 6, "episode": 8}.items():
        assert 0 < spans.beside[name] <= 2 * 32 - own, name
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=0, abs=1e-5)


TAILED = """
algorithm tailed
model actor  = causal_lm(random("qwen2", hidden_size=64, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
                                num_key_value_heads=1, max_position_embeddings=256, initializer_range=0.1,
                                tokenizer=chars("abcd>")), dtype="float32")
model reward = reward_lm(random("qwen2", hidden_size=64, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
                                num_key_value_heads=1, max_position_embeddings=256, initializer_range=0.1,
                                tokenizer=chars("abcd>")), dtype="float32")
data prompts = jsonl("prompts.jsonl", batch=10)

step:
    rollout = actor.generate(prompts, n=2, max_tokens=200)
    score   = reward.score(rollout)
    report first = mean(rollout.logprobs), length = mean(rollout.length), longest = max(rollout.length)
    report score = mean(score), best = max(score), done = mean(rollout.finished)
    train actor(lr=0.01):
        minimize mean(-actor.logprobs(rollout) * score)
"""
MOVING = """
pool learn = 1 devices
pool all = 2 devices
place actor.train on learn(engine=transformers)
place actor.generate on all(engine=vllm, dp=2)
place reward on all(engine=transformers, dp=2)
stream rollout(block=2, deal=free)
tail rollout(under=UNDER, on=1)
"""


class Done(SilentObserver):
    """How many parts of the table each process has done."""

    def __init__(self) -> None:
        self.parts: dict[str, int] = {}

    def add_span(
        self, pool: str, rank: int | str, name: str, category: str, start: float, end: float, **args: object
    ) -> int:
        if category == "generate":
            self.parts[str(rank)] = self.parts.get(str(rank), 0) + 1
        return 0


@pytest.mark.long
def test_the_last_rows_go_on_elsewhere(kept: None, tmp_path: Path) -> None:
    settings = Settings(folder=data_folder(tmp_path))
    made = compiled(TAILED, {}, MOVING.replace("UNDER", "0.8"), tmp_path)
    expected = in_one_process(made, settings)
    done = Done()
    backend = RayBackend(made.program, made.plan, settings, done, seconds=120)
    try:
        found = [step.metrics for step in backend.run_steps(3)]
    finally:
        backend.close()
    assert sum(done.parts.values()) == 3 * 10
    assert max(done.parts.values()) > 3 * 5, "a copy has ended more than its share"
    for one, other in zip(found, expected, strict=True):
        mine = {name: one[name] for name in other}
        assert mine == pytest.approx(other, rel=0, abs=1e-5)


ADMITTED = """
pool learn = 1 devices
pool all = 2 devices
place actor.train on learn(engine=transformers)
place actor.generate on all(engine=vllm, dp=2)
place reward on all(engine=transformers, dp=2)
stream rollout(block=2, deal=DEAL)
admit rollout(by="place")
"""


class Shares(Done):
    """How many rows each copy had in the first step."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[str, int] = {}

    def add_span(
        self, pool: str, rank: int | str, name: str, category: str, start: float, end: float, **args: object
    ) -> int:
        if category == "generate" and str(rank) not in self.rows:
            rows = args["rows"]
            assert isinstance(rows, int)
            self.rows[str(rank)] = rows
        return super().add_span(pool, rank, name, category, start, end, **args)


@pytest.mark.parametrize("deal", few(["even", "free"], "even"))
def test_rows_that_are_expected_to_be_long_begin_first(kept: None, tmp_path: Path, deal: str) -> None:
    settings = Settings(folder=data_folder(tmp_path))
    made = compiled(TAILED, {}, ADMITTED.replace("DEAL", deal), tmp_path)
    expected = in_one_process(made, settings)
    done = Shares()
    backend = RayBackend(made.program, made.plan, settings, done, seconds=120)
    try:
        found = [step.metrics for step in backend.run_steps(3)]
    finally:
        backend.close()
    assert sum(done.parts.values()) == 3 * 10
    for one, other in zip(found, expected, strict=True):
        mine = {name: one[name] for name in other}
        assert mine == pytest.approx(other, rel=0, abs=1e-5)
    if deal == "even":
        # 0 to 9, the largest first to who has least: 9, 6, 5, 2, 1 and 8, 7, 4, 3, 0 tokens, or so many prompts of each.
        assert sorted(done.parts.values()) == [15, 15]


RACING = """
algorithm racing
model actor  = causal_lm(random("qwen2", hidden_size=64, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
                                num_key_value_heads=1, max_position_embeddings=256, initializer_range=0.1,
                                tokenizer=chars("abcdefghijklmnopqrstuvwxyzABCDEFGH>")), dtype="float32")
data prompts = jsonl("prompts.jsonl", batch=5, shuffle=false)

step:
    collect prompts(6, ahead=1.5, rest=longest):
        rollout = actor.generate(prompts, n=3, first=2, max_tokens=200)
    report first = mean(rollout.logprobs), length = mean(rollout.length), longest = max(rollout.length)
    report which = mean(prompts.place), done = mean(rollout.finished)
    train actor(lr=0.01):
        minimize mean(-actor.logprobs(rollout))
"""
RACED = """
pool learn = 1 devices
pool play = 2 devices
place actor.train on learn(engine=transformers)
place actor.generate on play(engine=vllm, dp=2)
stream rollout(block=2)
"""


class Given(SilentObserver):
    """How many tokens were sampled."""

    tokens = 0

    def node_done(self, node: Node, seconds: float, tokens: int, pool: str = "") -> None:
        self.tokens += tokens


@pytest.mark.long
def test_who_samples_gives_up_what_is_too_long(kept: None, tmp_path: Path) -> None:
    """Six of ten prompts are taken, whichever copy has the others; the others are asked when six wait."""
    settings = Settings(folder=data_folder(tmp_path))
    made, given = compiled(RACING, {}, RACED, tmp_path), Given()
    local = LocalBackend(made.program, settings, observer := Given())
    try:
        expected = [step.metrics for step in local.run_steps(4)]
    finally:
        local.close()
    backend = RayBackend(made.program, made.plan, settings, given, seconds=120)
    try:
        found = [step.metrics for step in backend.run_steps(4)]
    finally:
        backend.close()
    assert [step["prompts.again"] for step in expected] == [0, 0, 6, 0]
    for one, other in zip(found, expected, strict=True):
        mine = {name: one[name] for name in other}
        assert mine == pytest.approx(other, rel=0, abs=1e-5)
    assert given.tokens < 0.95 * observer.tokens
