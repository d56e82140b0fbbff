"""The program of the process that a user's Python file runs in.

It is started by `worker.py` and imports only the standard library. It answers requests `(operation, limit_s,
*arguments)` with `("ok", value)`, `("raised", what)` or `("wrong", what)`. A call that passes its limit ends the
process from a thread that does not need the interpreter lock: an endless regular expression or a huge power cannot stop
it. That thread first writes where the code was.
"""

from __future__ import annotations

import faulthandler
import importlib
import importlib.util
import inspect
import json
import math
import numbers
import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from decimal import Decimal
from importlib.machinery import ModuleSpec
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    import asyncio


RowResult = tuple[Any, ...]
"""What a function returned for one row: `("value", [...])`, `("none",)` where it abstains, `("wrong", message, hint)`
for something else, or `("raised", details)`."""


Observation = str | list[dict[str, Any]]
"""What an environment says: a text, or messages."""
PlayerTurn = tuple[str, Observation | None]
"""Whose turn it is in an environment with several players, and what it is told; None: what the others have said."""
PlayerAnswer = tuple[str, Observation | None, dict[str, float], bool]
"""That, with each player's reward, and whether the episode is over."""


class WrongValue(Exception):
    """The user's code returned something that is not what was asked for."""

    def __init__(self, message: str, row: int | None = None, hint: str = "") -> None:
        super().__init__(message, row, hint)
        self.message = message
        self.row = row
        self.hint = hint


class Child:
    """Holds the user's module and the objects made from it, and serves the requests for them."""

    def __init__(self, file: str, name: str) -> None:
        """name: of a module that is imported as others are; empty: the file is loaded by itself."""
        self.file, self.name = file, name
        self.module: ModuleType | None = None
        self.objects: dict[int, Any] = {}
        self.runner: asyncio.Runner | None = None

    def load(self) -> ModuleType:
        """Return the user's module, loaded once; a file gets a module name that cannot hide another module."""
        if self.module is None and self.name:
            self.module = importlib.import_module(self.name)
        if self.module is None:
            name = _module_name(self.file)
            sys.path.insert(0, str(Path(self.file).parent))
            spec = importlib.util.spec_from_file_location(name, self.file)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            try:
                spec.loader.exec_module(module)
            except BaseException:
                del sys.modules[name]
                raise
            self.module = module
        return self.module

    def describe(self, name: str) -> dict[str, Any]:
        """Return what kind of object the file has under `name`, and its parameters."""
        module = self.load()
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        target = getattr(module, name, None)
        if not callable(target):
            return {"is": "missing" if target is None else describe_value(target), "names": names}
        try:
            signature = inspect.signature(target).parameters.values()
            parameters = [(p.name, p.kind.name, p.default is not p.empty) for p in signature]
        except (TypeError, ValueError):  # some functions written in C do not say
            parameters = [("kwargs", "VAR_KEYWORD", False)]
        if not inspect.isclass(target):
            return {"is": "function", "names": names, "parameters": parameters, "methods": []}
        methods = [key for key in dir(target) if callable(getattr(target, key))]
        return {"is": "class", "names": names, "parameters": parameters, "methods": methods}

    def score(
        self, name: str, count: int, arguments: dict[str, Any], returns: tuple[str, ...], by_row: tuple[str, ...]
    ) -> list[RowResult]:
        """Call a reward function and return its result for each of `count` rows.

        returns: the names of what it returns for a row, if it returns more than a number; of texts with a `:` in front.
        by_row: the arguments that have an entry for each row, if it is called a row at a time.
        """
        function = getattr(self.load(), name)
        if by_row:
            return self._score_rows(function, count, arguments, returns, by_row)
        values = self.await_value(function(**arguments))
        if returns and isinstance(values, dict):
            values = columns_as_rows(values, returns, count)
        if hasattr(values, "tolist"):  # an array or a tensor
            _refuse_table(values, returns)
            values = values.tolist()
        if not isinstance(values, list | tuple):
            raise WrongValue(
                f"{describe_value(values)}, not a list with a number for each row", None, hint_to_return_list(values)
            )
        if len(values) != count:
            counted = f"{len(values)} number{'s' * (len(values) != 1)} for {count} rows"
            raise WrongValue(counted, None, "return a list with a number for each of `completions`")
        return [row_result(value, returns) for value in values]

    def _score_rows(
        self,
        function: Any,
        count: int,
        arguments: dict[str, Any],
        returns: tuple[str, ...],
        by_row: tuple[str, ...],
    ) -> list[RowResult]:
        """Call a function that takes one row, for each of `count` rows; those that are awaited wait side by side. Of a
        dict without `returns` it is the `score`."""
        values: list[Any] = []
        for row in range(count):
            given = {name: value[row] if name in by_row else value for name, value in arguments.items()}
            try:
                values.append(function(**given))
            except Exception as error:
                values.append(error)
        if any(map(inspect.isawaitable, values)):
            values = self.await_value(_settled(values))
        return [self._row(value, returns) for value in values]

    def _row(self, value: Any, returns: tuple[str, ...]) -> RowResult:
        """Return the result of a row from what its call has returned or raised."""
        if isinstance(value, Exception):
            return ("raised", exception_details(value, str(Path(self.file).parent)))
        return row_result(value, returns or ("score",) if isinstance(value, dict) else returns)

    def load_early(self) -> None:
        """Load the file, outside of the limit of a call."""
        self.load()

    def start_rows(self, key: int, name: str, arguments: dict[str, Any]) -> list[Any] | None:
        """Return the rows of a function that returns a list; None for one that yields them."""
        result = self.await_value(getattr(self.load(), name)(**arguments))
        if isinstance(result, list | tuple):
            return list(result)
        if isinstance(result, Iterator):
            self.objects[key] = result
            return None
        if hasattr(result, "__iter__") and not isinstance(result, str | bytes | dict):
            self.objects[key] = iter(result)
            return None
        raise WrongValue(f"{describe_value(result)}, not a list of rows and not a generator of them")

    def read_rows(self, key: int, count: int) -> list[Any]:
        """Return the next rows of the generator, fewer if it ends."""
        return [row for _, row in zip(range(count), self.objects[key], strict=False)]

    def make_environment(self, key: int, name: str, arguments: dict[str, Any]) -> None:
        """Make an environment for one episode."""
        self.objects[key] = getattr(self.load(), name)(**arguments)

    def reset(self, key: int, row: dict[str, Any]) -> Observation:
        """Return the first observation of an episode, empty where the environment says nothing yet."""
        first = self.await_value(self.objects[key].reset(row))
        if isinstance(first, tuple) and len(first) == 2 and isinstance(first[1], dict) and "role" not in first[1]:
            hint = "of gymnasium's observation and info return the observation alone"
            raise WrongValue("2 values from `reset`, not the first observation", None, hint)
        return _observation(first, "reset", ", not the text of the first observation, a message or a list of messages")

    def step(self, key: int, action: str) -> tuple[Observation, float, bool]:
        """Return what the environment answers to `action`: observation, reward, whether the episode is over."""
        answer = self.await_value(self.objects[key].step(action))
        if not isinstance(answer, list | tuple):
            raise WrongValue(f"{describe_value(answer)} from `step`, not the three values (observation, reward, done)")
        if len(answer) != 3:
            raise WrongValue(f"{len(answer)} values from `step`, not the three (observation, reward, done)")
        observation, reward, done = answer
        shown = _observation(observation, "step", " as the observation, which must be a text, a message or messages")
        try:
            value = finite_number(reward, None)
        except WrongValue as wrong:
            raise WrongValue(f"{wrong.message} from `step` as the reward") from None
        if not isinstance(done, bool) and type(done).__name__ not in ("bool_", "bool"):
            raise WrongValue(f"{describe_value(done)} from `step` as `done`, which must be True or False")
        return shown, value, bool(done)

    def begin_players(self, key: int, row: dict[str, Any], players: tuple[str, ...]) -> PlayerTurn:
        """Return who speaks first in an episode of several players, and what it is told. A class for any number of
        players takes their names behind the row."""
        reset = self.objects[key].reset
        first = self.await_value(reset(row, players) if len(inspect.signature(reset).parameters) > 1 else reset(row))
        if not isinstance(first, list | tuple) or len(first) != 2:
            raise WrongValue(f"{_shown(first)} from `reset`, not the two values (player, observation)")
        return _player(first[0], "reset", players), _heard(first[1], "reset")

    def step_players(self, key: int, action: str, players: tuple[str, ...], acting: str) -> PlayerAnswer:
        """Return what follows an action of a player: whose turn it is and what it is told, each player's reward, and
        whether the episode is over."""
        answer = self.await_value(self.objects[key].step(action))
        if not isinstance(answer, list | tuple) or len(answer) != 4:
            raise WrongValue(f"{_shown(answer)} from `step`, not the four values (player, observation, reward, done)")
        player, observation, reward, done = answer
        given = reward if isinstance(reward, dict) else {acting: reward}
        try:
            rewards = {_player(name, "step", players): finite_number(value, None) for name, value in given.items()}
        except WrongValue as wrong:
            if "player" in wrong.message:
                raise
            raise WrongValue(f"{wrong.message} from `step` as the reward") from None
        if not isinstance(done, bool) and type(done).__name__ not in ("bool_", "bool"):
            raise WrongValue(f"{describe_value(done)} from `step` as `done`, which must be True or False")
        if done:
            return acting, "", rewards, True
        return _player(player, "step", players), _heard(observation, "step"), rewards, False

    def close(self, key: int) -> None:
        """End an episode."""
        environment = self.objects.pop(key, None)
        if hasattr(environment, "close"):
            self.await_value(environment.close())

    def solve(
        self, name: str, arguments: dict[str, Any], returns: tuple[str, ...], variables: dict[str, str]
    ) -> list[float]:
        """Return the numbers that an agent returns for an episode; zeros where it returns nothing.

        returns: their names; empty: it returns one, or a dict with a `reward`. variables: those of the environment that
        tell clients where the model is.
        """
        os.environ.update(variables)
        for name_ in ("NO_PROXY", "no_proxy"):
            direct = [*filter(None, os.environ.get(name_, "").split(","))]
            os.environ[name_] = ",".join(dict.fromkeys([*direct, "127.0.0.1"]))
        value = self.await_value(getattr(self.load(), name)(**arguments))
        result = row_result(value, ("reward",) if isinstance(value, dict) and not returns else returns)
        if result[0] == "wrong":
            raise WrongValue(result[1], None, result[2])
        numbers: list[float] = result[1] if result[0] == "value" else [0.0] * max(1, len(returns))
        return numbers

    def tool_schema(self, name: str) -> dict[str, Any]:
        """Return what a chat template is given of a function: its name, what it does, its parameters."""
        from transformers.utils.chat_template_utils import get_json_schema

        return get_json_schema(getattr(self.load(), name))

    def call_tool(self, name: str, arguments: dict[str, Any]) -> str:
        """Return what a function returns, as text: JSON of what is none."""
        value = self.await_value(getattr(self.load(), name)(**arguments))
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        # Half of a surrogate pair is no character, and cannot be encoded.
        return text.encode("utf-8", "replace").decode()

    def await_value(self, value: Any) -> Any:
        """Return `value`, awaited if it is awaitable, in the same event loop each time: clients rely on it."""
        if not inspect.isawaitable(value):
            return value
        if self.runner is None:
            # asyncio takes longer to import than all else here, and few files need it.
            import asyncio

            self.runner = asyncio.Runner()
        return self.runner.run(_awaited(value))


def _shown(value: Any) -> str:
    return f"{len(value)} values" if isinstance(value, list | tuple) else describe_value(value)


def _player(value: Any, method: str, players: tuple[str, ...]) -> str:
    """Return the name of a player. Raises WrongValue where there is none of that name."""
    if value not in players:
        known = ", ".join(f"'{name}'" for name in players)
        raise WrongValue(f"{describe_value(value)} from `{method}` as a player", None, f"the players are {known}")
    return str(value)


def _heard(value: Any, method: str) -> Observation | None:
    """Return what a player is told; None: what the others have said."""
    return (
        None if value is None else _observation(value, method, " as the observation, which must be a text or messages")
    )


def _observation(value: Any, method: str, wanted: str) -> Observation:
    """Return what an environment says: a text, or messages as a list of them. Raises WrongValue, whose end is
    `wanted`, for anything else."""
    if value is None or isinstance(value, str):
        return _characters(value or "", method)
    messages = [value] if isinstance(value, dict) else value
    if not isinstance(messages, list | tuple):
        raise WrongValue(f"{describe_value(value)} from `{method}`{wanted}")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str) or "content" not in message:
            hint = 'a message is `{"role": "user", "content": "..."}`'
            raise WrongValue(f"{message!r:.60} from `{method}`, which is no message", None, hint)
        if isinstance(message["content"], str):
            _characters(message["content"], method)
    return [dict(message) for message in messages]


def _characters(text: str, method: str) -> str:
    """Return the text. Raises WrongValue if it has surrogates, which cannot be encoded."""
    if any("\ud800" <= sign <= "\udfff" for sign in text):
        raise WrongValue(
            f"{describe_value(text)} from `{method}`, a text with half of a surrogate pair, which is no character"
        )
    return text


async def _awaited(value: Any) -> Any:
    return await value


async def _settled(values: list[Any]) -> list[Any]:
    """Return the values, with what is awaitable awaited; what it raised, where it did."""
    import asyncio

    waiting = [value for value in values if inspect.isawaitable(value)]
    settled = iter(await asyncio.gather(*waiting, return_exceptions=True))
    return [next(settled) if inspect.isawaitable(value) else value for value in values]


def row_result(value: Any, returns: tuple[str, ...]) -> RowResult:
    """Return what a function has returned for one row as a `RowResult`.

    returns: the names of its numbers, and of its texts with a `:` in front; empty: it is one number.
    """
    if value is None:
        return ("none",)
    try:
        if not returns:
            return ("value", [finite_number(value, None)])
        parts = named_values(value, returns)
        if any(part is None for part, name in zip(parts, returns, strict=True) if name[0] != ":"):
            return ("none",)
        return (
            "value",
            [
                ("" if part is None else str(part)) if name[0] == ":" else finite_number(part, None)
                for part, name in zip(parts, returns, strict=True)
            ],
        )
    except WrongValue as wrong:
        return ("wrong", wrong.message, wrong.hint)


def named_values(value: Any, returns: tuple[str, ...]) -> list[Any]:
    """Return the values of one row in the order of their names, from a dict, a list or a tuple. Raises WrongValue."""
    names = [name.lstrip(":") for name in returns]
    if isinstance(value, dict):
        missing = next((name for name in names if name not in value), None)
        if missing is not None:
            has = ", ".join(f"'{name}'" for name in list(value)[:8]) or "nothing"
            raise WrongValue(f"a dict without '{missing}'", None, f"it has {has}")
        return [value[name] for name in names]
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        if len(value) != len(names):
            shown = ", ".join(names)
            raise WrongValue(f"{len(value)} values", None, f"for each row it returns {len(names)}: {shown}")
        return list(value)
    if len(names) == 1:
        return [value]
    raise WrongValue(describe_value(value), None, f"for each row it returns a dict or a tuple of {', '.join(names)}")


def columns_as_rows(columns: dict[str, Any], returns: tuple[str, ...], count: int) -> list[list[Any]]:
    """Return rows from a dict with a list for each name. Raises WrongValue."""
    lists = [value.tolist() if hasattr(value, "tolist") else value for value in named_values(columns, returns)]
    for name, values in zip(returns, lists, strict=True):
        if not isinstance(values, list | tuple) or len(values) != count:
            what = f"{len(values)} entries" if isinstance(values, list | tuple) else describe_value(values)
            raise WrongValue(f"{what} as '{name.lstrip(':')}', not a list of {count}")
    return [list(row) for row in zip(*lists, strict=True)]


def finite_number(value: Any, row: int | None) -> float:
    """Return `value` as a finite float: accepts numbers, booleans, and the scalars of numpy and torch."""
    plain = value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value
    if not isinstance(plain, numbers.Real | Decimal):
        raise WrongValue(describe_value(value), row, hint_to_return_number(value))
    if not math.isfinite(plain):
        raise WrongValue(str(float(plain)), row)
    return float(plain)


def hint_to_return_list(value: Any) -> str:
    """Return a hint on what a reward function should return in place of this value; "" if there is none."""
    if value is None:
        return "it has to end with `return`, and a list with a number for each row"
    if isinstance(value, dict):
        return "return the list alone: the numbers that count, as in `return found['rewards']`"
    if isinstance(value, numbers.Real):
        return "it is called on many rows at a time: return a list with a number for each of `completions`"
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return "return a list of it: `return list(...)`, or `[...]` in place of `(...)` or `yield`"
    return ""


def _refuse_table(values: Any, returns: tuple[str, ...]) -> None:
    """Raise WrongValue for an array with several axes, [N, 1] from a head of one output too, where each row has one
    number."""
    shape = list(getattr(values, "shape", ()))
    if not returns and len(shape) > 1:
        hint = "return a number for each of `completions`"
        hint = f"{hint}: `values[:, 0]`" if shape[1:] == [1] else f"{hint}, or name them: `returns=[...]`"
        raise WrongValue(f"{describe_value(values)} of shape {shape}", None, hint)


def hint_to_return_number(value: Any) -> str:
    """Return a hint on what a reward function should return for a row in place of this value; "" if there is none."""
    if isinstance(value, dict):
        names = ", ".join(f'"{name}"' for name in list(value)[:4])
        return f"name its numbers in the declaration, `returns=[{names}]`, or return one: `found['score']`"
    if isinstance(value, list | tuple):
        return 'return one number for each row, or name them in the declaration: `returns=["score", "format"]`'
    return ""


def describe_value(value: Any) -> str:
    """Return a value in a few words: `None`, `'abc'`, `a dict`."""
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else value[:37] + "...")
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def exception_details(error: BaseException, folder: str) -> dict[str, Any]:
    """Return what the user needs to know of an exception: its type, its message with the first cause, and its place in
    the user's own code; of a group, as a `TaskGroup` raises it, those of its first exception."""
    raised = error.__traceback__
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, SyntaxError) and error.filename:
        place = (error.filename, error.lineno or 1)
    else:
        frames = traceback.extract_tb(error.__traceback__ or raised)
        frames = traceback.StackSummary.from_list([frame for frame in frames if frame.filename != __file__])
        user_frames = [frame for frame in frames if _is_users(frame.filename, folder)] or list(frames)
        place = (user_frames[-1].filename, user_frames[-1].lineno or 1) if user_frames else ("", 0)
    message = error.msg if isinstance(error, SyntaxError) else _message(error)
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    if cause is not error:
        message = f"{message} (from {type(cause).__name__}: {_message(cause)})"
    return {"type": type(error).__name__, "message": message, "file": place[0], "line": place[1]}


def _message(error: BaseException) -> str:
    """Return the message of an exception, whose class may be the user's and fail to say one."""
    try:
        return str(error)
    except Exception:
        return ""


class UserFileFinder:
    """Finds the user's file under the name of its module: processes that the user's code starts by `spawn` or
    `forkserver`, as a pool of them does, import what they are to do."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return how the module is loaded; None for any other."""
        file = sys.argv[0]
        return importlib.util.spec_from_file_location(name, file) if name == _module_name(file) else None


def _module_name(file: str) -> str:
    return f"rlgraph_foreign_{Path(file).stem}"


def _is_users(file: str, folder: str) -> bool:
    """Return whether the user wrote `file`: it lies in the folder, and not in a virtual environment there."""
    return file.startswith(folder + os.sep) and "site-packages" not in file


def exit_with_parent(handle: int) -> None:
    """End this process, and what it has started, when the other end is closed while the user's code works."""
    hung_up = select.poll()
    hung_up.register(handle, 0)
    hung_up.poll()
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Answer requests until the other end is closed."""
    handles = [int(word) for word in sys.argv[1:]]
    for handle in handles:
        os.set_inheritable(handle, False)
    link = Connection(handles[0])
    log: TextIO = os.fdopen(handles[1], "w")
    faulthandler.enable(log)
    sys.path[:], file, module = link.recv()
    sys.argv[:] = [file]
    child = Child(file, module)
    threading.Thread(target=exit_with_parent, args=(handles[0],), daemon=True).start()
    while True:
        try:
            operation, limit_s, *arguments = link.recv()
        except (EOFError, ConnectionError, KeyboardInterrupt):
            return
        if limit_s is not None:
            faulthandler.dump_traceback_later(limit_s, exit=True, file=log)
        try:
            reply = ("ok", getattr(child, operation)(*arguments))
        except WrongValue as wrong:
            reply = ("wrong", (wrong.message, wrong.row, wrong.hint))
        except KeyboardInterrupt:
            return
        except BaseException as error:  # sys.exit() of the user's code too
            reply = ("raised", exception_details(error, str(Path(file).parent)))
        faulthandler.cancel_dump_traceback_later()
        try:
            link.send(reply)
        except ConnectionError:  # the run has ended while this worked
            return
        except Exception as error:  # PicklingError, and whatever objects raise while they are pickled
            link.send(("wrong", (f"a value that cannot leave its process ({error})", None)))


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":
    sys.meta_path.append(UserFileFinder)
