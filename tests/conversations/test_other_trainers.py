"""Files of LLaMA-Factory, Axolotl and OpenAI: the tokens that these trainers learn from, or a word that they are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rlgraph
from rlgraph.backends.engines.chat import ChatOptions
from rlgraph.backends.engines.tokenizers import ByteTokenizer, Codec, build_tokenizer
from rlgraph.conversations import OddRow, example_of_row, tools_of
from tests.conversations.files import says, system, user

CALL = {"name": "weather", "arguments": {"city": "Rome"}}
BODY = "{{ '<' + m.role + '>' }}%s{{ (m.content or '') + eos_token }}"
TEMPLATE = "{%% for m in messages %%}%s{%% endfor %%}{%% if add_generation_prompt %%}{{ '<assistant>' }}{%% endif %%}"
CALLS = "{%% for c in m.tool_calls or [] %%}{{ %s }}{%% endfor %%}"
AS_JSON = TEMPLATE % (BODY % (CALLS % "c.function.arguments | tojson")).replace("%%", "%")
"""Writes arguments as JSON itself, as Qwen2.5's template does."""
AS_TEXT = TEMPLATE % (BODY % (CALLS % "'' + c.function.arguments")).replace("%%", "%")
"""Takes their JSON, as DeepSeek-V3's."""
NEEDS_TEXT = AS_JSON.replace("(m.content or '')", "m.content")
"""Needs a text beside calls, as Qwen3's."""


def learned(row: dict[str, Any], answer: str | None = None, template: str = AS_JSON) -> tuple[str, list[str]]:
    """What is written of a row, and the parts of it that carry loss."""
    codec = Codec(build_tokenizer(ByteTokenizer()), ChatOptions(template=template.replace("%%", "%")))
    ids, flags = codec.encode_example(example_of_row(row, answer))
    parts: list[list[int]] = []
    for place, (token, flag) in enumerate(zip(ids, flags, strict=True)):
        if flag and not (place and flags[place - 1]):
            parts.append([])
        if flag:
            parts[-1].append(token)
    return str(codec.tokenizer.decode(ids)), [str(codec.tokenizer.decode(part)) for part in parts]


def test_alpaca() -> None:
    row = {"instruction": "Translate.", "input": "House", "output": "Maison"}
    assert learned(row) == ("<user>Translate.\nHouse<eos><assistant>Maison<eos>", ["Maison<eos>"])
    assert learned({**row, "input": ""})[0].startswith("<user>Translate.<eos>")
    assert learned({**row, "input": None, "system": "", "history": []})[0].startswith("<user>Translate.<eos>")


def test_a_history_is_learned_with_the_answer_but_not_in_pairs() -> None:
    row = {
        "instruction": "3+3?",
        "output": "6",
        "system": "S",
        "history": [["2+2?", "4"]],
        "chosen": "6",
        "rejected": "7",
    }
    written = "<system>S<eos><user>2+2?<eos><assistant>4<eos><user>3+3?<eos><assistant>"
    assert learned(row) == (f"{written}6<eos>", ["4<eos>", "6<eos>"])
    assert learned(row, "rejected") == (f"{written}7<eos>", ["7<eos>"])
    with pytest.raises(OddRow, match="`history` is no list of questions with their answers"):
        learned({**row, "history": ["2+2?"]})
    with pytest.raises(OddRow, match="`input` is no text"):
        learned({**row, "input": 4})


def test_pairs_of_single_messages() -> None:
    row = {
        "conversations": [{"from": "human", "value": "2+2?"}],
        "chosen": {"from": "gpt", "value": "4"},
        "rejected": says("5"),
    }
    assert learned(row, "chosen") == ("<user>2+2?<eos><assistant>4<eos>", ["4<eos>"])
    assert learned(row, "rejected") == ("<user>2+2?<eos><assistant>5<eos>", ["5<eos>"])
    # Some have a whole conversation beside the pair.
    whole = {"messages": [user("a"), says("b")], "chosen": [user("a"), says("b")], "rejected": [user("a"), says("c")]}
    assert learned(whole, "rejected") == ("<user>a<eos><assistant>c<eos>", ["c<eos>"])


@pytest.mark.parametrize("mark", [{"train": False}, {"weight": 0}])
def test_turns_that_are_not_learned(mark: dict[str, Any]) -> None:
    chat = [user("a"), {**says("b"), **mark}, user("c"), {**says("d"), "train": True}]
    assert learned({"messages": chat})[1] == ["d<eos>"]
    shared = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b", **mark}, {"from": "gpt", "value": "c"}]
    assert learned({"conversations": shared})[1] == ["c<eos>"]


def test_what_cannot_be_learned_is_refused() -> None:
    with pytest.raises(OddRow, match="`train_detail`: a message is learned whole"):
        learned({"messages": [user("a"), {**says("b"), "train_detail": [{"begin_offset": 0}]}]})
    with pytest.raises(OddRow, match="only the assistant's are learned"):
        learned({"messages": [{**user("a"), "train": True}, says("b")]})
    old = {"role": "assistant", "content": None, "function_call": CALL}
    with pytest.raises(OddRow, match="a call is in `tool_calls`"):
        learned({"messages": [user("a"), old]})


@pytest.mark.parametrize("arguments", [CALL["arguments"], json.dumps(CALL["arguments"])], ids=["object", "json"])
@pytest.mark.parametrize("template", [AS_JSON, AS_TEXT, NEEDS_TEXT], ids=["as_json", "as_text", "needs_text"])
@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}], ids=["without", "null", "empty"])
def test_a_call_is_written_once_as_json(arguments: object, template: str, content: dict[str, Any]) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    chat = [
        user("a"),
        {"role": "assistant", **content, "tool_calls": [call]},
        {"role": "tool", "content": "sunny"},
        says("b"),
    ]
    written = '<user>a<eos><assistant>{"city": "Rome"}<eos><tool>sunny<eos><assistant>b<eos>'
    assert learned({"messages": chat}, template=template) == (written, ['{"city": "Rome"}<eos>', "b<eos>"])


@pytest.mark.parametrize("calls", [CALL, [CALL]])
def test_calls_of_sharegpt(calls: object) -> None:
    chat = [
        {"from": "human", "value": "a"},
        {"from": "function_call", "value": json.dumps(calls)},
        {"from": "observation", "value": "sunny"},
        {"from": "gpt", "value": "b"},
    ]
    written = '<user>a<eos><assistant>{"city": "Rome"}<eos><tool>sunny<eos><assistant>b<eos>'
    assert learned({"conversations": chat})[0] == written
    with pytest.raises(OddRow, match="'function_call' that is no JSON"):
        learned({"conversations": [chat[0], {"from": "function_call", "value": "weather(Rome)"}]})


def test_tools_of_sharegpt() -> None:
    tool = {"name": "weather", "description": "", "parameters": {}}
    assert tools_of({"tools": json.dumps([tool])}) == [{"type": "function", "function": tool}]
    assert tools_of({"tools": ""}) == tools_of({"tools": "[]"}) == ()
    kept = [{"type": "function", "function": tool}]
    assert tools_of({"tools": kept}) == kept


@pytest.mark.parametrize(
    ("row", "hint"),
    [
        ({"chosen": [user("a"), says("b")], "rejected": [user("a"), says("c")]}, 'encode(rows, answer="chosen")'),
        ({"question": "a", "solution": "b", "level": 1}, "encode(rows.question, rows.solution)"),
        (
            {"input": {"messages": [user("a")]}, "preferred_output": [says("b")]},
            "encode(rows.input.messages, rows.pref",
        ),
        ({"prompt": [system("a")], "extra_info": {"index": 1}}, "generate(rows.prompt, ...)"),
        ({"segments": [{"label": True, "text": "a"}]}, "encode(rows.prompt, rows.response)"),
    ],
)
def test_columns_that_encode_does_not_know_are_named_as_they_belong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: dict[str, Any], hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text(json.dumps(row) + "\n")
    lines = 'data rows = jsonl("rows.jsonl", batch=1)\nstep:\n    a = encode(rows)\n    report x = mean(actor.logprobs(a))\n'
    [found] = rlgraph.check(f'algorithm t\nmodel actor = causal_lm("m")\n{lines}')
    assert found.code == "E0771" and hint in found.hint
