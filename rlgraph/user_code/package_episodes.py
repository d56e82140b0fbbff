"""Episodes of environments that packages bring: TextArena, Gymnasium, OpenEnv. They run as a user's file does, in a
process of its own.

Each class takes the name of an environment and the options of the declaration, and raises ValueError where there is no
such environment. It has `reset(row)`, `step(action)` and `close()`, as the classes that users write.
"""

from __future__ import annotations

import difflib
import json
import random
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any
from urllib.request import Request, urlopen

Step = tuple[str, float, bool]
"""What an environment answers: observation, reward, whether the episode is over."""


class TextArenaGame:
    """A game of TextArena. Its rules are the first observation of each player; the rewards come at the end."""

    def __init__(self, name: str, **options: Any) -> None:
        import textarena  # type: ignore[import-untyped]
        from textarena.envs.registration import ENV_REGISTRY  # type: ignore[import-untyped]

        if name not in ENV_REGISTRY:
            raise ValueError(f"TextArena has no game '{name}'{_similar(name, ENV_REGISTRY)}")
        self._name = name
        self._game = textarena.make(name, **options)
        self._random = EpisodeRandom()
        self._action = textarena.core.ObservationType.PLAYER_ACTION
        self._players: Sequence[str] = ()

    def reset(self, row: Mapping[str, Any], players: Sequence[str] = ()) -> str | tuple[str, str]:
        """Return the rules of the game, with the player who begins where there are several. Rows with the same columns
        play the same game.

        players: their names, in the order of the game's Player 0, Player 1, ...; none: one plays alone.
        """
        self._players = players
        with self._random.seeded(row_seed(row)) as seed:
            try:
                self._game.reset(num_players=len(players) or 1, seed=seed)
            except AssertionError as error:
                name_them = "" if players else "; name who plays: interact(game, ROWS, white=actor, black=actor, ...)"
                raise ValueError(f"'{self._name}' is no game for {len(players) or 1}: {error}{name_them}") from None
        player, news = self._news()
        return (players[player], news) if players else news

    def step(self, action: str) -> Step | tuple[str, str, dict[str, float], bool]:
        """Return what the game says to an action, the rewards if it is over, and whether it is; before these whose turn
        it is, where there are several players."""
        with self._random.kept():
            over, _ = self._game.step(action=action)
        rewards, _ = self._game.close() if over else (None, None)
        player, news = (0, "") if over else self._news()
        if not self._players:
            return news, float((rewards or {}).get(0, 0.0)), bool(over)
        won = {self._players[number]: float(reward) for number, reward in (rewards or {}).items()}
        return self._players[player], news, won, bool(over)

    def _news(self) -> tuple[int, str]:
        """Return whose turn it is, and what that player has not been told: all but its own words."""
        game = self._game
        while hasattr(game, "env"):  # a wrapper of observations repeats all of the game each time
            game = game.env
        player, messages = game.get_observation()
        told = [
            f"[Player {speaker}] {text}" if kind is self._action else str(text).strip("\n")
            for speaker, text, kind in messages
            if kind is not self._action or speaker != player
        ]
        return player, "\n".join(told)


class GymnasiumText:
    """An environment of Gymnasium that says texts, and takes texts or whole numbers."""

    def __init__(self, name: str, **options: Any) -> None:
        import gymnasium

        try:
            self._world = gymnasium.make(name, disable_env_checker=True, **options)
        except (gymnasium.error.UnregisteredEnv, ModuleNotFoundError) as error:
            if isinstance(error, ModuleNotFoundError) and error.name != name.partition(":")[0]:
                raise
            hint = "" if ":" in name else " (one of a module is `module:Name-v0`)"
            similar = _similar(name, gymnasium.registry)
            raise ValueError(f"Gymnasium has no environment '{name}'{similar or hint}") from None
        said, taken = self._world.observation_space, self._world.action_space
        if not isinstance(said, gymnasium.spaces.Text):
            raise ValueError(f"'{name}' says {said}, not texts: write a class that puts that into words")
        if not isinstance(taken, gymnasium.spaces.Text | gymnasium.spaces.Discrete):
            raise ValueError(f"'{name}' takes {taken}, neither texts nor whole numbers: write a class that reads them")
        self._numbers = taken if isinstance(taken, gymnasium.spaces.Discrete) else None
        self._random = EpisodeRandom()

    def reset(self, row: Mapping[str, Any]) -> str:
        """Return the first observation. Rows with the same columns begin alike."""
        with self._random.seeded(row_seed(row)) as seed:
            first, _ = self._world.reset(seed=seed)
        return str(first)

    def step(self, action: str) -> Step:
        """Return what the environment answers. An action that is no number of an environment that takes numbers is
        answered with what there is, and changes nothing."""
        taken: Any = action
        if self._numbers is not None:
            first, last = int(self._numbers.start), int(self._numbers.start + self._numbers.n - 1)
            taken = next((number for number in _whole_numbers(action) if first <= number <= last), None)
            if taken is None:
                return f"Answer with a whole number from {first} to {last}.", 0.0, False
        with self._random.kept():
            said, reward, terminated, truncated, _ = self._world.step(taken)
        return str(said), float(reward), bool(terminated or truncated)

    def close(self) -> None:
        """End the environment."""
        self._world.close()


class OpenEnvSession:
    """A session of an OpenEnv server, over one WebSocket."""

    def __init__(self, name: str, action: str = "", observation: str = "") -> None:
        """name: the address of the server. action: the field that the model's text goes to; observation: the field of
        which the model is shown the text. Where they are not given, the server's schema tells, if there is one text."""
        from openenv.core import GenericEnvClient  # type: ignore[import-not-found]

        schema = _server_schema(name.rstrip("/"))
        self._action = _text_field(schema.get("action", {}), "action", action)
        self._observation = _text_field(schema.get("observation", {}), "observation", observation)
        self._session = GenericEnvClient(base_url=name).sync()

    def reset(self, row: Mapping[str, Any]) -> str:
        """Begin an episode, with a seed that the columns of the row give; return the first observation."""
        return self._shown(self._session.reset(seed=row_seed(row)).observation)

    def step(self, action: str) -> Step:
        """Return what the server answers."""
        result = self._session.step({self._action: action})
        return self._shown(result.observation), float(result.reward or 0.0), bool(result.done)

    def close(self) -> None:
        """End the session."""
        self._session.close()

    def _shown(self, observation: Mapping[str, Any]) -> str:
        value = observation.get(self._observation)
        return "" if value is None else str(value)


_OF_EVERY_KIND = ("metadata", "done", "reward", "timeout_s")


@cache
def _server_schema(address: str) -> dict[str, Any]:
    """Return the JSON schemas of a server's actions and observations. Raises ValueError."""
    if not address.startswith(("http://", "https://")):
        raise ValueError(f"'{address}' is no address of a server: it begins with http:// or https://")
    try:
        with urlopen(Request(f"{address}/schema", headers={"Accept": "application/json"}), timeout=10) as answer:
            schema = json.loads(answer.read(1 << 20))
    except OSError as error:
        raise ValueError(f"no server answers at {address}: {getattr(error, 'reason', error)}") from None
    except ValueError:
        raise ValueError(f"what answers at {address} is no server of OpenEnv") from None
    if not isinstance(schema, dict):
        raise ValueError(f"what answers at {address} is no server of OpenEnv")
    return schema


def _text_field(schema: Mapping[str, Any], option: str, wanted: str) -> str:
    """Return the field of an action or an observation that has its text. Raises ValueError where it is not clear."""
    fields = {name: field for name, field in schema.get("properties", {}).items() if name not in _OF_EVERY_KIND}
    texts: list[str] = [name for name, field in fields.items() if field.get("type") == "string"]
    if wanted:
        if wanted not in fields:
            raise ValueError(f"the server's {option} has no field '{wanted}'; it has: {', '.join(fields) or 'none'}")
        return wanted
    if len(texts) != 1:
        count = f"{len(texts)} texts ({', '.join(texts)})" if texts else "no text"
        raise ValueError(f'the server\'s {option} has {count}: say the field that is meant, as `{option}="NAME"`')
    return texts[0]


def row_seed(row: Mapping[str, Any]) -> int:
    """Return the seed of an episode: the row's column `seed` if it has one, else a number made of all its columns."""
    seed = row.get("seed")
    if isinstance(seed, int) and not isinstance(seed, bool):
        return seed % (1 << 31)
    return zlib.crc32(json.dumps(dict(row), sort_keys=True, default=str).encode()) & 0x7FFFFFFF


class EpisodeRandom:
    """Keeps the state of Python's and NumPy's random numbers for one episode: those of a process take turns, and each
    draws as if it were alone."""

    def __init__(self) -> None:
        self._states: tuple[Any, Any] = (None, None)

    @contextmanager
    def seeded(self, seed: int) -> Iterator[int]:
        """Begin anew with a seed."""
        random.seed(seed)
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed(seed)
        yield seed
        self._keep()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Go on where the episode was."""
        state, numpys = self._states
        random.setstate(state)
        if numpys is not None:
            sys.modules["numpy"].random.set_state(numpys)
        yield
        self._keep()

    def _keep(self) -> None:
        numpy = sys.modules.get("numpy")
        self._states = random.getstate(), numpy.random.get_state() if numpy else None


def _whole_numbers(text: str) -> Iterator[int]:
    """Yield the whole numbers of a text, the last one first."""
    words = "".join(sign if sign.isdecimal() or sign == "-" else " " for sign in text).split()
    for word in reversed(words):
        try:
            yield int(word)
        except ValueError:
            continue


def _similar(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(names), 1)
    return f"; did you mean '{close[0]}'?" if close else ""
