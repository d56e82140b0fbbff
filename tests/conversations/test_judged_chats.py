"""A model judges what was answered to chats: the conversation stands in a text, or the judge goes on with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from tiny import Run, Seen, compile_text

from rlgraph.backends.engines.tokenizers import ByteTokenizer, Codec, build_tokenizer
from rlgraph.conversations import OddRow, conversation_text
from rlgraph.errors import RlgraphError
from tests.conversations.files import says, system, user
from tests.conversations.test_agents import SHAPE, TEMPLATE

CALL = {"type": "function", "function": {"name": "search", "arguments": {"query": "雨"}}}
CHATS: list[object] = [
    [user("2+2?")],
    [system("Be brief."), user("2+2?")],
    [user("Hi"), says("Hello!"), user("3+3?")],
    "4+4?",
    [{"from": "human", "value": "5+5?"}],
]
WRITTEN = [
    "2+2?",
    "System: Be brief.\n\nUser: 2+2?",
    "User: Hi\n\nAssistant: Hello!\n\nUser: 3+3?",
    "4+4?",
    "5+5?",
]


def play(folder: Path, lines: str, chats: Sequence[object] = CHATS) -> Seen:
    tokenizer = build_tokenizer(ByteTokenizer())
    tokenizer.chat_template = TEMPLATE
    Codec(tokenizer).save(folder / "small")
    (folder / "chats.jsonl").write_text("".join(json.dumps({"prompt": chat}) + "\n" for chat in chats), "utf-8")
    text = f"""algorithm judged
param wish = "Is it right?"
model actor = causal_lm(random("qwen2", {SHAPE}, max_position_embeddings=512, tokenizer="small"))
data asked = jsonl("chats.jsonl", batch={len(chats)}, shuffle=false)
step:
    rollout = actor.generate(asked, n=2, max_tokens=6)
{lines}    report length = mean(verdict.length)
"""
    (seen,) = Run(compile_text(text), folder).steps(1)
    return seen


def test_a_conversation_stands_in_a_text(tmp_path: Path) -> None:
    lines = (
        '    verdict = actor.generate(user("Q: {asked.prompt}; A: {rollout.text}", system="Grade."), max_tokens=4)\n'
        '    aside   = contains("{asked.prompt:>60}.", "  2+2?.")\n    report aside = sum(aside)\n'
    )
    seen = play(tmp_path, lines)
    wanted = [f"Q: {WRITTEN[at // 2]}; A: {text}" for at, text in enumerate(seen.values["rollout.text"])]
    assert list(seen.values["verdict"].prompts) == [[system("Grade."), user(text)] for text in wanted]
    assert seen.metrics["aside"] == 1


def test_calls_and_roles_are_written() -> None:
    called = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    told = {"role": "tool", "name": "search", "content": "wet"}
    spoken = {"role": "assistant", "content": "I look.", "tool_calls": [CALL, {"function": {"name": "stop"}}]}
    assert conversation_text([user("Rain?"), called, told, spoken], "prompt") == (
        'User: Rain?\n\nAssistant: search({"query": "雨"})\n\nTool: wet\n\n'
        'Assistant: I look.\nsearch({"query": "雨"})\nstop({})'
    )
    assert conversation_text([says("4")], "prompt") == "Assistant: 4"
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert conversation_text([{"role": "user", "content": parts}], "prompt") == "ab"
    with pytest.raises(OddRow, match="no text: 'image'"):
        conversation_text([{"role": "user", "content": [{"type": "image"}]}], "prompt")


def test_a_picture_in_a_conversation_names_the_row(tmp_path: Path) -> None:
    odd = [{"role": "user", "content": [{"type": "image", "image": "a.png"}]}]
    lines = '    verdict = actor.generate("{asked.prompt}", max_tokens=4)\n'
    with pytest.raises(RlgraphError) as raised:
        play(tmp_path, lines, [*CHATS, odd])
    assert "a part that is no text: 'image'" in str(raised.value)


def test_messages_are_no_text_of_a_message(tmp_path: Path) -> None:
    with pytest.raises(RlgraphError) as raised:
        play(tmp_path, "    verdict = actor.generate(user(asked.prompt), max_tokens=4)\n")
    assert "E0872" in str(raised.value) and "these are messages already" in str(raised.value)


@pytest.mark.parametrize("question", ['"Is it right?"', "wish"])
def test_the_judge_goes_on_with_the_conversation(tmp_path: Path, question: str) -> None:
    """What a user says behind an answer is the same of all rows, and stands in the judge's chat template."""
    chats = [chat for chat in CHATS if not isinstance(chat, str)]
    seen = play(tmp_path, f"    verdict = actor.generate(row(rollout, user({question})), max_tokens=4)\n", chats)
    code = build_tokenizer(ByteTokenizer())
    asked, answers = seen.table("verdict"), seen.table("rollout")
    for tokens, flags, before in zip(asked.tokens, asked.scored, answers.tokens, strict=True):
        assert tokens[: len(before)] == before
        said = str(code.decode([token for token, own in zip(tokens, flags, strict=True) if not own][len(before) :]))
        assert said.removeprefix("<eos>") == "<user>Is it right?<eos><assistant>"


def test_a_system_message_of_all_rows_begins_them(tmp_path: Path) -> None:
    lines = '    hinted = row(user("Hm?", system="S"), rollout)\n    verdict = actor.generate(hinted, max_tokens=4)\n'
    seen = play(tmp_path, lines)
    assert list(seen.values["verdict"].prompts) == [[system("S"), user("Hm?")]] * (2 * len(CHATS))


def test_a_message_that_says_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RlgraphError, match="this message says nothing"):
        play(tmp_path, '    verdict = actor.generate(row(rollout, user("")), max_tokens=4)\n')
