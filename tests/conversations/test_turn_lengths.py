"""How long a turn of the model's may be, and where it ends: with an environment, and with an agent."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path

import pytest
from tiny import Run, compile_text

from rlgraph.backends.engines.tokenizers import ByteTokenizer, build_tokenizer

SHAPE = "hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1"
USER = """
import json, os, urllib.request

class Again:
    def reset(self, row):
        return ""

    def step(self, action):
        return "->", 0.0, False

def solve(row):
    prompt = "a"
    for turn in range(3):
        body = json.dumps({"prompt": prompt}).encode()
        headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
        asked = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/completions", body, headers)
        with urllib.request.urlopen(asked) as answer:
            prompt += json.loads(answer.read())["choices"][0]["text"] + "->"
    return 0.0
"""
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def lengths(folder: Path, env: str, options: str) -> list[tuple[int, int]]:
    """Of each turn of the model's how many tokens it has, and the last one."""
    (folder / "rows.jsonl").write_text(json.dumps({"prompt": "a"}) + "\n", "utf-8")
    (folder / "user.py").write_text(USER, "utf-8")
    text = f"""algorithm t
model actor = causal_lm(random("qwen2", {SHAPE}, max_position_embeddings=512, tokenizer=bytes()))
data rows = jsonl("rows.jsonl", batch=1)
env other = {env}
step:
    episode = actor.interact(other, rows, n=4, max_turns=3, max_tokens=300{options})
    report turns = mean(episode.turns)
"""
    table = Run(compile_text(text), folder).steps(1)[0].table("episode")
    found = []
    for tokens, scored in zip(table.tokens, table.scored, strict=True):
        runs = groupby(zip(scored, tokens, strict=True), key=lambda pair: pair[0])
        found += [(len(turn), turn[-1][1]) for sampled, part in runs if sampled and (turn := [*part])]
    return found


@pytest.mark.parametrize("env", ['python("user.py:Again")', 'agent("user.py:solve")'])
def test_a_turn_has_so_many_tokens_at_most(env: str, tmp_path: Path) -> None:
    free = lengths(tmp_path, env, "")
    short = lengths(tmp_path, env, ", turn_tokens=4")
    assert max(count for count, _ in free) > 4 == max(count for count, _ in short)
    assert len(short) == 12, "what is cut goes on with the next turn"


@pytest.mark.parametrize("env", ['python("user.py:Again")', 'agent("user.py:solve")'])
def test_a_turn_ends_with_a_token_of_the_programs(env: str, tmp_path: Path) -> None:
    stops = {int(build_tokenizer(ByteTokenizer()).encode(letter)[0]) for letter in LETTERS}
    written = ", ".join(f'"{letter}"' for letter in LETTERS)
    ended = lengths(tmp_path, env, f", turn_tokens=60, stop=[{written}]")
    assert len(ended) == 12 and sum(last in stops for _, last in ended) > 6
