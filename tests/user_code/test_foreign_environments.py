"""Environments of the user: one object an episode, and what is said when they are wrong."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from rlgraph.errors import ProgramError, RunError
from rlgraph.user_code import Environment, Workers, open_environment, worker
from rlgraph.user_code.files import SearchFolders
from rlgraph.user_code.spec import CallSpec
from tests.waits import NEVER

Declare = Callable[[str], CallSpec]
Write = Callable[[str], Path]

SHELL = """
closed = []

class Shell:
    def __init__(self, image="none"):
        self.image, self.turns = image, 0

    def reset(self, row):
        self.row = row
        return f"{self.image}: {row['prompt']}"

    async def step(self, action):
        self.turns += 1
        return f"{action}!", action == self.row["answer"], self.turns == 2

    def close(self):
        closed.append(self.row["prompt"])
        print(*closed)
"""


@pytest.fixture
def opened(declare: Declare, rewards: Write, workers: Workers) -> Callable[..., Environment]:
    def open_it(text: str, options: str = "") -> Environment:
        return open_environment(
            declare(f'env e = python("rewards.py:Shell"{options})'), SearchFolders(rewards(text)), workers
        )

    return open_it


def test_an_episode_has_an_object_of_its_own(
    opened: Callable[..., Environment], capfd: pytest.CaptureFixture[str]
) -> None:
    shell = opened(SHELL, ', image="small"')
    one, two = shell("row 0"), shell("row 1")
    assert one.reset({"prompt": "a", "answer": "x"}) == "small: a"
    assert two.reset({"prompt": "b", "answer": "y"}) == "small: b"
    assert one.step("x") == ("x!", 1.0, False)
    assert two.step("x") == ("x!", 0.0, False)
    assert one.step("y") == ("y!", 0.0, True)
    one.close()
    two.close()
    assert capfd.readouterr().out == "a\na b\n"


def test_two_environments_of_a_file_do_not_mix_their_objects(
    declare: Declare, rewards: Write, workers: Workers
) -> None:
    base = rewards(SHELL)
    first = open_environment(declare('env e = python("rewards.py:Shell", image="1")'), SearchFolders(base), workers)(
        "row 0"
    )
    second = open_environment(declare('env e = python("rewards.py:Shell", image="2")'), SearchFolders(base), workers)(
        "row 0"
    )
    first.reset({"prompt": "a", "answer": "x"})
    second.reset({"prompt": "b", "answer": "y"})
    assert first.step("x")[1] == 1.0


def test_episodes_are_spread_over_the_workers(opened: Callable[..., Environment]) -> None:
    text = "import os\nclass Shell:\n    def reset(self, row):\n        return str(os.getpid())\n    def step(self, action): ...\n"
    shell = opened(text, ", workers=2")
    assert len({shell(f"row {row}").reset({}) for row in range(4)}) == 2


MEETS = """
import os, time
from pathlib import Path
HERE = Path(__file__).parent

class Shell:
    def reset(self, row):
        self.number = row["number"]
        return ""
    def step(self, action):
        # It ends when the other episode has begun its own.
        (HERE / f"{action}{self.number}").touch()
        while not (HERE / f"{action}{1 - self.number}").exists():
            time.sleep(0.01)
        if action == "fail" and self.number:
            raise ValueError("no such command")
        return str(self.number), 0.0, False
    def close(self):
        pass
"""


def test_episodes_of_several_workers_step_side_by_side(opened: Callable[..., Environment]) -> None:
    """Each waits for the other: one after the other they would never end."""
    shell = opened(MEETS, f", workers=2, timeout={NEVER}")
    games = [shell(f"row {number}") for number in range(2)]
    worker.run_in_parallel(
        shell.workers, [partial(game.reset, {"number": number}) for number, game in enumerate(games)]
    )
    found = worker.run_in_parallel(shell.workers, [partial(game.step, "go") for game in games])
    assert [observation for observation, _, _ in found] == ["0", "1"]
    with pytest.raises(RunError, match="no such command"):
        worker.run_in_parallel(shell.workers, [partial(game.step, "fail") for game in games])
    for game in games:
        game.close()  # what is gone has nothing to close, and hides no error


def test_no_first_observation_and_no_close_are_fine(opened: Callable[..., Environment]) -> None:
    episode = opened(
        "class Shell:\n    def reset(self, row): ...\n    def step(self, a):\n        return None, 0, True\n"
    )("r")
    assert episode.reset({}) == ""
    assert episode.step("x") == ("", 0.0, True)
    episode.close()


@pytest.mark.parametrize(
    ("step", "code", "message", "hint"),
    [
        (
            "return 'x'",
            "E0725",
            "`Shell` gave 'x' from `step`, not the three values (observation, reward, done), on row 3, in turn 1",
            "",
        ),
        (
            "return 'x', 1",
            "E0725",
            "`Shell` gave 2 values from `step`, not the three (observation, reward, done), on row 3, in turn 1",
            "",
        ),
        (
            "return 'x', 1, True, False, {}",
            "E0725",
            "`Shell` gave 5 values from `step`, not the three (observation, reward, done), on row 3, in turn 1",
            "those of gymnasium become: observation, reward, terminated or truncated; ",
        ),
        (
            "return 3, 1, True",
            "E0725",
            "`Shell` gave 3 from `step` as the observation, which must be a text, a message or messages, on row 3, in turn 1",
            "",
        ),
        ("return 'x', None, True", "E0725", "`Shell` gave None from `step` as the reward, on row 3, in turn 1", ""),
        (
            "return 'x', float('nan'), True",
            "E0725",
            "`Shell` gave nan from `step` as the reward, on row 3, in turn 1",
            "",
        ),
        (
            "return 'x', 1, 'yes'",
            "E0725",
            "`Shell` gave 'yes' from `step` as `done`, which must be True or False, on row 3, in turn 1",
            "",
        ),
        (
            "return '\\ud800', 1, True",
            "E0725",
            "`Shell` gave '\\ud800' from `step`, a text with half of a surrogate pair, which is no character, "
            "on row 3, in turn 1",
            "",
        ),
        ("raise KeyError('k')", "E0726", "`Shell` raised KeyError: 'k', on row 3, in turn 1", ""),
        ("import os; os._exit(9)", "E0728", "the process of `Shell` ended with exit code 9, on row 3, in turn 1", ""),
        (
            "while True: pass",
            "E0727",
            "`Shell` did not come back within 0.4 s, on row 3, in turn 1",
            "if it only needs longer, give it a longer `timeout=`, in seconds; ",
        ),
    ],
)
def test_steps_that_fail(
    opened: Callable[..., Environment],
    step: str,
    code: str,
    message: str,
    hint: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The process ends itself, and knows the line.
    monkeypatch.setattr(worker, "_GRACE_S", NEVER)
    text = (
        f"class Shell:\n    def reset(self, row):\n        return 'go'\n    def step(self, action):\n        {step}\n"
    )
    episode = opened(text, f", timeout={NEVER}")("row 3")
    episode.reset({"prompt": "do it"})
    if code == "E0727":
        episode.limit_s = 0.4
    with pytest.raises(RunError) as caught:
        episode.step("ls")
    found = caught.value.diagnostics[0]
    assert (found.code, found.message, found.hint) == (code, message, hint + "there: prompt = 'do it'")
    if code in ("E0726", "E0727"):
        assert found.related[0].span.line == 5


def test_a_reset_of_gymnasium_is_told(opened: Callable[..., Environment]) -> None:
    episode = opened("class Shell:\n    def reset(self, row): return 'go', {}\n    def step(self, action): ...\n")(
        "row 3"
    )
    with pytest.raises(RunError) as caught:
        episode.reset({})
    found = caught.value.diagnostics[0]
    assert found.message.startswith("`Shell` gave 2 values from `reset`, not the first observation")
    assert found.hint.startswith("of gymnasium's observation and info return the observation alone")


def test_an_episode_that_another_one_has_ended_says_so(opened: Callable[..., Environment]) -> None:
    text = "class Shell:\n    def reset(self, row): ...\n    def step(self, action):\n        import os; os._exit(9)\n"
    shell = opened(text)
    one, two = shell("row 1"), shell("row 2")
    one.reset({})
    two.reset({})
    with pytest.raises(RunError):
        one.step("x")
    with pytest.raises(RunError) as caught:
        two.step("x")
    found = caught.value.diagnostics[0]
    assert found.message == "the process of `Shell` ended because of another episode, on row 2, in turn 1"
    two.close()


@pytest.mark.parametrize(
    ("call", "text", "message", "hint"),
    [
        ('python("rewards.py:Shel")', SHELL, "E0722: there is no 'Shel' in 'rewards.py'", "did you mean `Shell`?"),
        (
            'python("rewards.py:Shell")',
            "class Shell:\n    def reset(self, row): ...",
            "E0729: `Shell` is no environment: it has no method `step`",
            "it needs reset(row) -> str and step(action) -> (observation, reward, done)",
        ),
        (
            'python("rewards.py:Shell", imag=3)',
            SHELL,
            "E0702: 'imag' is neither an option of `python` nor a parameter of `Shell`",
            "did you mean `image`?",
        ),
        (
            'python("rewards.py:Shell")',
            "class Shell:\n    def __init__(self, port): ...\n    def reset(self, row): ...\n    def step(self, action): ...",
            "E0724: `Shell` cannot be called without 'port'",
            'give it as an option: python("rewards.py:Shell", port=...)',
        ),
        ('gym("CartPole")', "", "E0702: there are no environments of kind 'gym'", 'as in `python("envs.py:Shell")`'),
        (
            "python(3)",
            "",
            "E0702: `python` takes one text: a file and a class in it",
            'as in `python("envs.py:Shell")`',
        ),
    ],
)
def test_bad_declarations(
    declare: Declare, rewards: Write, workers: Workers, call: str, text: str, message: str, hint: str
) -> None:
    with pytest.raises(ProgramError) as caught:
        open_environment(declare(f"env e = {call}"), SearchFolders(rewards(text)), workers)
    found = caught.value.diagnostics[0]
    assert (f"{found.code}: {found.message}", found.hint) == (message, hint)
