"""A chat model that is asked plain text is warned of; a base model, and a text that is written out already, are not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tiny import Run, compile_text

from rlgraph.backends.engines.tokenizers import ByteTokenizer, Codec, build_tokenizer
from rlgraph.errors import ProgramError
from tests.conversations.files import says, user

ENDED = (
    "{% for m in messages %}{{ '[' + m.role + ']' + m.content + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"
)
"""What a chat model writes: an answer ends with the token that ends a text."""
OTHERS = ENDED.replace("eos_token", "'[end]'")
"""What comes with a base model, which was never asked in it."""
ASK = "rollout = actor.generate(rows, max_tokens=1)"
LEARN = "rollout = encode(rows)"
GOES_ON = "  # the model goes on from it"
PLAIN, CHAT = {"prompt": "2+2?"}, {"prompt": [user("2+2?")]}
PAIR = {"prompt": "2+2?", "completion": "4"}


@pytest.mark.parametrize(
    ("template", "row", "line", "warned"),
    [
        (ENDED, PLAIN, ASK, True),
        (ENDED, PLAIN, f"{ASK}  # allow W0520", False),
        (ENDED, CHAT, ASK, False),
        (OTHERS, PLAIN, ASK, False),
        ("", PLAIN, ASK, False),
        (ENDED, {"prompt": "[user]2+2?<eos>[assistant]"}, ASK, False),
        (ENDED, {"prompt": "You[assistant]"}, ASK, False),
        (ENDED, PAIR, LEARN, True),
        (ENDED, {"prompt": [user("2+2?")], "completion": [says("4")]}, LEARN, False),
        (ENDED, {"prompt": "2+2?", "completion": [user("2+2?"), says("4")]}, LEARN, False),
        (ENDED, {"prompt": "2+2?", "completion": [says("4")]}, LEARN, False),
        (ENDED, {"text": "2+2=4"}, LEARN, False),
    ],
)
def test_plain_text_for_a_chat_model(
    template: str, row: dict[str, Any], line: str, warned: bool, tmp_path: Path
) -> None:
    said = warnings(tmp_path, template, [row], line)
    assert [note.startswith("warning[W0520]: `actor` is a chat model") for note in said] == [True] * warned
    if warned:
        made = "encode(user(rows.prompt), rows.completion)" if line == LEARN else "user(rows.prompt)"
        assert 'help: write messages, {"prompt": [{"role": "user", "content": "2+2?"}]}, or ' in said[0]
        assert f"`{made}` in the program; where plain text is meant" in said[0]


CALL = {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": {"name": "add"}}]}


@pytest.mark.parametrize(
    ("rows", "line", "said"),
    [
        ([CHAT, CHAT, PLAIN], ASK, r"W0520\].* is plain text in row 2: "),
        ([{"prompt": "[user]hi[assistant]"}, PLAIN], ASK, r"W0520\].* is plain text in row 1: "),
        (
            [{"prompt": json.dumps([user("hi")])}],
            ASK,
            r"W0520\].* is plain text: (.|\n)*help: these are messages, written as a text",
        ),
        (
            [CHAT | {"chosen": str([user("hi")])}],
            f'{LEARN[:-1]}, answer="chosen")',
            r"W0520\].*`chosen` of `rows` is plain text: ",
        ),
        ([{"chosen": "Q: a? A: b", "rejected": "Q: a? A: c"}], f'{LEARN[:-1]}, answer="chosen")', "W0520"),
        ([CHAT, {"prompt": [user("a"), says("b")]}], ASK, r"W0524\].*the assistant's in row 1: `actor` begins another"),
        ([{"prompt": [user("a"), says("b")]}], f"{ASK}  # allow W0524", ""),
        ([{"prompt": [user("a"), says("b")]}], f"{ASK}{GOES_ON}", ""),
        ([{"prompt": [{"from": "gpt", "value": "b"}]}], ASK, "W0524"),
        ([{"prompt": [user("a"), says("b"), user("c")]}], ASK, ""),
        ([{"messages": json.dumps([user("a"), says("b")])}], ASK.replace("rows", "rows.messages"), "W0524"),
        ([{"prompt": [user("a"), says("b")], "completion": [says("c")]}], LEARN, ""),
    ],
)
def test_all_rows_are_looked_at(rows: list[dict[str, Any]], line: str, said: str, tmp_path: Path) -> None:
    found = warnings(tmp_path, ENDED, rows, line)
    assert [bool(re.match(rf"warning\[{said}", note)) for note in found] == [True] * bool(said)


def test_a_template_that_needs_a_text(tmp_path: Path) -> None:
    """It gets an empty one where there is a call, which it leaves out; without a call there is nothing to write."""
    _, left_out = warnings(tmp_path, ENDED, [{"prompt": [user("a"), CALL]}], ASK)
    assert left_out.startswith("warning[W0525]: the chat template of `actor` leaves out the call of `add` in message 2")
    with pytest.raises(ProgramError) as caught:
        warnings(tmp_path, ENDED, [{"prompt": [user("a"), {"role": "assistant", "content": None}]}], ASK)
    assert "has a message of role 'assistant' that says nothing" in caught.value.diagnostics[0].message


def warnings(folder: Path, template: str, rows: list[dict[str, Any]], line: str) -> list[str]:
    chat = ", chat=chat(continue_final_message=true)" if line.endswith(GOES_ON) else ""
    tokenizer = build_tokenizer(ByteTokenizer())
    tokenizer.chat_template = template or None
    Codec(tokenizer).save(folder / "small")
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    shape = "hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1"
    text = (
        f'algorithm t\nmodel actor = causal_lm(random("qwen2", {shape}, tokenizer="small"){chat})\n'
        f'data rows = jsonl("rows.jsonl", batch=1)\nstep:\n    {line}\n    report n = mean(rollout.length)\n'
        "    report logp = mean(actor.logprobs(rollout))\n"
    )
    return [note for note in Run(compile_text(text), folder).backend.overlong_notes() if note.startswith("warning")]


CHOOSY = ENDED.replace("for m in messages", "for m in messages if m.role in ['user', 'assistant']")
LATE = {"role": "developer", "content": "Be brief."}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {}}}


@pytest.mark.parametrize(
    ("template", "rows", "line", "said"),
    [
        (
            CHOOSY,
            [CHAT, {"prompt": [user("a"), LATE, user("b")]}],
            ASK,
            r'the text of message 2 .role "developer". of row 1',
        ),
        (CHOOSY, [{"prompt": [user("a"), LATE, user("b")]}], f"{ASK}  # allow W0525", ""),
        (ENDED, [{"prompt": [user("a"), LATE, user("b")]}], ASK, ""),
        (ENDED, [{"prompt": [user("a")], "tools": [TOOL]}], ASK, "the tool `add` of row 0"),
        (ENDED + "{{ tools | tojson }}", [{"prompt": [user("a")], "tools": [TOOL]}], ASK, ""),
        (
            CHOOSY,
            [{"messages": [user("a"), {**CALL, "content": ""}, user("4"), says("four")]}],
            LEARN,
            r"the call of `add` in message 2 .role \"assistant\". of row 0",
        ),
        (
            CHOOSY,
            [{"prompt": [user("a")], "chosen": [LATE, says("b")]}],
            f'{LEARN[:-1]}, answer="chosen")',
            "message 2",
        ),
        ("{{ messages[0].content | upper }}" + ENDED, [CHAT], ASK, ""),
        (
            ENDED,
            [CHAT, {"prompt": [user("What is on <image>?")], "images": ["a.png"]}],
            ASK,
            "`<image>` in row 1 of `rows` stands for what is in `images`",
        ),
        (ENDED, [{"prompt": [user("Close <image>.")]}], ASK, ""),
        (ENDED, [{"prompt": [user("a")], "images": ["a.png"]}], ASK, "the column `images` of `rows` has pictures"),
        (ENDED, [{"prompt": [user("a")], "images": [], "image": "sepia", "page": "a.png"}], ASK, ""),
        (ENDED, [{"prompt": [user("a")], "system": "Be brief."}], ASK, "`system` of row 0 of `rows` is not read with"),
        (ENDED, [{"prompt": [{"role": "system", "content": "Be brief."}, user("a")], "system": "Be brief."}], ASK, ""),
        (ENDED, [{"messages": [user("a"), {**says("b"), "thinking": "c"}]}], LEARN, "the `thinking` of message 2"),
        (ENDED, [{"messages": [user("a"), {**says("b"), "thinking": "c"}, user("d"), says("e")]}], LEARN, ""),
    ],
)
def test_what_a_model_does_not_read_is_told(
    template: str, rows: list[dict[str, Any]], line: str, said: str, tmp_path: Path
) -> None:
    found = warnings(tmp_path, template, rows, line)
    assert [bool(re.match(rf"warning\[W0525\]: .*{said}", note)) for note in found] == [True] * bool(said)


DATED = (
    ENDED + "{{ date_string if date_string is defined else strftime_now('%d %b %Y') if messages | length > 1 else '' }}"
)
ANSWERED = [{"messages": [user("a"), says("b")]}]
TRAINED = f"{LEARN}\n    train actor(lr=1e-3):\n        minimize -mean(actor.logprobs(rollout))"
MARKED = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{{ eos_token }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "rows", "line", "said"),
    [
        (DATED, [{"prompt": [user("a"), says("b"), user("c")]}], ASK, "W0526"),
        (DATED, [{"prompt": [user("a"), says("b"), user("c")]}], f"{ASK}  # allow W0526", ""),
        (DATED, [CHAT], ASK, ""),
        (DATED, ANSWERED, LEARN, "W0526"),
        (f"{{% set date_string = '1 May' %}}{DATED}", [{"prompt": [user("a"), user("b")]}], ASK, ""),
        (ENDED, ANSWERED, TRAINED, ""),
        (OTHERS.replace("[end]", "\n"), ANSWERED, TRAINED, "W0527"),
        (OTHERS.replace("[end]", "\n"), ANSWERED, LEARN, ""),
        (OTHERS.replace("[end]", "\n"), [{"prompt": [user("a")], "completion": "b"}], TRAINED, ""),
        (MARKED, ANSWERED, TRAINED, "W0527"),
        (MARKED.replace("{{ eos_token }}", "").replace("content", "content + eos_token"), ANSWERED, TRAINED, ""),
    ],
)
def test_templates_that_write_the_date_or_no_end(
    template: str, rows: list[dict[str, Any]], line: str, said: str, tmp_path: Path
) -> None:
    """What a model learns of a conversation has an end, in the template's marks too; a date is found where a
    conversation comes to it."""
    found = warnings(tmp_path, template, rows, line)
    assert [note[:14] for note in found] == [f"warning[{said}]"] * bool(said)
