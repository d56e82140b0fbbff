"""What an operation's attributes may be: their types, ranges and defaults, and what is wrong with a value."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import Literal

from rlgraph.ir.graph import Constant, Record

AttributeType = Literal[
    "int", "float", "bool", "text", "texts", "word", "rate", "name", "names", "axis", "source", "lora", "columns", "any"
]
"""`word`: one of its names, without quotes; `rate`: a number or a schedule of one (`cosine(...)`); `name`, `names`: of
things in the program; `axis`: the key of an axis; `source`: a path, a hub name or `random(...)`; `lora`: adapters.
"""


class Required:
    """In place of a default: the value has to be there."""

    def __repr__(self) -> str:
        return "required"


REQUIRED = Required()


@dataclass(frozen=True, slots=True)
class Attribute:
    name: str
    type: AttributeType
    default: Constant | Required = REQUIRED
    """What holds where a node does not say it; None: there may be none."""
    low: float | None = None
    high: float | None = None
    doc: str = ""
    by: Literal["user", "checker", "pass"] = "user"
    """Who writes it: an option of the language, the checker, or a pass (the pipeline says which, and only after that
    is it there)."""

    names: Callable[[], Iterable[str]] | None = None
    """Of a word or a text that is one of these names: they are its doc, where it has none."""
    counts: str = ""
    """Of a loop: it says how often the body runs, and this is what is counted."""

    @property
    def about(self) -> str:
        """What it is, in a few words."""
        return self.doc or self.choice

    @property
    def choice(self) -> str:
        """The names that it may be."""
        *others, last = self.names() if self.names else ("",)
        return f"{', '.join(others)} or {last}" if others else last

    def problem(self, value: Constant, axes: Container[object]) -> str:
        """What is wrong with a value, or nothing; `axes` are the keys of those in the program."""
        if value is None and self.default is None:
            return ""
        if not fits(self.type, value):
            return f"`{self.name}` is {self.type}, not {value!r}"
        if self.type == "word" and self.names and value not in list[Constant](self.names()):
            return f"`{self.name}` is {self.choice}, not {value!r}"
        if self.type == "axis" and value not in axes:
            return f"`{self.name}` is an axis, and no axis is called {value!r}"
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            low, high = self.low, self.high
            if (low is not None and value < low) or (high is not None and value > high):
                return f"`{self.name}` is {value!r}, which is not in [{low}, {high}]"
        return ""


def fits(type_: AttributeType, value: Constant) -> bool:
    """Whether a value is of a type."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if type_ == "int":
        return number and isinstance(value, int)
    if type_ == "float":
        return number
    if type_ == "rate":
        return number or isinstance(value, Record)
    if type_ == "bool":
        return isinstance(value, bool)
    if type_ == "any":
        return True
    if type_ in ("lora", "columns"):
        return isinstance(value, Record)
    if type_ == "source":
        return isinstance(value, (str, Record))
    if type_ in ("texts", "names"):
        return isinstance(value, tuple) and all(isinstance(item, str) for item in value)
    return isinstance(value, str)
