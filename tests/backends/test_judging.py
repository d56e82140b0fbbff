"""Prompts that are too long: found before the first step, left out or cut, and never met in the midst of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scheduled import compiled
from tiny import run_text, weights

from rlgraph.backends.engines.tokenizers import ByteTokenizer, CharTokenizer, Codec, build_tokenizer
from rlgraph.backends.ray.backend import RayBackend
from rlgraph.backends.worker.prompt_limits import PromptLimit, apply_prompt_limits
from rlgraph.backends.worker.session import Settings
from rlgraph.data import BatchReader, Cursor, open_source
from rlgraph.errors import NO_SPAN, ProgramError, RunError
from rlgraph.user_code.files import SearchFolders
from rlgraph.user_code.spec import CallSpec

MODEL = f"algorithm t\nmodel actor = causal_lm({weights().replace('max_position_embeddings=64', 'max_position_embeddings=12')})\n"
STEP = """
step:
    rollout = actor.generate(prompts, max_tokens=4)
    report n = max(rollout.prompt.length)
"""
PROMPTS = ["ab", "abcdabcdabcd", "c", "abcdabcda", "d" * 8]
"""Of which two are longer than the 8 tokens that are left for a prompt."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = (json.dumps({"prompt": text}) + "\n" for text in PROMPTS)
    (tmp_path / "late.jsonl").write_text("".join(lines))
    return tmp_path


def program(options: str, step: str = STEP) -> str:
    return f'{MODEL}data prompts = jsonl("late.jsonl", shuffle=false{options})\n{step}'


def lengths(options: str, folder: Path, steps: int = 1, step: str = STEP) -> list[float]:
    return [seen.metrics["n"] for seen in run_text(program(options, step), folder, steps=steps)]


def refused(options: str, folder: Path, step: str = STEP) -> str:
    with pytest.raises(ProgramError) as error:
        run_text(program(options, step), folder)
    return str(error.value)


def test_the_host_of_a_run_on_ray_knows_how_long_a_row_may_be(folder: Path) -> None:
    """It has tokenizers alone: the models are in other processes."""
    schedule = "pool all = 1 devices\nplace actor on all(engine=transformers)\n"
    made = compiled(program(", batch=1"), {}, schedule, folder)
    with pytest.raises(ProgramError) as error:
        RayBackend(made.program, made.plan, Settings(folder=folder), debug=True)
    assert "error[E0748]: the prompt of prompts row 1 has 12 tokens" in str(error.value)


def test_the_last_row_is_judged_before_the_first_step(folder: Path) -> None:
    text = refused(", batch=1", folder)
    assert (
        "error[E0748]: the prompt of prompts row 1 has 12 tokens: with the 4 of `max_tokens` more it is longer" in text
    )
    assert "than the 12 that a row of `actor` may have (2 of the 5 rows of `prompts` are too long)" in text
    assert (
        "actor.generate(prompts, max_tokens=4)" in text
        and "`overlong=drop` or `overlong=cut` in `data prompts`" in text
    )


def test_what_the_program_says_is_shorter_than_what_the_model_takes(folder: Path) -> None:
    text = refused(", max_prompt=1", folder)
    assert "the prompt of prompts row 0 has 2 tokens, more than the 1 of `max_prompt` (4 of the 5 rows" in text
    assert "^^^^^^^^^^^^" in text


def test_rows_that_are_too_long_are_left_out(folder: Path) -> None:
    assert lengths(", overlong=drop, batch=1", folder, steps=4) == [2, 1, 8, 2]
    assert lengths(", overlong=drop", folder) == [8]
    assert lengths(", overlong=drop, max_prompt=2, batch=1", folder, steps=3) == [2, 1, 2]


def test_the_rows_that_are_left_have_to_be_enough(folder: Path) -> None:
    text = refused(", overlong=drop, batch=4", folder)
    assert "E0708" in text and "more than `prompts`, without 2 of the 5 rows of `prompts`, has: 3 rows" in text


def test_all_rows_may_be_too_long(folder: Path) -> None:
    (folder / "late.jsonl").write_text('{"prompt": "abcd"}\n')
    text = refused(", overlong=drop, max_prompt=3", folder)
    assert "E0707" in text and "the prompts of all rows of `prompts` are too long, and none is left" in text


def test_prompts_lose_their_beginning(folder: Path) -> None:
    assert lengths(", overlong=cut, batch=1", folder, steps=5) == [2, 8, 1, 8, 8]
    seen = run_text(program(", overlong=cut, max_prompt=3"), folder)[0]
    assert seen.metrics["n"] == 3
    made = f'{MODEL}data prompts = jsonl("late.jsonl", shuffle=false, overlong=cut, max_prompt=3)\n'
    kept = '\nstep:\n    report n = sum(prompts.prompt == "cda"), m = sum(prompts.prompt == "bcd"), o = sum(prompts.prompt == "ddd")\n'
    found = run_text(made + kept, folder)[0].metrics
    assert (found["n"], found["m"], found["o"]) == (1, 1, 1)


def test_limit_says_which_rows_are_judged(folder: Path) -> None:
    assert lengths(", limit=1", folder) == [2]


def test_who_leaves_rows_out_may_leave_out_the_long_ones(folder: Path) -> None:
    """What is asked is what `keep` leaves; a row that it lets through all the same is found when it is asked."""
    step = "\nstep:\n    keep prompts where prompts.prompt.length < {}\n    rollout = actor.generate(prompts, max_tokens=4)\n"
    step += "    report n = max(rollout.prompt.length)\n"
    assert lengths("", folder, step=step.format(9)) == [8]
    with pytest.raises(RunError, match="E0748"):
        lengths("", folder, step=step.format(20))


def test_another_column_is_judged_too(folder: Path) -> None:
    """A column of another name, or what the objects in one hold."""
    (folder / "late.jsonl").write_text('{"prompt": "a", "other": "abcdabcdabcd", "info": {"q": "abcdabcdabcd"}}\n')
    for column in ("other", "info.q"):
        step = STEP.replace("generate(prompts,", f"generate(prompts.{column},")
        assert "row 0 has 12 tokens" in refused("", folder, step)
    cut = STEP.replace("generate(prompts,", "generate(prompts.info.q,")
    cut = cut.replace("max(rollout.prompt.length)", "max(prompts.info.q.length) + 0 * max(rollout.length)")
    (folder / "late.jsonl").write_text('{"prompt": "a", "info": {"q": "abcdabcdabcd", "n": 1}}\n')
    assert lengths(", overlong=cut", folder, step=cut) == [8]


def test_two_models_and_the_lower_limit(folder: Path) -> None:
    longer = f"model other = causal_lm({weights(3)})\n"
    step = "\nstep:\n    a = other.generate(prompts, max_tokens=4)\n    b = actor.generate(prompts, max_tokens=4)\n"
    step += "    report n = mean(a.length) + mean(b.length)\n"
    with pytest.raises(ProgramError, match="a row of `actor` may have"):
        run_text(MODEL + longer + 'data prompts = jsonl("late.jsonl")\n' + step, folder)


def test_pairs_that_a_model_reads_are_judged_too(folder: Path) -> None:
    """What is too long is the prompt with its answer and the token that ends it."""
    rows = [{"prompt": "abcd", "response": "abcd"}, {"prompt": "abcdabcd", "response": "abcd"}]
    (folder / "sft.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    head = MODEL + 'data pairs = jsonl("sft.jsonl", shuffle=false{})\n'
    step = "step:\n    rows = encode(pairs.prompt, pairs.response)\n    train actor(lr=0.1):\n"
    step += "        minimize mean(-actor.logprobs(rows))\n    report n = max(pairs.prompt.length), rows = size(pairs.prompt.length)\n"
    with pytest.raises(ProgramError, match="pairs row 1 has 13 tokens in `prompt` and `response`, more than the 12"):
        run_text(head.format("") + step, folder)
    assert run_text(head.format(", overlong=drop") + step, folder)[0].metrics["rows"] == 1
    assert run_text(head.format(", overlong=cut") + step, folder)[0].metrics["n"] == 7


# By itself


def test_of_a_mixture_the_rows_that_are_too_long_are_left_out(folder: Path) -> None:
    """Its sources go on taking turns; none may be left without rows."""
    (folder / "more.jsonl").write_text('{"prompt": "abcdabcdabcd"}\n{"prompt": "abc"}\n')
    mixed = (
        'data a = jsonl("late.jsonl")\ndata prompts = mix(a, jsonl("more.jsonl"), weights=[0.75, 0.25], overlong=drop'
    )
    seen = run_text(f"{MODEL}{mixed}, batch=4, shuffle=false)\n{STEP}", folder, steps=2)
    assert [step.metrics["n"] for step in seen] == [8, 8], "of `late` there are rows of 2, 1 and 8 tokens"
    (folder / "more.jsonl").write_text('{"prompt": "abcdabcdabcd"}\n')
    with pytest.raises(ProgramError, match="E0707.*no row of one source is left"):
        run_text(f"{MODEL}{mixed}, batch=2)\n{STEP}", folder)


def source(folder: Path, lines: str, **options: object) -> BatchReader:
    (folder / "rows.jsonl").write_text(lines)
    spec = CallSpec("jsonl", ("rows.jsonl",), {"shuffle": False, **options}, NO_SPAN)
    return BatchReader(open_source(spec, SearchFolders(folder)), "q", 0)


def judged(reader: BatchReader, codec: Codec, most: int) -> list[str]:
    return apply_prompt_limits({"q": reader}, {"q": [PromptLimit("prompt", codec, most, NO_SPAN)]}, lambda text: None)


class Counting(Codec):
    """How many prompts were split into tokens."""

    counted = 0

    def prompt_lengths(self, prompts):  # type: ignore[no-untyped-def]
        self.counted += len(prompts)
        return super().prompt_lengths(prompts)


def test_short_texts_are_not_counted(tmp_path: Path) -> None:
    """A text has at most as many tokens as bytes: of a thousand rows one is looked at."""
    codec = Counting(build_tokenizer(ByteTokenizer()))
    lines = (
        "".join(json.dumps({"prompt": "a" * 10}) + "\n" for _ in range(999)) + json.dumps({"prompt": "é" * 150}) + "\n"
    )
    reader = source(tmp_path, lines, overlong="drop")
    assert judged(reader, codec, 299) == ["left out 1 of the 1,000 rows of `q`: their prompts are too long"]
    assert codec.counted == 1 and reader.source.row_count == 999
    assert judged(source(tmp_path, lines), codec, 5000) == [] and codec.counted == 1


def chat() -> Codec:
    codec = Codec(build_tokenizer(CharTokenizer("abcdesru:")))
    codec.tokenizer.chat_template = "{% for m in messages %}{{ m['role'][0] }}:{{ m['content'] }}{% endfor %}"
    return codec


def test_of_messages_the_last_of_the_user_is_cut(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "ab"},
        {"role": "user", "content": "abcdabcd"},
        {"role": "assistant", "content": "e"},
    ]
    reader = source(tmp_path, json.dumps({"prompt": messages}) + "\n", overlong="cut")
    assert judged(reader, chat(), 12) == ["cut the prompts of 1 of the 1 row of `q`, which are too long"]
    [row], _, _ = reader.read_batch(Cursor())
    assert row["prompt"] == [messages[0], {"role": "user", "content": "bcd"}, messages[2]]


def test_a_template_that_is_too_long_by_itself_cannot_be_cut(tmp_path: Path) -> None:
    reader = source(tmp_path, json.dumps({"prompt": [{"role": "user", "content": "ab"}]}) + "\n", overlong="cut")
    with pytest.raises(RunError, match="cannot be cut to 1 token"):
        judged(reader, chat(), 1)


def test_a_row_that_no_template_takes_is_named(tmp_path: Path) -> None:
    lines = (
        json.dumps({"prompt": [{"role": "user", "content": "ab"}]})
        + "\n"
        + json.dumps({"prompt": [{"role": "user", "text": 3}]})
        + "\n"
    )
    codec = chat()
    codec.tokenizer.chat_template = "{{ messages[0]['content'] + '' }}"
    with pytest.raises(ProgramError, match="the prompt of q row 1 cannot be used"):
        judged(source(tmp_path, lines), codec, 100)
