"""Finds in a regular expression what takes exponentially long on a text that it does not match."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

_LOOPS = ("MAX_REPEAT", "MIN_REPEAT")
_MANY = 32
"""A repetition of at most more times than this counts as one without a limit."""

Item = tuple[Any, Any]
"""An operation of Python's parser of regular expressions, and its arguments."""


def backtracks_exponentially(pattern: str) -> bool:
    """Return whether a pattern repeats a repetition, `(a+)+b`, so that there are twice as many ways to divide a text
    with each sign more, all of which are tried before it is no match. Raises re.error for no regular expression."""
    return _is_ambiguous([*import_module("re._parser").parse(pattern)], fails=False)


def _is_ambiguous(items: Sequence[Item], *, fails: bool) -> bool:
    """fails: whether something follows that may not be there, so that other ways are tried."""
    for place, item in enumerate(items):
        may_fail = fails or any(_may_fail(other) for other in items[place + 1 :])
        if _is_loop(item) and may_fail and any(_divides_itself(way) for way in _ways([*item[1][2]])):
            return True
        if any(_is_ambiguous(inside, fails=may_fail) for inside in _inside(item)):
            return True
    return False


def _divides_itself(items: Sequence[Item]) -> bool:
    """Return whether two turns of a loop with this body may be one: it is a repetition, and all else may be empty."""
    return any(
        _holds_loop(item) and all(_may_be_empty(other) for at, other in enumerate(items) if at != place)
        for place, item in enumerate(items)
    )


def _ways(items: Sequence[Item]) -> list[list[Item]]:
    """Return the bodies that one in groups stands for: its alternatives."""
    flat: list[Item] = []
    for item in items:
        flat += [*item[1][3]] if _name(item) == "SUBPATTERN" else [item]
    if len(flat) == 1 and _name(flat[0]) == "BRANCH":
        return [way for alternative in flat[0][1][1] for way in _ways([*alternative])]
    return [flat] if len(flat) == len(items) and flat == [*items] else _ways(flat)


def _inside(item: Item) -> list[list[Item]]:
    """Return the patterns in an operation."""
    name, given = _name(item), item[1]
    if name in (*_LOOPS, "POSSESSIVE_REPEAT"):
        return [[*given[2]]]
    if name == "SUBPATTERN":
        return [[*given[3]]]
    if name == "BRANCH":
        return [[*alternative] for alternative in given[1]]
    return [[*given]] if name == "ATOMIC_GROUP" else [[*given[1]]] if name in ("ASSERT", "ASSERT_NOT") else []


def _is_loop(item: Item) -> bool:
    return _name(item) in _LOOPS and int(item[1][1]) > _MANY


def _holds_loop(item: Item) -> bool:
    """Return whether an operation is a loop, or may be nothing but one: `(a+)?`."""
    return _is_loop(item) or _name(item) in _LOOPS and any(_divides_itself(way) for way in _ways([*item[1][2]]))


def _may_be_empty(item: Item) -> bool:
    name, given = _name(item), item[1]
    if name in (*_LOOPS, "POSSESSIVE_REPEAT"):
        return int(given[0]) == 0 or all(_may_be_empty(inner) for inner in given[2])
    if name == "BRANCH":
        return any(all(_may_be_empty(inner) for inner in alternative) for alternative in given[1])
    return name in ("SUBPATTERN", "ATOMIC_GROUP") and all(
        _may_be_empty(inner) for inside in _inside(item) for inner in inside
    )


def _may_fail(item: Item) -> bool:
    """Return whether an operation may find nothing where it stands."""
    return not _may_be_empty(item)


def _name(item: Item) -> str:
    return str(item[0])
