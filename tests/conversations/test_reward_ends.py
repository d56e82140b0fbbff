"""A reward model reads a sampled answer as the chat template ends it: as the conversations that it was trained on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tiny import Run, Seen, compile_text

from rlgraph.backends.engines.tokenizers import CharTokenizer, Codec, build_tokenizer
from tests.conversations.files import says, system, user
from tests.conversations.test_agents import SHAPE, TEMPLATE

LINES = TEMPLATE.replace("+ eos_token", "+ eos_token + '\\n'")
"""As most templates: a line break stands behind the end of a turn, which a sampler does not write."""
CHATS = [[user("2+2?")], [system("Be brief."), user("Hi"), says("Hello!"), user("3+3?")], [user("Why?")]]
MODEL = f'{SHAPE}, max_position_embeddings=256, initializer_range=0.3, tokenizer="%s"'
LETTERS = "".join(
    sorted({*"<>?!.+-:' \n", *map(chr, range(48, 58)), *map(chr, range(65, 91)), *map(chr, range(97, 123))})
)


def program(folder: Path, lines: str) -> str:
    for name, letters in (("small", LETTERS), ("other", LETTERS[::-1])):
        tokenizer = build_tokenizer(CharTokenizer(letters))
        tokenizer.chat_template = LINES
        Codec(tokenizer).save(folder / name)
    (folder / "chats.jsonl").write_text(
        "".join(json.dumps({"prompt": chat, "chosen": [says("Yes")]}) + "\n" for chat in CHATS), "utf-8"
    )
    return f"""algorithm t
model actor  = causal_lm(random("qwen2", {MODEL % "small"}))
model reward = reward_lm(random("qwen2", seed=2, {MODEL % "small"}))
model other  = frozen(reward_lm(random("qwen2", seed=3, {MODEL % "other"})))
data chats   = jsonl("chats.jsonl", batch=3, shuffle=false)
step:
    rollout = actor.generate(chats, n=8, max_tokens=40)
    text    = rollout.text
    report finished = mean(rollout.finished), shown = mean(contains(text, "a"))
{lines}"""


def played(folder: Path, lines: str) -> tuple[Run, Seen]:
    run = Run(compile_text(program(folder, lines)), folder)
    return run, run.steps(1)[0]


def read(run: Run, name: str, ids: list[int]) -> float:
    with torch.no_grad():
        return float(run.models[name](torch.tensor([ids])).logits.flatten()[-1])


def whole(run: Run, name: str, chat: list[dict[str, str]], answer: str) -> list[int]:
    """The tokens of a conversation, as a model's template writes it."""
    codec = run.backend.session.models[name].engine.codec
    return list(codec.encode_text(str(codec.tokenizer.apply_chat_template([*chat, says(answer)], tokenize=False))))


def test_an_answer_is_read_as_the_template_ends_it(tmp_path: Path) -> None:
    """Whether it came to its end or was cut off, and by a model with another tokenizer."""
    lines = "    own   = reward.score(rollout)\n    score = other.score(rollout)\n"
    run, seen = played(tmp_path, lines + "    report own = mean(own), score = mean(score)\n")
    assert 0 < seen.metrics["finished"] < 1
    answers = list(zip([chat for chat in CHATS for _ in range(8)], seen.values["rollout.text"], strict=True))
    codec = run.backend.session.models["reward"].engine.codec
    end = codec.encode_text("<eos>\n")
    # The texts of tokens in the middle may leave some of them out.
    own = [ids + end[ids[-1] == end[0] :] for ids in seen.table("rollout").tokens]
    others = [whole(run, "other", chat, text) for chat, text in answers]
    for name, values, rows in (("reward", seen.values["own"], own), ("other", seen.values["score"], others)):
        wanted, bare = [read(run, name, ids) for ids in rows], [read(run, name, ids[:-1]) for ids in rows]
        assert values.tolist() == pytest.approx(wanted, abs=1e-5)
        assert max(abs(a - b) for a, b in zip(wanted, bare, strict=True)) > 0.01


def test_what_it_learned_from_is_read_as_it_is(tmp_path: Path) -> None:
    """A conversation that was encoded has all that the template writes; part of an answer has nothing behind it."""
    lines = '    own  = reward.score(rollout)\n    learned = reward.score(encode(chats, answer="chosen"))\n'
    lines += "    some = reward.score(prefix(rollout, tokens=2))\n"
    lines += "    all  = reward.score(prefix(rollout, tokens=40))\n"
    lines += "    report own = mean(own), some = mean(some), all = mean(all), learned = mean(learned)\n"
    run, seen = played(tmp_path, lines)
    wanted = [read(run, "reward", whole(run, "reward", chat, "Yes")) for chat in CHATS]
    assert seen.values["learned"].tolist() == pytest.approx(wanted, abs=1e-5)
    rollout = seen.table("rollout")
    starts = [flags.index(True) for flags in rollout.scored]
    some = [read(run, "reward", ids[: start + 2]) for ids, start in zip(rollout.tokens, starts, strict=True)]
    short = [flags.count(True) > 2 for flags in rollout.scored]
    assert any(short)
    for value, one, cut in zip(seen.values["some"].tolist(), some, short, strict=True):
        assert not cut or value == pytest.approx(one, abs=1e-5)
    finished = seen.values["rollout"].columns["finished"].tolist()
    for own, every, ended in zip(seen.values["own"].tolist(), seen.values["all"].tolist(), finished, strict=True):
        assert (own == pytest.approx(every, abs=1e-6)) == ended
