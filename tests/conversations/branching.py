"""Agents that begin other conversations on the way, and a program that learns from all lines of their episodes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tiny import EPS

from rlgraph.backends.engines.tokenizers import ByteTokenizer, Codec, build_tokenizer
from tests.conversations.test_agents import CLIENT, SHAPE, TEMPLATE

OPENAI = '''
from openai import OpenAI

def user(text):
    return {"role": "user", "content": text}

def answers(messages, n, model, base_url, api_key):
    """What OpenAI's client is answered: the texts, tokens and log-probabilities."""
    made = OpenAI(base_url=base_url, api_key=api_key).chat.completions.create(
        model=model, messages=messages, n=n, max_tokens=6, logprobs=True, extra_body={"return_token_ids": True}
    )
    return [(one.message.content, one.token_ids, [t.logprob for t in one.logprobs.content]) for one in made.choices]
'''
PLAIN = (
    CLIENT
    + '''
def answers(messages, n, model, base_url, api_key):
    """The same, of a client that is loaded faster."""
    made = chat(messages, n=n, model=model)["choices"]
    return [(c["message"]["content"], c["token_ids"], [t["logprob"] for t in c["logprobs"]["content"]]) for c in made]
'''
)
AGENTS = '''
def single(ask):
    first = ask([user("a")])
    ask([user("a"), first, user("and")])

def sub(ask):
    """A sub-agent with a prompt of its own between two turns."""
    first = ask([user("a")])
    told = ask([{"role": "system", "content": "s"}, user("b")], model="two")
    ask([user("a"), first, user(told["content"])])

def summary(ask):
    """It goes on with a summary in place of what was said."""
    first = ask([user("a")])
    short = ask([user("a"), first, user("sum up")])
    begin = user("so far: " + short["content"])
    ask([begin, ask([begin]), user("end")])

def retry(ask):
    """Two answers to one prompt, and then two to what follows the second: its turn is in two lines."""
    ask([user("a")])
    first = ask([user("a")])
    for said in ("good?", "bad?"):
        ask([user("a"), first, user(said)])

def several(ask):
    """Two answers at once, of which it goes on from the first."""
    first, _ = ask([user("a")], n=2)
    ask([user("a"), first, user("and")])

def silent(ask):
    """It asks nothing."""

def solve(row, base_url, api_key, model, seed):
    made, chances, total = 0, 0.0, 0

    def ask(messages, n=1, model=model):
        nonlocal made, chances, total
        got = answers(messages, n, model, base_url, api_key)
        for _, ids, logprobs in got:
            made += len(ids)
            chances += sum(logprobs)
            total += sum(place * token for place, token in enumerate(ids, 1))
        said = [{"role": "assistant", "content": text} for text, _, _ in got]
        return said if n > 1 else said[0]

    globals()[row["does"]](ask)
    return {"reward": float(seed % 5), "made": made, "chances": chances, "total": total}
'''
TURNS = {"single": [2], "sub": [2, 1], "summary": [2, 2], "retry": [1, 2, 1], "several": [2, 1], "silent": []}
"""The turns of each line, in the order in which the lines begin; those that an earlier line has are not counted."""
INTERACT = "    episode = actor.interact(bot, rows, n=2, max_turns=8, max_tokens=400)\n"
BODY = f"""{INTERACT}    lines = episode.branch
    gain  = sum(episode.reward, turn)
    told  = sum(where(lines.tokens >= 0, 1, 0), by=episode)
    off   = max(max(abs(ref.logprobs(lines) - lines.logprobs), token))
    same  = abs(sum(lines.logprobs, by=episode) - episode.chances)
    report off = off, told = max(abs(told - episode.made)), same = max(same), lines = size(lines.length)
    report turns = sum(lines.turns), requests = sum(episode.requests), shares = mean(mean(lines.turns, by=episode))
    train actor(lr=0.01, eps={EPS}):
        minimize mean(-actor.logprobs(lines) * center(gain, rows))
"""


def program(
    folder: Path,
    does: Sequence[str] = tuple(TURNS),
    body: str = BODY,
    branches: str = "all",
    more: str = "",
    client: str = PLAIN,
    shape: str = f"{SHAPE}, initializer_range=0.3",
    dtype: str = "float64",
) -> str:
    """The text of a program whose agent does in each row what the row says. more: declarations besides."""
    tokenizer = build_tokenizer(ByteTokenizer())
    tokenizer.chat_template = TEMPLATE
    Codec(tokenizer).save(folder / "small")
    (folder / "rows.jsonl").write_text("".join(json.dumps({"does": name}) + "\n" for name in does), "utf-8")
    (folder / "bot.py").write_text(client + AGENTS, "utf-8")
    # One episode at a time: what is sampled together is the same in each run.
    options = f'workers=1, branches={branches}, returns=["reward", "made", "chances", "total"]'
    return f"""algorithm t
model actor = causal_lm(random("qwen2", {shape}, max_position_embeddings=2048, tokenizer="small"),
                        dtype="{dtype}")
model ref = frozen(actor)
{more}data rows = jsonl("rows.jsonl", batch={len(does)}, shuffle=false)
env bot = agent("bot.py:solve", {options})
step:
{body}"""
