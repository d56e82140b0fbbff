"""Lookups by name that users do in Python: who asks for a name that is not there is told which names are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NoReturn, Protocol, TypeVar

from rlgraph.errors import NO_SPAN, Diagnostic, UsageMistake, known_names_hint

UNKNOWN_NAME = "E0898"


class UnknownName(UsageMistake, KeyError):
    """The error for a name that is not there. As any mapping's it is a KeyError, too."""

    __str__ = Exception.__str__  # A KeyError shows its text as a literal.


class HasName(Protocol):
    """Anything that can be looked up by its name."""

    @property
    def name(self) -> str: ...


Item = TypeVar("Item")
Thing = TypeVar("Thing", bound=HasName)


def unknown_name(owner: str, kind: str, name: object, known: Collection[str]) -> UnknownName:
    """Return the error for a name that is not there: "the run has no model `actr`"."""
    message = f"{owner} has no {kind} `{name}`"
    return UnknownName(Diagnostic(UNKNOWN_NAME, message, NO_SPAN, known_names_hint(str(name), known, "it has")))


def thing_of_name(owner: str, kind: str, name: str, things: Collection[Thing]) -> Thing:
    """Return the thing of this name. Raise UnknownName."""
    for thing in things:
        if thing.name == name:
            return thing
    raise unknown_name(owner, kind, name, [thing.name for thing in things])


class ByName(dict[str, Item]):
    """A dict for users: a name that it lacks raises UnknownName."""

    __slots__ = ("_kind", "_owner")

    def __init__(
        self, items: Mapping[str, Item] | Iterable[tuple[str, Item]] = (), owner: str = "it", kind: str = "entry"
    ) -> None:
        super().__init__(items)
        self._owner, self._kind = owner, kind

    def __missing__(self, name: object) -> NoReturn:
        raise unknown_name(self._owner, self._kind, name, self)
