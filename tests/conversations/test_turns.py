"""Turns of an episode are written by the model's own chat template; what was sampled stays as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny import Run, Seen, compile_text

from rlgraph.backends.engines.errors import ConversationError
from rlgraph.backends.engines.tokenizers import ByteTokenizer, Codec, build_tokenizer
from rlgraph.backends.engines.turns import special_structure
from rlgraph.errors import RunError
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


@pytest.mark.parametrize("template", [OWN, DROPS])
def test_what_stands_between_turns_is_what_the_template_writes(template: str) -> None:
    """An episode of actions that end by themselves is the rendering of the whole conversation, token for token."""
    code = codec(template)
    asked, answers, actions = [user("Guess.")], ["More.", "Less <eos>.", ""], ["4", "", "a b"]
    tokens, messages = code.encode_prompt(asked), list(asked)
    for action, answer in zip(actions, answers, strict=True):
        tokens += code.encode_response(action)
        tokens += code.encode_turn(asked, tokens, [user(answer)])
        messages += [says(action), user(answer)]
    whole = code.encode_prompt(messages)
    assert tokens == whole
    assert special_structure(code.tokenizer, tokens) == special_structure(code.tokenizer, whole)


def test_an_action_that_was_cut_is_ended_and_thinking_stays_as_sampled() -> None:
    code = codec(DROPS)
    asked = [user("Guess.")]
    sampled = code.encode_text("<think>4?</think> 4")
    behind = code.encode_turn(asked, sampled, [user("More.")])
    assert code.tokenizer.decode(behind) == "<eos><user>More.<eos><assistant>"


@pytest.mark.parametrize(("template", "said"), [(LAST, "ends an answer"), (SILENT, "not once"), (TWICE, "special")])
def test_a_template_without_a_right_piece_is_refused(template: str, said: str) -> None:
    with pytest.raises(ConversationError, match=said) as caught:
        codec(template).encode_turn([user("Guess.")], [5], [user("More.")])
    assert caught.value.code == "E0860" and "turns=text" in caught.value.hint


def play(folder: Path, prompt: Any, first: str, answer: str, options: str = "") -> tuple[Seen, Codec]:
    codec(OWN).save(folder / "small")
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
