"""Functions are called once on made-up answers before the first step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny import compile_text, data_folder, weights

from rlgraph.backends.worker.session import Session, Settings
from rlgraph.errors import ProgramError

USER = """
import json
from pathlib import Path

def log(**given):
    with (Path(__file__).parent / "calls.jsonl").open("a") as file:
        file.write(json.dumps(given) + "\\\\n")
    return [float(len(text)) for text in given["completions"]]

def note(what):
    with (Path(__file__).parent / "episodes.txt").open("a") as file:
        print(what, file=file)

def wrong(completions, **columns):
    log(completions=completions)
    return [json.loads(text) for text in completions]

def few(completions, **columns):
    return [1.0]

def typo(completions, tasks):
    return [1.0 for _ in tasks]

class Env:
    def __init__(self, does=""):
        self.does = does
    def reset(self, row):
        note("reset " + row["task"])
        if self.does == "reset":
            row["no such column"]
        return 3 if self.does == "types" else ""
    def step(self, action):
        note("step " + repr(action))
        return (int(action), 0.0, True) if self.does == "step" else ("", 0.0, True)
    def close(self):
        note("close")

class Game:
    def reset(self, row, players):
        return players[1], "begin"
    def step(self, action):
        return "nobody", None, 0.0, False

def stream():
    while True:
        yield {"prompt": "ab"}
""".replace("\\\\n", "\\n")
HEAD = f"""algorithm tried
model actor  = causal_lm({weights()})
data prompts = jsonl("prompts.jsonl", batch=5)
data other   = python("user.py:stream", batch=2)
func f       = python("user.py:log")
func row     = python("user.py:log", over=row)
func quiet   = python("user.py:log", trial=false)
func wrong   = python("user.py:wrong", over=row)
func few     = python("user.py:few", over=row)
func typo    = python("user.py:typo")
func shy     = python("user.py:wrong", over=row, failed=skip)
env shell    = python("user.py:Env")
env bad      = python("user.py:Env", does="reset")
env odd      = python("user.py:Env", does="types")
env late     = python("user.py:Env", does="step")
env silent   = python("user.py:Env", does="step", trial=false)
env game     = python("user.py:Game")
step:
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = data_folder(tmp_path)
    (folder / "user.py").write_text(USER)
    return folder


def opened(step: str, folder: Path) -> tuple[list[str], list[dict[str, Any]]]:
    """What is told while all is opened, and the calls."""
    used = [line for line in HEAD.splitlines() if line[:4] not in ("func", "env ") or line.split()[1] in step]
    told: list[str] = []
    session = Session(compile_text("\n".join([*used, step])), Settings(folder=folder), told.append)
    session.close()
    told += session.judged
    calls = folder / "calls.jsonl"
    return told, [json.loads(line) for line in calls.read_text().splitlines()] if calls.exists() else []


def test_they_are_called_as_the_program_calls_them(folder: Path) -> None:
    told, calls = opened(
        "    rollout = actor.generate(prompts, n=3, max_tokens=4)\n"
        "    a = f(rollout, length=rollout.length, mean=mean(rollout.logprobs, token), named=rollout.task)\n"
        "    b = row(rollout)\n    again = row(rollout)\n"
        "    report a = mean(a + b + again)\n",
        folder,
    )
    assert told[-3:] == ["trying f on a made-up answer", "trying row on a made-up answer", told[-1]]
    assert told[-1].startswith("loading actor"), "before models are loaded"
    ids = [0, 1]
    expected = {"prompts": "ab", "completions": "ab", "completion_ids": ids, "task": "a", "place": 0}
    program = {"length": 1, "mean": 0.5, "named": "a"}
    assert calls == [
        {name: [value] * 3 for name, value in (expected | program).items()},
        {name: [value] * 2 for name, value in expected.items()},
    ]


def test_what_is_wrong_is_said_before_models_are_loaded(folder: Path) -> None:
    step = "    rollout = actor.generate(prompts, max_tokens=4)\n    report a = mean(wrong(rollout))\n"
    with pytest.raises(ProgramError) as caught:
        opened(step, folder)
    found = caught.value.diagnostics[0]
    assert found.code == "E0726" and found.message.endswith(", on a made-up answer to prompts row 0")
    assert found.hint.endswith("if no model would ever answer with its prompt, `trial=false` in the declaration")


def test_a_number_too_few_is_seen_where_a_function_judges_rows_one_by_one(folder: Path) -> None:
    step = "    rollout = actor.generate(prompts, max_tokens=4)\n    report a = mean(few(rollout))\n"
    with pytest.raises(ProgramError, match="`few` gave 1 number for 2 rows") as caught:
        opened(step, folder)
    assert caught.value.diagnostics[0].hint.startswith("return a list with a number for each of `completions`; if no")


def test_a_column_that_is_called_otherwise_in_the_data_is_suggested(folder: Path) -> None:
    step = "    rollout = actor.generate(prompts, max_tokens=4)\n    report a = mean(typo(rollout))\n"
    with pytest.raises(ProgramError, match="`typo` asks for a column 'tasks'") as caught:
        opened(step, folder)
    assert caught.value.diagnostics[0].hint.startswith("did you mean `task`?")


def test_where_the_run_goes_on_without_such_rows_it_is_only_told(folder: Path) -> None:
    step = "    rollout = actor.generate(prompts, max_tokens=4)\n    report a = mean(shy(rollout))\n"
    told, _ = opened(step, folder)
    assert told[-1].startswith("`shy` failed on a made-up answer to prompts row 0: it raised JSONDecodeError")


@pytest.mark.parametrize(
    "step",
    [
        "    rollout = actor.generate(prompts, max_tokens=4)\n    report a = mean(quiet(rollout))\n",
        "    rollout = actor.generate(other, max_tokens=4)\n    report a = mean(f(rollout))\n",
        "    rollout = actor.interact(shell, prompts, max_turns=2, max_tokens=9)\n    report a = mean(f(rollout))\n",
    ],
    ids=["trial=false", "stream", "environment"],
)
def test_who_is_not_called(folder: Path, step: str) -> None:
    told, calls = opened(step, folder)
    assert not calls and not any("trying" in text for text in told if "shell" not in text)


def played(folder: Path, env: str, players: str = "") -> list[str]:
    """What is told where an environment is used; what is noted there is in `episodes.txt`."""
    how = "max_turns=2, max_tokens=9"
    play = f"interact({env}, prompts, {players}, {how})" if players else f"actor.interact({env}, prompts, {how})"
    return opened(f"    episode = {play}\n    report a = mean(episode.length)\n", folder)[0]


def test_an_episode_of_an_empty_action_is_played_before_models_are_loaded(folder: Path) -> None:
    told = played(folder, "shell")
    assert told[-2] == "trying shell with an empty action" and told[-1].startswith("loading actor")
    assert (folder / "episodes.txt").read_text().splitlines() == ["reset a", "step ''", "close"]


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ("bad", "`Env` raised KeyError: 'no such column', on prompts row 0, in `reset`"),
        ("odd", "`Env` gave 3 from `reset`, not the text of the first observation"),
        ("late", "`Env` raised ValueError: invalid literal for int() with base 10: '', on prompts row 0, in turn 1"),
        ("game", "`Game` gave"),
    ],
)
def test_what_is_wrong_with_an_environment_is_said_before_models_are_loaded(folder: Path, env: str, said: str) -> None:
    with pytest.raises(ProgramError) as caught:
        played(folder, env, "white=actor, black=actor" if env == "game" else "")
    [found] = caught.value.diagnostics
    assert found.message.startswith(said) and "`trial=false` in the declaration leaves that out" in found.hint
    notes = folder / "episodes.txt"
    assert env == "game" or notes.read_text().splitlines()[-1] == "close"


def test_an_environment_that_is_not_tried(folder: Path) -> None:
    assert not any("trying" in text for text in played(folder, "silent"))


def test_nested_columns_and_prompts_of_another_name(folder: Path) -> None:
    """They are what the program gives: the prompt is what the model would answer."""
    row = {"q": {"text": "ba"}, "prompt": "no", "info": {"truth": "b"}}
    (folder / "prompts.jsonl").write_text(5 * (json.dumps(row) + "\n"))
    _, calls = opened(
        "    rollout = actor.generate(prompts.q.text, max_tokens=4)\n"
        "    report a = mean(f(rollout, truth=rollout.info.truth, asked=rollout.prompt))\n",
        folder,
    )
    [call] = calls
    one = {name: values[0] for name, values in call.items() if values == [values[0]] * 2}
    assert one.pop("completion_ids") == [0, 1] and one.pop("info") == row["info"] and one.pop("q") == row["q"]
    assert one == {"prompts": "ba", "completions": "ba", "truth": "b", "asked": "ba"}
