"""Environments that packages bring: games of TextArena, texts of Gymnasium, servers of OpenEnv."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlgraph.errors import ProgramError, RunError
from rlgraph.user_code import Environment, Workers, open_environment
from rlgraph.user_code.files import SearchFolders
from rlgraph.user_code.package_episodes import row_seed
from rlgraph.user_code.spec import CallSpec

Declare = Callable[[str], CallSpec]
Open = Callable[[str], Environment]

WORLDS = '''
import random
import gymnasium
from gymnasium.spaces import Box, Discrete, Text

class Words(gymnasium.Env):
    """Draws from Python's own random numbers at each step, as many environments do."""
    observation_space = Text(100)
    def __init__(self, most=9, numbers=False):
        self.most, self.action_space = most, Discrete(3, start=1) if numbers else Text(100)
    def reset(self, seed=None, options=None):
        self.turn = 0
        return f"begin {random.randint(0, 10**9)}", {}
    def step(self, action):
        self.turn += 1
        return f"{action} {random.randint(0, 10**9)}", 0.5, self.turn == self.most, False, {}

class Pixels(Words):
    observation_space = Box(0, 1, (2, 2))

gymnasium.register("Words-v0", Words)
gymnasium.register("Pixels-v0", Pixels)
'''


@pytest.fixture
def opened(declare: Declare, workers: Workers, tmp_path: Path) -> Open:
    (tmp_path / "worlds.py").write_text(WORLDS)
    return lambda text: open_environment(declare(f"env e = {text}"), SearchFolders(tmp_path), workers)


def played(environment: Environment, rows: list[dict[str, Any]], actions: list[str]) -> list[list[Any]]:
    """What episodes are told that take turns in one process, episode by episode."""
    episodes = [environment(f"row {number}") for number in range(len(rows))]
    told: list[list[Any]] = [[episode.reset(row)] for episode, row in zip(episodes, rows, strict=True)]
    for action in actions:
        for episode, news in zip(episodes, told, strict=True):
            news.append(episode.step(action))
    for episode in episodes:
        episode.close()
    return told


def test_a_game_of_textarena_is_the_row_s_and_has_its_own_random_numbers(opened: Open) -> None:
    """Costs 6 s: the package, once."""
    environment = opened('textarena("GuessTheNumber-v0", max_number=9)')
    actions = [f"[{number}]" for number in range(1, 10)]
    rows = [{"prompt": "Play.", "seed": seed} for seed in (1, 2, 2, 7)]
    games = played(environment, rows, actions)
    assert "between 1 and 9" in games[0][0] and "[Player]" not in str(games)
    # Where the numbers are tried in order, the turn of the reward tells the number.
    won = [next(turn for turn, (_, reward, over) in enumerate(game[1:]) if over and reward == 1) for game in games]
    assert won[1] == won[2] and len(set(won)) > 1
    assert [played(environment, [row], actions)[0] for row in rows] == games
    assert games[0][1] == ("The target number is higher.", 0.0, False) or won[0] == 0


def test_players_of_a_game_of_textarena_are_told_what_the_others_did_and_not_their_own_words(opened: Open) -> None:
    environment = opened('textarena("TicTacToe-v0")')
    game: Any = environment("row 0")
    players = ("white", "black")
    player, told = game.begin_players({"prompt": "Play.", "seed": 1}, players)
    assert player == "white" and "you will be 'O'" in told and "Available Moves" in told
    player, told, rewards, over = game.step_players("[4]", players, "white")
    assert player == "black" and "you will be 'X'" in told and "[Player 0] [4]" in told and not over and not rewards
    player, told, *_ = game.step_players("[0]", players, "black")
    assert player == "white" and "[Player 1] [0]" in told and "[Player 0]" not in told and "You are" not in told
    for action, who in (("[2]", "white"), ("[1]", "black")):
        game.step_players(action, players, who)
    _, _, rewards, over = game.step_players("[6]", players, "white")
    assert over and rewards == {"white": 1.0, "black": -1.0}
    game.close()


@pytest.mark.parametrize("players", [(), ("white", "black", "red")])
def test_a_game_of_textarena_says_that_it_is_not_for_so_many(players: tuple[str, ...], opened: Open) -> None:
    game: Any = opened('textarena("TicTacToe-v0")')("row 0")
    with pytest.raises(RunError, match=f"no game for {len(players) or 1}"):
        game.begin_players({"prompt": "Play."}, players) if players else game.reset({"prompt": "Play."})
    game.close()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('textarena("GuessTheNumbr-v0")', "did you mean 'GuessTheNumber-v0'"),
        ('textarena("GuessTheNumber-v0", most=3)', "'most' is neither an option of `textarena` nor one of"),
        ('gymnasium("worlds:Wrds-v0")', "Gymnasium has no environment 'worlds:Wrds-v0'"),
        ('gymnasium("CartPol-v1")', "did you mean 'CartPole-v1'"),
        ('gymnasium("worlds:Pixels-v0")', "says Box(0.0, 1.0, (2, 2), float32), not texts"),
        ('gymnasium("nothing:Pixels-v0")', "No module named 'nothing'"),
        ('gymnasium("worlds:Words-v0", timout=3)', "'timout' is neither an option of `gymnasium` nor one of"),
    ],
)
def test_what_cannot_be_made_is_refused_before_the_first_step(text: str, message: str, opened: Open) -> None:
    with pytest.raises(ProgramError) as caught:
        opened(text)
    assert "E0738" in str(caught.value) and message in str(caught.value)


@pytest.mark.parametrize("text", ["textarena()", 'gymnasium("a", "b")', 'openenv("http://127.0.0.1:9", workers=0)'])
def test_a_declaration_is_checked_without_the_package(text: str, opened: Open) -> None:
    with pytest.raises(ProgramError, match="E0702"):
        opened(text)


def test_episodes_of_gymnasium_draw_as_if_they_were_alone(opened: Open) -> None:
    environment = opened('gymnasium("worlds:Words-v0", most=3)')
    rows = [{"prompt": letter} for letter in "aabc"]
    together = played(environment, rows, ["x", "y", "z"])
    assert together[0] == together[1] and len({str(episode) for episode in together}) == 3
    assert [played(environment, [row], ["x", "y", "z"])[0] for row in rows] == together
    assert [over for _, _, over in together[0][1:]] == [False, False, True]
    assert sum(reward for _, reward, _ in together[0][1:]) == 1.5


def test_numbers_are_read_from_an_action_and_what_is_none_is_answered(opened: Open) -> None:
    environment = opened('gymnasium("worlds:Words-v0", numbers=True)')
    [told] = played(environment, [{"prompt": "a"}], ["I choose 7, no: 2.", "nothing", "4", "-1", "3"])
    assert [said.split(" ")[0] for said, _, _ in told[1:]] == ["2", "Answer", "Answer", "Answer", "3"]
    assert told[2] == ("Answer with a whole number from 1 to 3.", 0.0, False)


def test_a_seed_is_the_column_or_a_number_made_of_all_columns() -> None:
    assert row_seed({"prompt": "a", "seed": 5}) == 5 and row_seed({"seed": -1}) == 2**31 - 1
    assert row_seed({"a": 1, "b": [2]}) == row_seed({"b": [2], "a": 1}) != row_seed({"a": 1, "b": [3]})


SERVER = """
import socket
import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app

class Guess(Action):
    text: str

class Said(Observation):
    message: str = ""
    hint: str = ""

class World(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    def reset(self, seed=None, episode_id=None, **options):
        self.secret = seed % 10
        return Said(message="Guess a digit.")
    def step(self, action, timeout_s=None, **options):
        if action.text == "break":
            raise RuntimeError("out of order")
        right = str(self.secret) in action.text
        return Said(message="right" if right else "wrong", done=right, reward=1.0 if right else -0.1)
    @property
    def state(self):
        return State()

door = socket.socket()
door.bind(("127.0.0.1", 0))
print(door.getsockname()[1], flush=True)
app = create_fastapi_app(World, Guess, Said, max_concurrent_envs=8)
uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[door])
"""


@pytest.fixture
def server() -> Iterator[str]:
    pytest.importorskip("openenv", reason="the package `openenv` is not installed")
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        process.kill()


def test_sessions_of_an_openenv_server(server: str, opened: Open) -> None:
    """Costs 20 s where the package is installed: it is large."""
    with pytest.raises(ProgramError) as caught:
        opened(f'openenv("{server}")')
    assert "the server's observation has 2 texts (message, hint)" in str(caught.value)
    with pytest.raises(ProgramError, match="has no field 'word'; it has: text"):
        opened(f'openenv("{server}", action="word", observation="message")')
    environment = opened(f'openenv("{server}", observation="message")')
    told = played(environment, [{"seed": seed} for seed in range(4)], ["is it 2?"])
    assert [news[0] for news in told] == ["Guess a digit."] * 4
    assert [news[1] for news in told] == [("wrong", -0.1, False)] * 2 + [("right", 1.0, True), ("wrong", -0.1, False)]
    episode = environment("row 7")
    episode.reset({"seed": 1})
    with pytest.raises(RunError, match="out of order.*, on row 7, in turn 1"):
        episode.step("break")
    with pytest.raises(ProgramError, match="no server answers at http://127.0.0.1:1"):
        opened('openenv("http://127.0.0.1:1")')
