"""Axes and types: what every value in a program is laid out along.

All axes are of one kind: the rows of an axis lie inside the rows of its parent. Prompts have no parent, rollouts lie in
prompts, tokens lie in rollouts. So broadcast is a gather from a parent, a reduction is a sum into a parent, and
everything that plans, splits or streams asks the same question: which axis lies inside which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeGuard

DType = Literal["float", "int", "bool", "number", "text", "any", "row"]
"""`any` is a data column whose content is only known when it is read, and `number` what is computed of one: whole if
the column is. `row` points at one row of a table."""


@dataclass(frozen=True, slots=True)
class Axis:
    key: str
    """Unique in the program: `rollout`, `rollout.token`, `prompts.2` (the prompts that a `keep` left)."""
    name: str
    """The user's word: `rollout`, `token`, `prompts`."""
    parent: Axis | None = None
    """The axis whose rows these rows lie in."""
    inner: bool = False
    """It runs along the inside of a row (`token`, `turn`): ordered, never split between devices."""

    def path(self) -> Iterator[Axis]:
        """This axis, its parent, and so on to the root."""
        axis: Axis | None = self
        while axis is not None:
            yield axis
            axis = axis.parent

    def within(self, other: Axis | None) -> bool:
        """Whether rows of this axis lie in rows of `other` (or are them); all lie in the whole batch, None."""
        if other is None:
            return True
        # Asked for every block: a loop is half of the time of a generator.
        axis: Axis | None = self
        while axis is not None and axis.key != other.key:
            axis = axis.parent
        return axis is not None

    @property
    def depth(self) -> int:
        """1 for a root: sorted by it, outer axes come first."""
        return sum(1 for _ in self.path())

    @property
    def row(self) -> Axis:
        """The innermost row axis at or above this one: what can be split and sent."""
        return next(axis for axis in self.path() if not axis.inner)

    @property
    def root(self) -> Axis:
        """The outermost axis: the rows of the data, or of what else these began with."""
        *_, last = self.path()
        return last

    @property
    def label(self) -> str:
        """As the user reads it: `rollout, token`."""
        return f"{self.parent.name}, {self.name}" if self.inner and self.parent else self.name


def join(a: Axis | None, b: Axis | None) -> Axis | None:
    """The inner one of two axes that nest; raises ValueError when they do not."""
    if a is None or (b is not None and b.within(a)):
        return b
    if b is None or a.within(b):
        return a
    raise ValueError(f"{a.key} and {b.key} do not nest")


@dataclass(frozen=True, slots=True)
class Tensor:
    """An entry for each row of an axis, or a single one."""

    dtype: DType
    axis: Axis | None = None

    def __str__(self) -> str:
        return f"{self.dtype}[{self.axis.label}]" if self.axis else self.dtype


OLDEST = "_version"
"""The column of the oldest version of each row, where versions are those of tokens: the checker asks for it, and no
program. A row without a token is of the version with which it ended."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows with columns. A table that has tokens is what models read and write."""

    axis: Axis
    token: Axis | None = None
    """The axis of the tokens that carry loss: those the model wrote, or an encoded answer."""
    turn: Axis | None = None
    """The axis of the turns with an environment."""
    sampled: bool = False
    """A model of this program sampled it: it has the sampler's log-probabilities, versions, ages."""
    spans: bool = False
    """Its tokens may be of several versions: `version` and `age` have an entry for each."""
    temperature: float = 1.0
    """At which it was sampled; log-probabilities of its tokens are taken at the same."""
    data: tuple[str, ...] | None = ()
    """Columns of the data its rows came from; None where the data cannot be looked at yet: any name may be one."""
    extra: tuple[tuple[str, Tensor], ...] = ()
    """Columns that the program itself put there."""

    def __str__(self) -> str:
        return f"table[{self.axis.label}]"

    def columns(self) -> dict[str, Tensor]:
        """Every column that is sure to be there, with its type."""
        found = {name: Tensor("any", self.axis) for name in self.data or ()}
        if self.token:
            found |= {
                "tokens": Tensor("int", self.token),
                "end": Tensor("bool", self.token),
                "length": Tensor("int", self.axis),
                "text": Tensor("text", self.axis),
            }
        if self.sampled:
            versions = Tensor("int", self.token if self.spans else self.axis)
            found |= {
                "logprobs": Tensor("float", self.token),
                "version": versions,
                "age": versions,
                "finished": Tensor("bool", self.axis),
            }
            if self.spans:
                found[OLDEST] = Tensor("int", self.axis)
        if self.turn:
            found |= {"reward": Tensor("float", self.turn), "turns": Tensor("int", self.axis)}
        return found | dict(self.extra)


@dataclass(frozen=True, slots=True)
class Handle:
    """Something that lives across steps and is threaded through the graph as a value: order and versions are edges."""

    kind: Literal["model", "cursor", "keyed", "buffer"]
    name: str

    def __str__(self) -> str:
        return f"{self.kind}<{self.name}>"


Type = Tensor | Table | Handle

Infer = Callable[[str, tuple[Tensor, ...], Axis | None], Tensor]
"""The type of a tensor operation's result; `rlgraph.ops.infer`."""


def is_model(kind: Type) -> TypeGuard[Handle]:
    """Whether a value is a model's weights."""
    return isinstance(kind, Handle) and kind.kind == "model"


def axis_of(kind: Type) -> Axis | None:
    """The axis that a value's rows lie on; None for a single value or a handle."""
    return None if isinstance(kind, Handle) else kind.axis


def axes_of(kind: Type) -> tuple[Axis, ...]:
    """Every axis that a value has entries along: a table brings those of its tokens and turns."""
    if isinstance(kind, Table):
        return tuple(axis for axis in (kind.axis, kind.token, kind.turn) if axis)
    axis = axis_of(kind)
    return (axis,) if axis else ()
