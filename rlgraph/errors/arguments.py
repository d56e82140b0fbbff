"""Checks what Python gives to the functions of `rlgraph.__all__` and to what they return: what kind of value each
argument is, by its name, which means the same everywhere."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlgraph.errors import NO_SPAN, Diagnostic, UsageMistake

PICTURES = ("dataflow", "plan", "pipelines")

WRONG_ARGUMENT = "E0894"
NO_CLUSTER = "E0895"


@dataclass(frozen=True, slots=True)
class ArgumentKind:
    """What an argument may be, in words and as a test."""

    wanted: str
    accepts: Callable[[object], bool]


def check_arguments(**given: object) -> None:
    """Raise UsageMistake for the first argument of another kind than its name says; None is left out, where that is
    allowed."""
    for name, value in given.items():
        kind = _KINDS[name]
        if not kind.accepts(value) and (value is not None or name in _NEEDED):
            raise wrong_argument(name, kind.wanted, value)


def wrong_argument(name: str, wanted: str, value: object) -> UsageMistake:
    """Return the error for an argument of another kind."""
    return UsageMistake(Diagnostic(WRONG_ARGUMENT, f"`{name}` is {wanted}, not {value!r:.60}", NO_SPAN))


def no_cluster_error(what: str) -> UsageMistake:
    """Return the error for what needs a cluster. what: the whole message."""
    hint = 'name one: `rlgraph.compile(..., cluster="1x8:h100-80gb")`'
    return UsageMistake(Diagnostic(NO_CLUSTER, what, NO_SPAN, hint))


def _text(value: object) -> bool:
    return isinstance(value, str)


def _path(value: object) -> bool:
    return isinstance(value, str | Path)


def _truth(value: object) -> bool:
    # NumPy has truth values of its own.
    return isinstance(value, bool) or type(value).__name__ == "bool" or (isinstance(value, int) and value in (0, 1))


def _number(
    low: float = -math.inf, high: float = math.inf, read: Callable[[Any], float] = float
) -> Callable[[object], bool]:
    def accepts(value: object) -> bool:
        if isinstance(value, bool | str | bytes):
            return False
        # NumPy and torch have numbers of their own, and arrays that are none.
        try:
            return low <= read(value) <= high
        except (TypeError, ValueError, OverflowError, RuntimeError):
            return False

    return accepts


def _whole(low: float) -> Callable[[object], bool]:
    return _number(low, read=operator.index)


def _object(name: str) -> Callable[[object], bool]:
    """Return a test for the class of this name, or one made of it, without importing it."""
    return lambda value: name in (cls.__name__ for cls in type(value).__mro__)


def _text_or(accepts: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, str) or accepts(value)


def _picture(value: object) -> bool:
    return isinstance(value, str) and value in PICTURES


def _paths(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(map(_path, value))


def _names(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, Sequence) and all(isinstance(item, str) for item in value))


def _prompts(value: object) -> bool:
    """Return whether it is a list of prompts. A text is a sequence of texts, and a conversation one of messages: they
    would be answered piece by piece."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        return False
    return all(isinstance(prompt, str | list | tuple) for prompt in value)


_A_PATH = ArgumentKind("a path", _path)
_TRUTH = ArgumentKind("True or False", _truth)
_LENGTH = ArgumentKind('a number of tokens, or a text such as "mean=350,p99=1500"', _text_or(_number(0)))
_SECONDS = ArgumentKind("a number of seconds, at least 0", _number(0))
_SHARE = ArgumentKind("a share from 0 to 1", _number(0, 1))

_KINDS: Mapping[str, ArgumentKind] = {
    "program": ArgumentKind("a path, the name of an algorithm, or the text of a program", _path),
    "programs": ArgumentKind("a list of paths", _paths),
    "name": ArgumentKind("a text", _text),
    "schedule": ArgumentKind("a path, or the text of a schedule", _path),
    "cluster": ArgumentKind('a text such as "1x8:h100-80gb", or a cluster', _text_or(_object("Cluster"))),
    "workload": ArgumentKind("what `rlgraph.workload(...)` returns", _object("Workload")),
    "compiled": ArgumentKind("what `rlgraph.compile(...)` returns", _object("Compilation")),
    **dict.fromkeys(
        ("path", "folder", "calibration", "lengths", "beside", "out", "record", "replay", "trace", "resume"), _A_PATH
    ),
    **dict.fromkeys(
        ("offload", "fuse", "stream", "overwrite", "debug", "track_model", "changed", "progress", "embed"), _TRUTH
    ),
    "search_seconds": _SECONDS,
    "search_gap": _SHARE,
    "sweep": ArgumentKind('a text such as "devices=16,32,64"', _text),
    "picture": ArgumentKind(" or ".join(f'"{name}"' for name in PICTURES), _picture),
    "prefix": ArgumentKind("a text", _text),
    "address": ArgumentKind("a text", _text),
    "backend": ArgumentKind("a text", _text),
    "keep_best": ArgumentKind("the name of a metric, as a text", _text),
    "track": ArgumentKind("the name of a tracker, or a list of such", _names),
    "steps": ArgumentKind("a whole number", _whole(-math.inf)),
    "seed": ArgumentKind("a whole number", _whole(-math.inf)),
    **dict.fromkeys(("prompt_tokens", "response_tokens", "observation_tokens", "turns"), _LENGTH),
    "environment_seconds": ArgumentKind('a number of seconds, or a text such as "mean=2,p99=30"', _LENGTH.accepts),
    "kept": ArgumentKind("a share above 0, up to 1", _number(1e-9, 1)),
    "kept_tokens": ArgumentKind("a number, at least 1", _number(1)),
    "foresight": _SHARE,
    "alike": ArgumentKind("a share from 0 to less than 1", _number(0, 1 - 1e-9)),
    "prompts": ArgumentKind("a list of prompts, each a text or a list of messages", _prompts),
    "max_tokens": ArgumentKind("a whole number, at least 1", _whole(1)),
    "temperature": ArgumentKind("a number, at least 0", _number(0)),
}
"""For each name of an argument what it may be."""


def known_arguments() -> list[str]:
    """Return the names of all arguments that can be checked."""
    return [*_KINDS]


_NEEDED = frozenset(
    {"program", "compiled", "name", "sweep", "steps", "seed", "kept", "alike", "prompts", "max_tokens", "temperature"}
)
"""Arguments that cannot be None."""
