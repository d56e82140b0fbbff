"""Agents whose model is in a process of vLLM's: their requests are in the engine at the same time."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray.util")
pytest.importorskip("vllm")

import ray
import ray.cloudpickle
from scheduled import compiled

from rlgraph.backends.engines.tokenizers import ByteTokenizer, Codec, build_tokenizer
from rlgraph.backends.local.backend import LocalBackend
from rlgraph.backends.ray.backend import RayBackend
from rlgraph.backends.recording import claim_folder
from rlgraph.backends.steps import SilentObserver
from rlgraph.backends.worker import agent_episodes
from rlgraph.backends.worker.agent_play import AgentPlay
from rlgraph.backends.worker.session import Settings
from tests.conversations.branching import program
from tests.waits import NEVER

# Actors cannot import what pytest imports.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

TEMPLATE = (
    "{% for m in messages %}{{ '<' + m.role + '>' + m.content + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
BOT = '''
import json, os, signal, time, urllib.request

def chat(messages):
    body = {"messages": messages, "max_tokens": 24, "return_token_ids": True, "logprobs": True}
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as answer:
        return json.loads(answer.read())["choices"][0]

def solve(row):
    """Two turns; one episode is killed after the first one, and one never ends."""
    messages, made, chances = [{"role": "user", "content": f"{row['number']}?"}], 0, 0.0
    for turn in range(2):
        choice = chat(messages)
        made += len(choice["token_ids"])
        chances += sum(token["logprob"] for token in choice["logprobs"]["content"])
        messages += [choice["message"], {"role": "user", "content": "and"}]
        if row["number"] == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        while row["number"] == 2:
            time.sleep(0.01)
    return {"reward": made % 3, "made": made, "chances": chances}
'''
PROGRAM = """algorithm asked
model actor = causal_lm(random("qwen2", hidden_size=64, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
                               num_key_value_heads=1, max_position_embeddings=512, initializer_range=0.1,
                               tokenizer="small"), dtype="float32")
model ref   = frozen(actor)
data rows   = jsonl("rows.jsonl", batch=64, shuffle=false)
env bot     = agent("bot.py:solve", workers=64, returns=["reward", "made", "chances"])
step:
    episode = actor.interact(bot, rows, n=1, max_turns=4, max_tokens=200)
    new     = ref.logprobs(episode)
    made    = sum(new * 0 + 1, token)
    whole   = episode.finished
    report off = max(max(abs(new - episode.logprobs), token)), turns = sum(episode.turns)
    report finished = sum(whole), died = sum(episode.died), stalled = sum(episode.stalled)
    report lost = max(abs(made - episode.made) * whole)
    report drifted = max(abs(sum(episode.logprobs, token) - episode.chances) * whole)
    train actor(lr=0.01, eps=0.01):
        minimize mean(-actor.logprobs(episode) * center(sum(episode.reward, turn), rows))
"""
SCHEDULE = """pool learn = 1 devices
pool play = 1 devices
place actor.train, ref on learn(engine=transformers)
place actor.interact on play(engine=vllm)
"""


class Beside(SilentObserver):
    """The most rows of other requests that were in the engine together with one."""

    most = 0

    def add_span(
        self, pool: str, rank: int | str, name: str, category: str, start: float, end: float, **args: Any
    ) -> int:
        self.most = max(self.most, args.get("beside", 0) if category == "interact" else 0)
        return 0


def wait_for_the_last(worker: Any) -> None:
    """In the process that plays: the clock stands still until one episode alone is not over."""

    class Late(AgentPlay):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given[:4], self.late)

        def late(self) -> float:
            return 1e6 if sum(not episode.over for episode in self.episodes) == 1 else 0.0

    agent_episodes.AgentPlay = Late  # type: ignore[misc]


@pytest.mark.long
def test_sixty_four_sessions_are_answered_at_once(cluster: None, tmp_path: Path) -> None:
    """Their tokens and log-probabilities are what another engine computes; one is killed, one never ends."""
    tokenizer = build_tokenizer(ByteTokenizer())
    tokenizer.chat_template = TEMPLATE
    Codec(tokenizer).save(tmp_path / "small")
    rows = [json.dumps({"number": number}) + "\n" for number in range(64)]
    (tmp_path / "rows.jsonl").write_text("".join(rows), "utf-8")
    (tmp_path / "bot.py").write_text(BOT, "utf-8")
    made, beside = compiled(PROGRAM, {}, SCHEDULE, tmp_path), Beside()
    with closing(RayBackend(made.program, made.plan, Settings(folder=tmp_path), beside, seconds=NEVER)) as backend:
        [player] = [handle for (group, _), handle in backend.processes.handles.items() if group.startswith("play")]
        ray.get(player.__ray_call__.remote(wait_for_the_last))
        [step] = backend.run_steps(1)
    assert (step.metrics["finished"], step.metrics["died"], step.metrics["stalled"]) == (62, 1, 1)
    assert step.metrics["turns"] == 2 * 62 + 2 and beside.most > 1
    assert 0 < step.metrics["off"] < 1e-5 and step.metrics["lost"] == 0 and step.metrics["drifted"] < 1e-3


@pytest.mark.long
def test_lines_of_an_agent_are_what_their_replay_is(cluster: None, tmp_path: Path) -> None:
    """Sampled by vLLM in another process than the one that learns, and read again by transformers."""
    shape = "hidden_size=64, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1"
    shape += ", initializer_range=0.1"
    text, rows = program(tmp_path, shape=shape, dtype="float32"), tmp_path / "rows"
    made = compiled(text, {}, SCHEDULE, tmp_path)
    settings = Settings(folder=tmp_path, record=rows)
    with claim_folder(rows, "t", 0), closing(RayBackend(made.program, made.plan, settings, seconds=NEVER)) as backend:
        steps = list(backend.run_steps(2))
    with closing(LocalBackend(made.program, Settings(folder=tmp_path, replay=rows))) as local:
        replayed = list(local.run_steps(2))
    for step, again in zip(steps, replayed, strict=True):
        assert again.metrics == pytest.approx(step.metrics, rel=0, abs=1e-4)
        assert step.metrics["told"] == 0 and step.metrics["turns"] == step.metrics["requests"] == 32
    assert 0 < steps[0].metrics["off"] < 1e-5 and steps[0].metrics["same"] < 1e-4
