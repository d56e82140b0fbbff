"""Empty prompts in the data are told of once before the first step, and refused where nothing can begin. About 1 s."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny import Run, compile_text

from rlgraph.backends.engines.tokenizers import ByteTokenizer, Codec, build_tokenizer
from rlgraph.columns import EmptyValues, column_at
from rlgraph.data.base import columns_of_table, inspect_columns
from rlgraph.data.mix import merged_columns
from rlgraph.errors import NO_SPAN, ProgramError, RunError
from rlgraph.user_code.spec import CallSpec
from tests.conversations.files import says, user

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
ASK = "rollout = actor.generate(rows, n=2, max_tokens=1)"
TEXTS = [{"prompt": "a"}, {"prompt": ""}, {"prompt": ""}]
CHATS = [{"prompt": [user("a")]}, {"prompt": [user("")]}, {"prompt": [user("a"), says("b"), user("")]}]
PAIRS = [{"prompt": "", "completion": "b"}, {"prompt": "a", "completion": ""}]
SAID = "`prompt` is empty in 2 of the 3 rows of `rows`, first in rows.jsonl:2: `actor`"


def opened(folder: Path, rows: list[dict[str, Any]], lines: str, *, start: bool = True) -> Run:
    tokenizer = build_tokenizer(ByteTokenizer())
    tokenizer.chat_template = TEMPLATE
    if not start:
        tokenizer.eos_token = None
    Codec(tokenizer).save(folder / "small")
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    shape = "hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1"
    text = (
        f'algorithm t\nmodel actor = causal_lm(random("qwen2", {shape}, tokenizer="small"))\n'
        f'data rows = jsonl("rows.jsonl", batch=2)\nstep:\n    {lines}\n    report n = mean(rollout.length)\n'
        "    report logp = mean(actor.logprobs(rollout))\n"
    )
    return Run(compile_text(text), folder)


@pytest.mark.parametrize(
    ("rows", "lines", "said"),
    [
        (TEXTS, ASK, f"{SAID} reads only `<eos>` there"),
        (CHATS, ASK, f"{SAID} is asked an empty message there"),
        (TEXTS, "rollout = actor.generate(user(rows.prompt), max_tokens=1)", f"{SAID} is asked an empty message there"),
        (TEXTS, 'rollout = actor.generate("{rows.prompt}", max_tokens=1)', f"{SAID} reads only `<eos>` there"),
        (TEXTS, 'rollout = actor.generate("> {rows.prompt}", max_tokens=1)', ""),
        (TEXTS, f"{ASK}  # allow W0523", ""),
        (TEXTS, f'keep rows where rows.prompt != ""\n    {ASK}', ""),
        (PAIRS, "rollout = encode(rows)", "`prompt` is empty in 1 of the 2 rows of `rows`, first in rows.jsonl:1"),
    ],
)
def test_it_is_told_of_once(rows: list[dict[str, Any]], lines: str, said: str, tmp_path: Path) -> None:
    run = opened(tmp_path, rows, lines)
    notes = [note for note in run.backend.overlong_notes() if "W0523" in note]
    assert [note.startswith(f"warning[W0523]: {said}") for note in notes] == [True] * bool(said)


def test_it_is_refused_where_a_text_has_no_first_token(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="E0731.*first in rows.jsonl:2: `actor` cannot begin there"):
        opened(tmp_path, TEXTS, ASK, start=False)
    assert opened(tmp_path, CHATS, ASK, start=False).backend.overlong_notes()
    # What the program computes is known when it is asked.
    joined = 'rollout = actor.generate(join("{rows.prompt}", by=rows), max_tokens=1)'
    run = opened(tmp_path, TEXTS, joined, start=False)
    with pytest.raises(RunError, match=r"the prompt of rows row \d cannot be used: it is empty, and the tokenizer has"):
        list(run.backend.run_steps(1))


def test_tables_count_what_rows_count() -> None:
    """Column by column, over chunks, beside values that are missing, lists without messages and calls of tools."""
    pa = pytest.importorskip("pyarrow")
    none, call = {"tool_calls": None}, {"role": "assistant", "content": "", "tool_calls": ["f"]}
    silent, asks = [user("a") | none, user("") | none], [user("") | none, user("a") | none]
    chats = [asks, silent, None, [], [call], silent]
    table = pa.table({"text": ["a", "", None, "", "b", ""], "chat": chats, "held": [{"chat": chat} for chat in chats]})
    whole = pa.concat_tables([table.slice(0, 1), table.slice(1, 3), table.slice(4)])
    by_column = columns_of_table(CallSpec("files", (), {}, NO_SPAN), whole, "'t'")
    by_row = inspect_columns(CallSpec("files", (), {}, NO_SPAN), whole.to_pylist(), "'t'")
    assert by_column["text"].empty == {"text": EmptyValues(3, "row 1 of 't'")} == by_row["text"].empty
    chat = {"messages": EmptyValues(2, "row 1 of 't'")}
    assert by_column["chat"].empty == chat == by_row["chat"].empty
    held = [column_at(columns, "held.chat") for columns in (by_column, by_row)]
    assert [column.empty for column in held if column] == [chat, chat]
    both = merged_columns([("a", by_row), ("b", by_column)])
    assert both["chat"].empty == {"messages": EmptyValues(4, "row 1 of 't'")}
