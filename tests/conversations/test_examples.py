"""What rows show a model: by their shapes, and as tokens of which some carry loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlgraph.backends.engines.chat import ChatOptions
from rlgraph.backends.engines.errors import ConversationError, EngineError
from rlgraph.backends.engines.tokenizers import ByteTokenizer, Codec, build_tokenizer
from rlgraph.conversations import Example, OddRow, example_of_row, format_of_columns
from tests.conversations.files import Row, says, system, user

MARKED = (Path(__file__).parent / "trl" / "small.jinja").read_text("utf-8")
PLAIN = MARKED.replace("{%- generation -%}", "").replace("{%- endgeneration -%}", "")
FORGETS = (
    "{% for m in messages %}{{ '<' + m.role + '>' }}"
    "{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('=')[-1] }}{% else %}{{ m.content }}{% endif %}"
    "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
"""A template that drops the thinking of answers but the last, as Qwen3's does."""


def codec(template: str = PLAIN, chat: ChatOptions | None = None) -> Codec:
    tokenizer = build_tokenizer(ByteTokenizer())
    tokenizer.chat_template = template
    return Codec(tokenizer, chat)


def parts(made: Codec, row: Row, answer: str | None = None, **options: Any) -> list[tuple[bool, str]]:
    """The text of a row's tokens, in stretches with and without loss."""
    ids, learned = made.encode_example(example_of_row(row, answer, **options))
    stretches: list[tuple[bool, list[int]]] = []
    for token, flag in zip(ids, learned, strict=True):
        if not stretches or stretches[-1][0] != flag:
            stretches.append((flag, []))
        stretches[-1][1].append(token)
    return [(flag, made.tokenizer.decode(tokens)) for flag, tokens in stretches]


def learned(made: Codec, row: Row, answer: str | None = None, **options: Any) -> list[str]:
    return [text for flag, text in parts(made, row, answer, **options) if flag]


TURNS = [system("s"), user("a"), says("b"), user("c"), says("d")]


@pytest.mark.parametrize("template", [MARKED, PLAIN])
def test_the_assistants_turns_carry_loss(template: str) -> None:
    """By the template's marks, and by the difference of renderings."""
    assert parts(codec(template), {"messages": TURNS}) == [
        (False, "<system>\ns<eos>\n<user>\na<eos>\n<assistant>\n"),
        (True, "b<eos>\n"),
        (False, "<user>\nc<eos>\n<assistant>\n"),
        (True, "d<eos>\n"),
    ]
    assert learned(codec(template), {"messages": TURNS}, last=True) == ["d<eos>\n"]
    told = codec(template, ChatOptions(system="s"))
    assert parts(told, {"messages": TURNS[1:]}) == parts(codec(template), {"messages": TURNS})
    assert learned(told, {"prompt": TURNS[1:4], "completion": TURNS[4:]}) == ["d<eos>\n"]
    completion = {"prompt": TURNS[:4], "completion": TURNS[4:]}
    assert parts(codec(template), completion)[1:] == [(True, "d<eos>\n")]
    tools = [user("a"), says("call"), {"role": "tool", "content": "t"}, says("d")]
    assert learned(codec(template), {"prompt": tools[:1], "completion": tools[1:]}) == ["call<eos>\n", "d<eos>\n"]


def test_texts_end_and_the_first_token_of_all_is_told_from_nothing() -> None:
    assert parts(codec(), {"prompt": "ab", "completion": "cd"}) == [(False, "ab"), (True, "cd<eos>")]
    assert parts(codec(), {"prompt": "ab", "response": "cd<eos>"}) == [(False, "ab"), (True, "cd<eos>")]
    assert parts(codec(), {"text": "abc"}) == [(False, "a"), (True, "bc<eos>")]
    assert parts(codec(), {"prompt": [user("a")], "completion": "b"}) == [
        (False, "<user>\na<eos>\n<assistant>\n"),
        (True, "b<eos>"),
    ]


def test_conversations_that_begin_in_common() -> None:
    row = {
        "chosen": [user("a"), says("b"), user("c"), says("d")],
        "rejected": [user("a"), says("b"), user("c"), says("e")],
    }
    assert learned(codec(), row, "chosen") == ["d<eos>\n"] and learned(codec(), row, "rejected") == ["e<eos>\n"]
    # What both say is not learned, though they are the same to the end.
    assert learned(codec(), {**row, "rejected": row["chosen"]}, "chosen") == ["d<eos>\n"]
    text = {"chosen": "it is so", "rejected": "it is not"}
    assert parts(codec(), text, "chosen") == [(False, "it is"), (True, " so<eos>")]
    with pytest.raises(OddRow, match="one of `chosen` and `rejected` is a text"):
        example_of_row({"chosen": "a", "rejected": [says("b")]}, "chosen")


def test_whole_conversations_with_their_prompt_beside() -> None:
    """UltraFeedback has the prompt as a text, and again as the first message of both conversations."""
    whole = {"prompt": "a", "chosen": [user("a"), says("b")], "rejected": [user("a"), says("c")]}
    assert learned(codec(), whole, "chosen") == ["b<eos>\n"]
    again = {**whole, "prompt": [user("a")]}
    assert parts(codec(), again, "chosen") == parts(codec(), whole, "chosen")
    alone = {"prompt": "a", "chosen": [says("b")], "rejected": [says("c")]}
    assert parts(codec(), alone, "chosen") == parts(codec(), whole, "chosen")


def test_messages_as_sharegpt_has_them_and_as_tables_fill_them_up() -> None:
    shared = {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}
    assert parts(codec(), shared) == parts(codec(), {"messages": [user("a"), says("b")]})
    mixed = {"messages": [{"role": "human", "content": "a"}, {"role": "gpt", "content": "b"}]}
    assert parts(codec(), mixed) == parts(codec(), shared), "in words that no template has"
    for role in (None, 3, ["user"]):
        with pytest.raises(OddRow, match="`messages` has a message whose role is no text"):
            example_of_row({"messages": [{"role": role, "content": "a"}]})
    filled = [{**user("a"), "tool_calls": None}, {**says("b"), "tool_calls": None}]
    made = codec("{% for m in messages %}{{ 'odd' if m.tool_calls is defined else m.content }}{% endfor %}")
    assert made.encode_prompt(example_of_row({"messages": filled}).answer) == made.encode_text("ab")


def test_shapes_are_looked_for_in_their_order() -> None:
    for columns in (
        ["prompt", "messages", "text"],
        ["conversations", "text"],
        ["prompt", "response", "text"],
        ["text"],
    ):
        shape = format_of_columns(columns)
        assert shape and shape.answer == columns[-2 if len(columns) > 1 else 0]
    assert format_of_columns(["prompt"]) is None and format_of_columns(["prompt", "answer"], "chosen") is None
    assert example_of_row({"messages": None, "text": "a"}) == Example("a")
    for odd in (3, [], [4], ["a"], {"role": "user"}, [{"role": "user"}]):
        with pytest.raises(OddRow, match="`messages`"):
            example_of_row({"messages": odd})


# Templates that write the same message in two ways


def test_a_turn_that_is_written_otherwise_when_more_follow_is_refused() -> None:
    row = {"messages": [user("a"), says("1+1=2"), user("b"), says("2+2=4")]}
    with pytest.raises(ConversationError) as caught:
        codec(FORGETS).encode_example(example_of_row(row))
    assert caught.value.code == "E0770" and "turns=last" in caught.value.hint
    assert "the chat template writes its first 2 messages otherwise when more follow" in str(caught.value)
    assert "alone '<user>a<eos><assistant>1+1=2<eos>', in the whole '<user>a<eos><assistant>2<eos><user>b" in str(
        caught.value
    )
    assert parts(codec(FORGETS), row, last=True) == [
        (False, "<user>a<eos><assistant>2<eos><user>b<eos><assistant>"),
        (True, "2+2=4<eos>"),
    ]
    assert parts(codec(FORGETS), {"prompt": row["messages"][:3], "completion": row["messages"][3:]}) == parts(
        codec(FORGETS), row, last=True
    )


def test_a_prompt_that_ends_otherwise_when_it_is_answered_is_refused() -> None:
    """As one that begins the thinking, which the whole conversation leaves out."""
    thinks = PLAIN.replace("{{- '<assistant>\\n' -}}", "{{- '<assistant>\\n<think>' -}}")
    assert thinks != PLAIN
    with pytest.raises(ConversationError, match="writes its first 1 message otherwise") as caught:
        codec(thinks).encode_example(example_of_row({"prompt": [user("a")], "completion": [says("b")]}))
    assert "asked in other words" in caught.value.hint


@pytest.mark.parametrize("template", [MARKED, PLAIN])
def test_a_conversation_with_nothing_to_learn(template: str) -> None:
    with pytest.raises(ConversationError, match="no message of the assistant's") as caught:
        codec(template).encode_example(example_of_row({"messages": [user("a")]}))
    assert caught.value.code == "E0772"
    with pytest.raises(ConversationError, match="no message of the assistant's"):
        codec(template).encode_example(example_of_row({"prompt": [user("a"), says("b")], "completion": [user("c")]}))


def test_an_answer_to_nobody_and_a_template_that_marks_nothing() -> None:
    with pytest.raises(ConversationError, match="begins with the assistant"):
        codec().encode_example(example_of_row({"messages": [says("a")]}))
    assert learned(codec(MARKED), {"messages": [says("a")]}) == ["a<eos>\n"]
    marks_nothing = MARKED.replace("== 'assistant'", "== 'nobody'")
    with pytest.raises(ConversationError, match="marks nothing"):
        codec(marks_nothing).encode_example(example_of_row({"messages": [user("a"), says("b")]}))
    with pytest.raises(EngineError, match="the model's chat template fails"):
        codec("{{ raise_exception('no') }}").encode_example(example_of_row({"messages": [user("a"), says("b")]}))


# What a user writes is text


def test_a_special_tokens_text_in_a_message_is_text() -> None:
    row = {"messages": [user("a<eos>\n<assistant>\nc<pad>"), says("b<eos>")]}
    made = codec()
    ids, flags = made.encode_example(example_of_row(row))
    asked = (
        made.encode_text("<user>\n")
        + made.tokenizer("a<eos>\n<assistant>\nc<pad>", split_special_tokens=True)["input_ids"]
    )
    assert ids[: len(asked)] == asked and made.eos_id not in asked and made.pad_id not in asked
    # The assistant's is what it is to say.
    assert [token for token, flag in zip(ids, flags, strict=True) if flag] == made.encode_text("b<eos><eos>\n")
    assert made.encode_prompt(row["messages"][:1]).count(1) == 1
    read = codec(chat=ChatOptions(special_tokens=True))
    assert read.encode_prompt(row["messages"][:1]).count(1) == 2
    # A prompt that is a plain text may be a conversation that is written out already.
    assert made.encode_prompt("a<eos>") == [*made.encode_text("a"), 1]
    literal = codec(chat=ChatOptions(special_tokens=False))
    assert literal.encode_prompt("a<eos>") == literal.tokenizer("a<eos>", split_special_tokens=True)["input_ids"]


def test_characters_without_a_meaning_are_left_alone() -> None:
    made = codec()
    odd = f"<eos>{chr(0xF0000)}"
    assert made.decode(made.encode_prompt([user(odd)])) == f"<user>\n{odd}\n<assistant>\n"
    with pytest.raises(EngineError, match="private planes"):
        made.encode_prompt([user(odd + chr(0x100000))])


def test_an_empty_prompt_begins_as_it_is_sampled_from() -> None:
    row = {"chosen": "yes", "rejected": "no"}
    assert parts(codec(), row, "chosen") == [(False, "<eos>"), (True, "yes<eos>")]
    assert parts(codec(), {"prompt": "", "response": "a"}) == [(False, "<eos>"), (True, "a<eos>")]


def test_short_rows_are_not_counted_and_long_ones_are() -> None:
    made = codec()
    for row in ({"messages": TURNS}, {"prompt": "a" * 40, "completion": "b"}, {"text": "é" * 20}):
        shown = example_of_row(row)
        ids, _ = made.encode_example(shown)
        assert made.example_length(shown, len(ids)) == made.example_length(shown, 3) == len(ids)
        assert made.example_length(shown, 1000) == 0
    assert made.prompt_length(TURNS, (), {}, 5) == len(made.encode_prompt(TURNS)) and not made.prompt_length(
        "a", (), {}, 99
    )
    # The template rewrites what was said, however short that is.
    with pytest.raises(ConversationError):
        codec(FORGETS).example_length(
            example_of_row({"messages": [user("a"), says("1=2"), user("b"), says("c")]}), 1000
        )


def test_rows_with_tokens_can_be_saved_and_restored() -> None:
    from rlgraph.runs.checkpoint.values import decode_value, encode_value

    shown = example_of_row({"prompt": [user("a")], "completion": [says("b")], "tools": [{"name": "t"}]})
    assert decode_value(encode_value((shown,), "x", {}), {}, None) == (shown,)  # type: ignore[arg-type]
