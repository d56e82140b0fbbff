"""Declares the attributes of operations: their types, ranges and defaults; and checks values against them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import Literal

from rlgraph.ir.graph import Constant, ConstructorCall

AttributeType = Literal[
    "int",
    "float",
    "bool",
    "text",
    "texts",
    "word",
    "outcome",
    "rate",
    "name",
    "names",
    "axis",
    "source",
    "lora",
    "chat",
    "columns",
    "any",
]
"""`word`: one of the attribute's `names`, without quotes; `outcome`: one of these, or a number; `rate`: a number or a
schedule of one (`cosine(...)`);
`name`, `names`: names of things in the program; `axis`: the key of an axis; `source`: a path, a hub name,
`gguf(...)` or `random(...)`; `lora`: adapters; `chat`: how conversations are written."""


class Required:
    """The type of `REQUIRED`, which stands in place of a default where a value must be given."""

    def __repr__(self) -> str:
        return "required"


REQUIRED = Required()


@dataclass(frozen=True, slots=True)
class Attribute:
    """The declaration of one attribute of an operation."""

    name: str
    type: AttributeType
    default: Constant | Required = REQUIRED
    """The value where a node does not give one; None: there may be no value."""
    low: float | None = None
    high: float | None = None
    doc: str = ""
    by: Literal["user", "checker", "pass"] = "user"
    """Who writes it: the user, as an option of the language, the checker, or a pass. The pipeline says which pass;
    before it a node does not have the attribute."""

    names: Callable[[], Iterable[str]] | None = None
    """The names that a word or text may be; they are listed as its doc where it has none."""
    counts: str = ""
    """What is counted, where it says how often the body of a loop runs."""
    excluded: tuple[float, ...] = ()
    """The ends of its range that it cannot be itself."""

    @property
    def summary(self) -> str:
        """A short description."""
        return self.doc or self.choices_text

    @property
    def choices_text(self) -> str:
        """The names that it may be, as text."""
        *others, last = self.names() if self.names else ("",)
        if self.type == "outcome":
            others, last = [*others, last], "a number"
        return f"{', '.join(others)} or {last}" if others else last

    def value_problem(self, value: Constant, axes: Container[object]) -> str:
        """Return what is wrong with a value, or an empty text. axes: the keys of the program's axes."""
        if value is None and self.default is None:
            return ""
        if not has_attribute_type(self.type, value):
            return f"`{self.name}` is {self.type}, not {value!r}"
        if self.type == "word" and self.names and value not in list[Constant](self.names()):
            return f"`{self.name}` is {self.choices_text}, not {value!r}"
        if self.type == "axis" and value not in axes:
            return f"`{self.name}` is an axis, and no axis is called {value!r}"
        if isinstance(value, (int, float)) and not isinstance(value, bool) and (bound := self.missed_bound(value)):
            return f"`{self.name}` is {bound}, not {value!r}"
        return ""

    def missed_bound(self, value: float) -> str:
        """Return the end of the range that a number is not within, such as `at least 1`, or an empty text."""
        low, high = self.low, self.high
        if low is not None and (value < low or (value == low and low in self.excluded)):
            return f"{'above' if low in self.excluded else 'at least'} {low:g}"
        if high is not None and (value > high or (value == high and high in self.excluded)):
            return f"{'below' if high in self.excluded else 'at most'} {high:g}"
        return ""


def has_attribute_type(type_: AttributeType, value: Constant) -> bool:
    """Return whether a value has an attribute type."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if type_ == "int":
        return number and isinstance(value, int)
    if type_ == "float":
        return number
    if type_ == "rate":
        return number or isinstance(value, ConstructorCall)
    if type_ == "outcome":
        return number or isinstance(value, str)
    if type_ == "bool":
        return isinstance(value, bool)
    if type_ == "any":
        return True
    if type_ in ("lora", "chat", "columns"):
        return isinstance(value, ConstructorCall)
    if type_ == "source":
        return isinstance(value, (str, ConstructorCall))
    if type_ in ("texts", "names"):
        return isinstance(value, tuple) and all(isinstance(item, str) for item in value)
    return isinstance(value, str)
