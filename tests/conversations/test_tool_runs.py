"""A run with tools: what is written, counted, and given to functions, and what is refused before the first step."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny import Run, Seen, compile_text

import rlgraph
from rlgraph.backends.engines.tokenizers import ByteTokenizer, Codec, build_tokenizer
from rlgraph.errors import ProgramError
from tests.conversations.files import user

SHAPE = "hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1"
SHOWS = (
    "{% for tool in tools or [] %}{{ tool.function.name + ': ' + tool.function.description }}{% endfor %}"
    "{% for m in messages %}{{ '<' + m.role + '>' + m.content + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
SILENT = SHOWS.partition("{% for m")[1] + SHOWS.partition("{% for m")[2]
STRICT = SHOWS.replace("{{ '<'", "{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}{{ '<'")
TOOLS = '''
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: One of them.
        b: The other.
    """
    return a + b
'''
REWARDS = """
import json

def seen(prompts, completions, calls, **columns):
    with open("seen.json", "w") as file:
        json.dump([prompts, completions, calls], file)
    return [float(sum(not call["failed"] for call in of_row)) for of_row in calls]

def by_text(solution_str, data_source=None):
    return float(len(solution_str))
"""
CALL = '<tool_call>{{"name": "add", "arguments": {{"a": {}, "b": {}}}}}</tool_call>'
ACTIONS = [CALL.format(2, 2) + CALL.format(3, '"4"'), "It is 4."]


def program(folder: Path, template: str = SHOWS, prompt: Any = None, options: str = "") -> str:
    tokenizer = build_tokenizer(ByteTokenizer())
    tokenizer.chat_template = template
    Codec(tokenizer).save(folder / "small")
    (folder / "rows.jsonl").write_text(json.dumps({"prompt": prompt or [user("2+2?")]}) + "\n", "utf-8")
    (folder / "tools.py").write_text(TOOLS, "utf-8")
    (folder / "rewards.py").write_text(REWARDS, "utf-8")
    return f"""algorithm t
model actor = causal_lm(random("qwen2", {SHAPE}, max_position_embeddings=2048, tokenizer="small"))
data rows = jsonl("rows.jsonl", batch=1)
func seen = python("rewards.py:seen")
func by_text = python("rewards.py:by_text")
env desk = tools("tools.py:add")
step:
    episode = actor.interact(desk, rows, max_turns=3, max_tokens=1500{options})
    report gain = mean(seen(episode)), size = mean(by_text(episode)), turns = mean(episode.turns)
    report calls = sum(episode.calls), failed = sum(episode.failed)
"""


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that says what is written here: random weights call no tool."""
    said: Iterator[str] = iter(ACTIONS)
    monkeypatch.setattr(Codec, "decode_with_special", lambda codec, ids: next(said))


def test_calls_are_answered_counted_and_given_to_functions(
    scripted: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = program(tmp_path)
    monkeypatch.setattr("rlgraph.backends.worker.turn_trials._turn_fault", lambda *_: None)
    run = Run(compile_text(text), tmp_path)
    (seen,) = run.steps(1)
    assert seen.metrics | {"gain": 1.0, "turns": 2.0, "calls": 2.0, "failed": 1.0} == seen.metrics
    free, code = bare(seen), run.backend.session.models["actor"].engine.codec
    error = 'error: the argument `b` must be of type integer, and is "4"'
    written = str(code.tokenizer.decode(free)).replace("<eos>", "")
    assert written == f"add: Add two numbers.<user>2+2?<assistant><tool>4<tool>{error}<assistant>"
    [[prompt], [messages], [calls]] = json.loads((tmp_path / "seen.json").read_text("utf-8"))
    assert prompt == [user("2+2?")] and [m["role"] for m in messages] == ["assistant", "tool", "tool", "assistant"]
    assert messages[0]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 2, "b": 2}}
    assert messages[1] == {"role": "tool", "name": "add", "content": "4"}
    assert [(call["result"], call["failed"]) for call in calls] == [("4", False), (error, True)]


def test_tools_on_cpus_of_their_own_answer_as_those_beside_the_model(
    scripted: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processes of the plan are objects in this one, so that the model says what is written here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rlgraph.backends.worker.turn_trials._turn_fault", lambda *_: None)
    Path("t.rlf").write_text(program(tmp_path), "utf-8")
    Path("t.rls").write_text(
        "schedule t\npool all = 1 devices\npool desks = 2 cpus\nplace actor on all\nplace desk on desks\n"
    )
    run = rlgraph.compile(Path("t.rlf"), {}, schedule="t.rls").run(1, progress=False, backend="ray", debug=True)
    assert run.metrics[0] | {"gain": 1.0, "turns": 2.0, "calls": 2.0, "failed": 1.0} == run.metrics[0]


def bare(seen: Seen) -> list[int]:
    table = seen.table("episode")
    return [token for token, scored in zip(table.tokens[0], table.scored[0], strict=True) if not scored]


@pytest.mark.parametrize(
    ("template", "prompt", "code", "said"),
    [
        (SILENT, None, "E0865", "shows nothing of `add`"),
        (STRICT, None, "E0865", "what a tool returns: .*no tools"),
        (SHOWS, "2+2?", "E0861", "tools are called in a chat"),
    ],
)
def test_tools_that_no_model_would_see_are_refused_before_the_first_step(
    template: str, prompt: Any, code: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(ProgramError, match=f"{code}.*{said}"):
        Run(compile_text(program(tmp_path, template, prompt)), tmp_path)


def test_tools_that_the_system_describes_need_no_template_that_does(tmp_path: Path) -> None:
    asked = [{"role": "system", "content": "add(a, b) adds two numbers."}, user("2+2?")]
    Run(compile_text(program(tmp_path, SILENT, asked)), tmp_path)


def test_a_turn_of_tools_has_no_plain_text(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="E0861"):
        Run(compile_text(program(tmp_path, options=", turns=text")), tmp_path)
