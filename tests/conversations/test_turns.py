"""Turns of an episode are written by the model's own chat template; what was sampled stays as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from tiny import Run, Seen, compile_text

from rlgraph.backends.engines.errors import ConversationError
from rlgraph.backends.engines.tokenizers import ByteTokenizer, Codec, build_tokenizer, special_tokens_in
from rlgraph.backends.engines.turns import without_end_of_turn
from rlgraph.backends.worker.action_sampling import SampledTurn
from rlgraph.backends.worker.growing_episode import GrowingEpisode
from rlgraph.errors import ProgramError, RunError
from rlgraph.ir.graph import Node
from tests.conversations.files import says, user

SHAPE = "hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1"
OWN = (
    "{% for m in messages %}{{ '<' + m.role + '>' + m.content + eos_token + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
DROPS = (
    "{% for m in messages %}{% set said = m.content.split('</think>')[-1].strip() %}"
    "{{ '<' + m.role + '>' + (said if m.role == 'assistant' and not loop.last else m.content) + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
ADDS = "{% if messages[0].role != 'system' %}{{ '<system>Be kind.' + eos_token }}{% endif %}" + OWN
TRIMS = OWN.replace("m.content", "(m.content | trim)")
ONCE = (
    "{% set tools = namespace(begun=false) %}{% for m in messages %}"
    "{% if m.role == 'tool' and not tools.begun %}{{ unk_token }}{% set tools.begun = true %}{% endif %}"
    "{{ '<' + m.role + '>' + m.content + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
LAST = (
    "{% for m in messages %}{{ '<' + m.role + '>' + m.content }}{% if loop.last %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
SILENT = "{% for m in messages if m.role != 'assistant' %}{{ m.content }}{% endfor %}"
TWICE = "{{ eos_token * (messages | length) }}{% for m in messages %}{{ m.content + '.' }}{% endfor %}"

ENVIRONMENT = """
class Game:
    def reset(self, row):
        return FIRST

    def step(self, action):
        return ANSWER, 1.0, False
"""


def codec(template: str) -> Codec:
    tokenizer = build_tokenizer(ByteTokenizer())
    tokenizer.chat_template = template
    return Codec(tokenizer)


def episode(
    code: Codec, asked: list[dict[str, str]], pairs: list[tuple[str, list[dict[str, str]]]]
) -> tuple[list[int], list[int]]:
    """The tokens of an episode of actions that end by themselves, and those of its whole conversation."""
    tokens, messages = code.encode_prompt(asked), list(asked)
    written, replies = list(tokens), []
    for action, reply in pairs:
        tokens += code.encode_response(action)
        replies.append(reply)
        piece = code.encode_between_answers(asked, replies)
        written += piece
        tokens += without_end_of_turn(piece, tokens)
        messages += [says(action), *reply]
    code.check_episode(written, asked, replies)
    return tokens, code.encode_prompt(messages)


@pytest.mark.parametrize("template", [OWN, DROPS, ADDS, TRIMS, ONCE])
@pytest.mark.parametrize("role", ["user", "tool"])
def test_what_stands_between_turns_is_what_the_template_writes(template: str, role: str) -> None:
    """An episode is the rendering of the whole conversation, token for token."""
    code = codec(template)
    texts = [("4", "More."), ("", "Less <eos>."), ("a b", ""), ("ü", "  \n🙂")]
    tokens, whole = episode(code, [user("Guess.")], [(a, [{"role": role, "content": b}]) for a, b in texts])
    assert tokens == whole


@pytest.mark.parametrize(
    ("template", "sampled", "written"), [(DROPS, "<think>4?</think> 4", "4"), (TRIMS, " 4\n", "4")]
)
def test_a_template_that_rewrites_an_answer_leaves_what_was_sampled(template: str, sampled: str, written: str) -> None:
    """Only the answer differs from the rendering of the whole conversation: special tokens are the same."""
    code = codec(template)
    tokens, whole = episode(code, [user("Guess.")], [(sampled, [user("More.")]), (sampled, [user("Less.")])])
    texts = [str(code.tokenizer.decode(ids)) for ids in (tokens, whole)]
    assert texts[0] != texts[1] == texts[0].replace(sampled, written)
    assert special_tokens_in(code.tokenizer, tokens) == special_tokens_in(code.tokenizer, whole)


def test_a_reply_that_the_template_leaves_out_is_refused() -> None:
    choosy = codec(OWN.replace("for m in messages", "for m in messages if m.role != 'developer'"))
    asked, reply = [user("Guess.")], [{"role": "developer", "content": "More."}]
    choosy.encode_between_answers(asked, [[user("More.")]])
    with pytest.raises(ConversationError, match=r'leaves out the text of message 1 \(role "developer"\)') as caught:
        choosy.encode_between_answers(asked, [reply])
    assert caught.value.code == "E0860"
    codec(OWN).encode_between_answers(asked, [reply])


def test_an_episode_that_is_not_its_conversation_is_refused() -> None:
    code = codec(OWN)
    with pytest.raises(ConversationError, match="whole conversation") as caught:
        code.check_episode(code.encode_prompt([user("Guess.")]), [user("Guess.")], [[user("More.")]])
    assert caught.value.code == "E0862"


def test_an_action_that_was_cut_is_ended_and_thinking_stays_as_sampled() -> None:
    code = codec(DROPS)
    asked = [user("Guess.")]
    sampled = code.encode_text("<think>4?</think> 4")
    behind = without_end_of_turn(code.encode_between_answers(asked, [[user("More.")]]), sampled)
    assert code.tokenizer.decode(behind) == "<eos><user>More.<eos><assistant>"


@pytest.mark.parametrize(("template", "said"), [(LAST, "ends an answer"), (SILENT, "not once"), (TWICE, "special")])
def test_a_template_without_a_right_piece_is_refused(template: str, said: str) -> None:
    with pytest.raises(ConversationError, match=said) as caught:
        codec(template).encode_between_answers([user("Guess.")], [[user("More.")]])
    assert caught.value.code == "E0860" and "turns=text" in caught.value.hint


def play(
    folder: Path, prompt: Any, first: str, answer: str, options: str = "", template: str = OWN
) -> tuple[Seen, Codec]:
    codec(template).save(folder / "small")
    (folder / "rows.jsonl").write_text(json.dumps({"prompt": prompt}) + "\n", "utf-8")
    (folder / "game.py").write_text(ENVIRONMENT.replace("FIRST", first).replace("ANSWER", answer), "utf-8")
    text = f"""algorithm t
model actor = causal_lm(random("qwen2", {SHAPE}, max_position_embeddings=2048, tokenizer="small"))
data rows = jsonl("rows.jsonl", batch=1)
env game = python("game.py:Game")
step:
    episode = actor.interact(game, rows, n=2, max_turns=3, max_tokens=1500{options})
    report n = mean(episode.turns)
"""
    run = Run(compile_text(text), folder)
    return run.steps(1)[0], run.backend.session.models["actor"].engine.codec


def bare(seen: Seen, code: Codec) -> str:
    """What carries no loss in the first episode, as text."""
    table = seen.table("episode")
    free = [token for token, scored in zip(table.tokens[0], table.scored[0], strict=True) if not scored]
    return str(code.tokenizer.decode(free))


def test_an_episode_has_turns_and_plain_text_where_it_is_asked_for(tmp_path: Path) -> None:
    seen, code = play(tmp_path, [user("Guess.")], "None", '{"role": "tool", "content": "More."}')
    text = bare(seen, code).replace("<eos>", "")
    assert text.startswith("<user>Guess.\n<assistant>") and "\n<tool>More.\n<assistant>" in text
    seen, code = play(tmp_path, [user("Guess.")], "None", '"More."', ", turns=text")
    assert "<user>More." not in bare(seen, code) and "More." in bare(seen, code)


def test_a_text_is_not_answered_with_messages(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="E0861"):
        play(tmp_path, "Guess.", '[{"role": "user", "content": "?"}]', '"More."')


@pytest.mark.parametrize("asked", [[user("Guess.")], [{"role": "system", "content": "Be kind."}]])
def test_a_template_without_a_right_piece_is_refused_before_the_first_step(
    asked: list[Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ProgramError, match=r"E0860.*rows row 0 cannot be written by `actor`"):
        play(tmp_path, asked, "print('began')", '"More."', template=LAST)
    assert capfd.readouterr().out.count("began") == 1, "where it was tried"
    play(tmp_path, asked, '"?"', '"More."', ", turns=text", template=LAST)


def test_the_first_episodes_are_compared_with_their_conversations(tmp_path: Path) -> None:
    """This template writes all turns alike, and a whole conversation otherwise."""
    template = "{% if not add_generation_prompt %}{{ unk_token }}{% endif %}" + OWN
    with pytest.raises(RunError, match="E0862.*turn by turn '<user>Guess.*, whole '<unk><user>Guess"):
        play(tmp_path, [user("Guess.")], "None", '"More."', template=template)


@pytest.mark.parametrize(
    ("answer", "written"),
    [('""', "\n<user>\n<assistant>"), ("None", "\n<user>\n<assistant>"), ("[]", "\n<assistant>")],
)
def test_an_empty_observation_is_an_empty_turn_and_no_messages_let_the_model_go_on(
    answer: str, written: str, tmp_path: Path
) -> None:
    seen, code = play(tmp_path, [user("Guess.")], "None", answer)
    assert bare(seen, code).replace("<eos>", "") == f"<user>Guess.\n<assistant>{written * 2}"


def test_an_end_that_was_sampled_is_not_written_again() -> None:
    """An episode of a run, answer by answer, is the rendering of its conversation."""
    code, asked = codec(OWN), [user("Guess.")]
    node = cast(Node, None)
    growing = GrowingEpisode(node, "row 0", code, code.encode_prompt(asked), asked, True, (), {}, False)
    for action in ("4", "5"):
        ids = code.encode_response(action)
        assert growing.add_action(SampledTurn(ids, [0.0] * len(ids), ((0, len(ids)),), True)) == action
        growing.record_tool_calls(())
        growing.add_observation("More.", 1000)
    said = [says("4"), user("More."), says("5"), user("More.")]
    assert growing.tokens == code.encode_prompt([*asked, *said])
    assert growing.function_arguments() == {"messages": said, "calls": []}
    assert sum(growing.scored) == len(growing.logprobs) == 4
    growing.check_special_tokens()
    left = growing.tokens_left(1000)
    growing.add_observation("x" * left, 1000)
    assert growing.full and not growing.over and growing.tokens_left(1000) == 0 and len(growing.replies) == 2


def test_a_token_keeps_the_experts_that_it_was_first_read_with() -> None:
    """What a turn reads again, perhaps with newer weights, says nothing of the tokens before it."""
    growing = GrowingEpisode(cast(Node, None), "row 0", codec(OWN), [5, 6], "", False, (), {}, False)

    def turn(ids: list[int], expert: int) -> None:
        routes = torch.full((len(growing.tokens) + len(ids), 2, 1), expert, dtype=torch.int16)
        routes[-1] = -1
        growing.add_action(SampledTurn(ids, [0.0] * len(ids), ((0, len(ids)),), True, routes))

    turn([7, 8], 1)
    growing.observe_tokens([9, 9], 100)
    other = growing.fork()
    turn([7], 2)
    assert growing.routes is not None and growing.routes[:, 1, 0].tolist() == [1, 1, 1, 2, 2, 2, -1]
    # A line that goes on otherwise has experts of its own.
    growing = other
    turn([7, 7], 3)
    assert growing.routes is not None and growing.routes[:, 0, 0].tolist() == [1, 1, 1, 3, 3, 3, 3, -1]
