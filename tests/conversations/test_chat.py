"""How a model's conversations are written is an option of the model: `chat=chat(...)`."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from tiny import Run, Seen, compile_text
from transformers import AutoTokenizer

from rlgraph.backends.engines.chat import ChatOptions
from rlgraph.backends.engines.errors import ConversationError
from rlgraph.backends.engines.tokenizers import ByteTokenizer, Codec, build_tokenizer
from rlgraph.conversations import Example
from rlgraph.errors import ProgramError, RunError
from rlgraph.runs.checkpoint.outside_digests import file_digests
from tests.conversations.files import Row, says, system, user

SHAPE = "hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1"
OWN = (
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}{{ '<' + m.role + '>' + m.content + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% if enable_thinking is defined and not enable_thinking %}"
    "{{ '(no thinking)' }}{% endif %}{% endif %}"
)
MARKED = (
    "{% for m in messages %}{{ m.role[0] + ':' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'a:' }}{% endif %}"
)
ROWS: list[Row] = [
    {"prompt": [user("2+2?")], "completion": [says("4")], "tools": [{"name": "sum"}]},
    {"prompt": [system("No."), user("3+3?<eos>")], "completion": [says("6")], "tools": '[{"name": "sum"}]'},
]
STEP = """
step:
    rollout = actor.generate(rows, max_tokens=2)
    report n = mean(rollout.length)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tokenizer = build_tokenizer(ByteTokenizer())
    tokenizer.chat_template = OWN
    Codec(tokenizer).save(tmp_path / "small")
    write(tmp_path, ROWS)
    (tmp_path / "own.jinja").write_text(MARKED, "utf-8")
    return tmp_path


def write(folder: Path, rows: list[Row]) -> None:
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")


def program(chat: str, step: str = STEP, source: str = 'jsonl("rows.jsonl", batch=2') -> str:
    model = f'causal_lm(random("qwen2", {SHAPE}, max_position_embeddings=256, tokenizer="small"){chat})'
    return f"algorithm t\nmodel actor = {model}\ndata rows = {source}, shuffle=false)\n{step}"


def run(chat: str, folder: Path, step: str = STEP, **source: str) -> tuple[Seen, Codec]:
    made = Run(compile_text(program(chat, step, **source)), folder)
    codec = made.backend.session.models["actor"].engine.codec
    return made.steps(1)[0], codec


def asked(chat: str, folder: Path, step: str = STEP, **source: str) -> list[str]:
    """The prompts that the model was asked, as text."""
    seen, codec = run(chat, folder, step, **source)
    table = seen.table("rollout")
    prompts = [ids[: flags.index(True)] for ids, flags in zip(table.tokens, table.scored, strict=True)]
    return [codec.tokenizer.decode(prompt) for prompt in prompts]


TOOLS = '[{"name": "sum"}]'


def test_the_model_is_asked_as_its_options_say(folder: Path) -> None:
    plain = [f"{TOOLS}<user>2+2?<eos><assistant>", f"{TOOLS}<system>No.<eos><user>3+3?<eos><eos><assistant>"]
    assert asked("", folder) == plain
    assert asked(', chat=chat(system="Be brief.")', folder) == [
        plain[0].replace(TOOLS, f"{TOOLS}<system>Be brief.<eos>"),
        plain[1],
    ]
    assert asked(", chat=chat(enable_thinking=false)", folder) == [f"{text}(no thinking)" for text in plain]
    assert asked(', chat=chat(template="own.jinja")', folder) == ["u:2+2?a:", "s:No.u:3+3?<eos>a:"]


def test_a_special_token_in_a_message_is_one_where_an_option_says_so(folder: Path) -> None:
    def ends(chat: str) -> int:
        table = run(chat, folder)[0].table("rollout")
        return [token for token, flag in zip(table.tokens[1], table.scored[1], strict=True) if not flag].count(1)

    assert (ends(""), ends(", chat=chat(special_tokens=true)")) == (2, 3)


def test_a_last_message_of_the_assistants_is_gone_on_from_where_an_option_says_so(folder: Path) -> None:
    rows = [{"prompt": [user("2+2?"), says("It is ")]}, {"prompt": [user("3+3?")]}]
    write(folder, rows)
    option = ", chat=chat(continue_final_message=true)"
    begun = "<user>2+2?<eos><assistant>It is "
    assert asked(option, folder) == [begun, "<user>3+3?<eos><assistant>"]
    assert asked("", folder)[0] == f"{begun}<eos><assistant>"
    tokenizer = AutoTokenizer.from_pretrained(folder / "small")
    for chat, continues in (ChatOptions(continues=True), True), (ChatOptions(), False):
        own = tokenizer.apply_chat_template(
            rows[0]["prompt"], continue_final_message=continues, add_generation_prompt=not continues, return_dict=False
        )
        assert Codec(tokenizer, chat).encode_prompt(rows[0]["prompt"]) == own
    with pytest.raises(ProgramError, match="`chat_template_kwargs` has `continue_final_message`"):
        write(folder, [{**row, "chat_template_kwargs": {"continue_final_message": True}} for row in rows])
        run(option, folder)


def test_conversations_as_json_are_asked_as_messages(folder: Path) -> None:
    """Of a column that is called so, and of a csv file whose cells are JSON or what Python shows."""
    step = STEP.replace("rows, max", "rows.messages, max")
    write(folder, [{"messages": json.dumps([user("2+2?")])}] * 2)
    assert asked("", folder, step) == ["<user>2+2?<eos><assistant>"] * 2
    cells = [json.dumps([user("2+2?")]), str([user("3+3?"), says("It's")])]
    (folder / "rows.csv").write_text("prompt\n" + "".join('"' + cell.replace('"', '""') + '"\n' for cell in cells))
    assert asked("", folder, source='files("rows.csv", batch=2') == [
        "<user>2+2?<eos><assistant>",
        "<user>3+3?<eos><assistant>It's<eos><assistant>",
    ]


@pytest.mark.parametrize("template", [OWN, MARKED])
def test_turns_of_weight_0_are_not_learned(template: str) -> None:
    tokenizer = build_tokenizer(ByteTokenizer())
    tokenizer.chat_template = template
    said = [user("2+2?"), {**says("5"), "weight": 0}, user("No."), {**says("4"), "weight": 1}]
    ids, learned = Codec(tokenizer).encode_example(Example(said))
    plain, _ = Codec(tokenizer).encode_example(Example([user("2+2?"), says("5"), user("No."), says("4")]))
    kept = [token for token, loss in zip(ids, learned, strict=True) if loss]
    assert ids == plain and tokenizer.decode(kept, skip_special_tokens=True) == "4"
    with pytest.raises(ConversationError, match="no message of the assistant's to learn from"):
        Codec(tokenizer).encode_example(Example(said[:2]))


def test_an_episode_goes_on_from_a_last_message_too() -> None:
    tokenizer = build_tokenizer(ByteTokenizer())
    tokenizer.chat_template = OWN
    codec = Codec(tokenizer, ChatOptions(continues=True))
    prompt, replies = [user("2+2?"), says("It <eos> is ")], [[user("Sure?")], [user("Really?")]]
    written = codec.encode_prompt(prompt)
    written += codec.encode_between_answers(prompt, replies[:1]) + codec.encode_between_answers(prompt, replies)
    codec.check_episode(written, prompt, replies)
    assert codec.tokenizer.decode(written) == (
        "<user>2+2?<eos><assistant>It <eos> is <eos><user>Sure?<eos><assistant><eos><user>Really?<eos><assistant>"
    )


def test_what_is_learned_is_written_so_too_and_the_template_is_saved(folder: Path) -> None:
    step = """
step:
    answer = encode(rows)
    train actor(lr=0.1):
        minimize mean(-actor.logprobs(answer))
"""
    seen, codec = run(', chat=chat(template="own.jinja", system="x")', folder, step)
    table = seen.table("answer")
    assert codec.decode(table.tokens[0]) == "s:xu:2+2?a:4" and table.scored[0].count(True) == 1
    codec.save(folder / "saved")
    assert AutoTokenizer.from_pretrained(folder / "saved").chat_template == MARKED


def test_a_row_may_have_options_of_its_own(folder: Path) -> None:
    write(folder, [{**row, "chat_template_kwargs": {"enable_thinking": place > 0}} for place, row in enumerate(ROWS)])
    assert [text.endswith("(no thinking)") for text in asked("", folder)] == [True, False]


def test_a_judge_with_another_tokenizer(folder: Path) -> None:
    """Whoever reads the rows in other tokens writes them in its own template, from the conversation."""
    judge = build_tokenizer(ByteTokenizer())
    judge.add_tokens(["zz"])
    judge.chat_template = MARKED
    Codec(judge).save(folder / "judge")
    more = [*ROWS[0]["completion"], user("Why?"), says("I count.")]
    write(folder, [{**ROWS[0], "completion": more}, ROWS[1]])
    head = f'model judge = reward_lm(random("qwen2", {SHAPE}, tokenizer="judge"))\n'
    step = f"{head}\nstep:\n    answer = encode(rows)\n    train judge(lr=0.1):\n        minimize mean(judge.score(answer))\n"
    step += "    report n = mean(actor.logprobs(answer))\n"
    made = Run(compile_text(program("", step)), folder)
    read: list[Any] = []
    engine = made.backend.session.models["judge"].engine
    score = engine.score
    engine.score = lambda sequences, **options: read.append(sequences) or score(sequences, **options)  # type: ignore
    made.steps(1)
    texts = [engine.codec.tokenizer.decode(row) for row in read[0].rows()]
    assert texts == ["u:2+2?a:4u:Why?a:I count.", "s:No.u:3+3?<eos>a:6"]


# What is wrong with it


@pytest.mark.parametrize(
    ("chat", "text"),
    [
        ("chat(enable_thinkin=false)", "the chat template has no option `enable_thinkin`"),
        ('chat(template="no.jinja")', "there is no chat template 'no.jinja'"),
        ('chat(template="broken.jinja")', "the chat template is none: line 2: "),
        ("chat(tokenize=true)", "every chat template is given `tokenize` already"),
        ('"x"', "`chat` of `causal_lm` is how conversations are written"),
    ],
)
def test_a_chat_that_cannot_be_used(chat: str, text: str, folder: Path) -> None:
    (folder / "broken.jinja").write_text("{{ x }}\n{% if %}", "utf-8")
    with pytest.raises(ProgramError) as caught:
        run(f", chat={chat}", folder)
    said = str(caught.value)
    assert text in said and "^^^" in said and "Traceback" not in said
    assert "enable_thinkin`" not in said or "did you mean `enable_thinking`?" in said


def test_a_row_that_cannot_be_used_is_named_before_the_first_step(folder: Path) -> None:
    write(folder, [ROWS[0], {**ROWS[1], "tools": "hammer"}])
    with pytest.raises(
        ProgramError, match="E0732.*rows row 1 cannot be used: `tools` is no list of tools, and no JSON"
    ):
        run("", folder)
    write(folder, [ROWS[0], {**ROWS[1], "chat_template_kwargs": {"tokenize": True}}])
    with pytest.raises(ProgramError, match="`chat_template_kwargs` has `tokenize`, which every template is given"):
        run("", folder)
    write(folder, [ROWS[0], {"prompt": [user("a")], "completion": [user("b")]}])
    with pytest.raises(ProgramError, match="E0772.*rows row 1 cannot be used: it has no message of the assistant's"):
        run("", folder, "step:\n    a = encode(rows)\n    report n = mean(actor.logprobs(a))\n")


def test_rows_that_come_one_by_one_are_refused_when_they_come(folder: Path) -> None:
    (folder / "rows.py").write_text(
        "def rows():\n    yield {'messages': [{'role': 'user', 'content': 'a'}]}\n", "utf-8"
    )
    text = program("", "step:\n    a = encode(rows)\n    report n = mean(actor.logprobs(a))\n")
    text = text.replace('jsonl("rows.jsonl", batch=2, shuffle=false)', 'python("rows.py:rows", batch=1)')
    with pytest.raises(RunError, match="E0772.*rows row 0 cannot be used: it has no message of the assistant's"):
        Run(compile_text(text), folder).steps(1)
    (folder / "rows.py").write_text("def rows():\n    yield {'question': 'a'}\n", "utf-8")
    with pytest.raises(RunError, match="E0771.*rows row 0 cannot be encoded: it has no `messages`"):
        Run(compile_text(text), folder).steps(1)


def test_a_template_is_one_of_the_files_of_a_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import rlgraph

    monkeypatch.chdir(folder)
    (folder / "t.rlf").write_text(program(', chat=chat(template="own.jinja")'), "utf-8")
    compiled = rlgraph.compile("t.rlf")
    before = file_digests(compiled)["actor"]
    (folder / "own.jinja").write_text(MARKED + " ", "utf-8")
    assert file_digests(compiled)["actor"]["own.jinja"] != before["own.jinja"]


def test_the_error_travels_between_processes() -> None:
    error = pickle.loads(pickle.dumps(ConversationError("a", "E0770", "b")))
    assert (str(error), error.code, error.hint) == ("a", "E0770", "b")


def test_a_template_without_options_is_not_parsed() -> None:
    tokenizer = build_tokenizer(ByteTokenizer())
    tokenizer.chat_template = "{% if %}"
    Codec(tokenizer, ChatOptions(system="x"))


def test_the_last_turn_of_a_template_that_forgets(folder: Path) -> None:
    """What the run looks at before its first step is what it learns."""
    forgets = OWN.replace("m.content", "(m.content if loop.last else m.content[-1:])")
    (folder / "forgets.jinja").write_text(forgets, "utf-8")
    write(folder, [{"messages": [user("a"), says("1+1=2"), user("b"), says("2+2=4")]}] * 2)
    chat, step = (
        ', chat=chat(template="forgets.jinja")',
        "step:\n    a = encode(rows{})\n    report n = sum(a.length)\n",
    )
    step += "    report p = mean(actor.logprobs(a))\n"
    with pytest.raises(ProgramError, match="E0770.*rows row 0 cannot be used: the chat template writes its first 2"):
        run(chat, folder, step.format(""))
    seen, codec = run(chat, folder, step.format(", turns=last"))
    table = seen.table("a")
    assert codec.tokenizer.decode(table.tokens[0]) == "<user>a<eos><assistant>2<eos><user>b<eos><assistant>2+2=4<eos>"
    assert seen.metrics["n"] == 2 * len("2+2=4.")


def test_conversations_that_are_too_long_are_left_out_or_cut(folder: Path) -> None:
    """The model takes 256 tokens. What is cut is the last message of the user's."""
    long = "b" * 300
    rows: list[Row] = [
        {"messages": [user("a"), says("ok")]},
        {"messages": [user("a"), says("ok"), user(f"{long}!"), says("fine")]},
    ]
    step = "step:\n    a = encode(rows)\n    report n = mean(actor.logprobs(a))\n"

    def learned(options: str) -> list[str]:
        text = program("", step).replace("batch=2", f"batch=1, {options}")
        made = Run(compile_text(text), folder)
        codec = made.backend.session.models["actor"].engine.codec
        return [codec.tokenizer.decode(seen.table("a").tokens[0]) for seen in made.steps(2)]

    write(folder, rows)
    with pytest.raises(ProgramError, match=r"E0748.*rows row 1 has 3\d\d tokens in `messages`, more than the 256"):
        learned("limit=2")
    short = "<user>a<eos><assistant>ok<eos>"
    assert learned("overlong=drop") == [short, short]
    assert len(codec_tokens := learned("overlong=cut")[1]) < 300 and codec_tokens.startswith(f"{short}<user>bbb")
    assert codec_tokens.endswith("b!<eos><assistant>fine<eos>")
    with pytest.raises(ProgramError, match=r"rows row 0 has 2\d tokens in `messages`, more than the 4 of `max_prompt`"):
        learned("max_prompt=4")
    write(folder, [{"chosen": row["messages"], "rejected": row["messages"]} for row in rows])
    step = step.replace("encode(rows)", 'encode(rows, answer="chosen")')
    with pytest.raises(RunError, match="cannot be cut: two conversations begin with it"):
        learned("overlong=cut")
