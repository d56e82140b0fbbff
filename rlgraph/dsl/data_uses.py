"""How a program uses the data: where their rows are asked, read and given to functions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rlgraph.columns import Column
from rlgraph.conversations import RowFormat
from rlgraph.ir.graph import Node
from rlgraph.ir.types import DType

Known = Mapping[str, Mapping[str, Column] | None]
"""What the columns of each data source hold; None where the data have not been read."""


@dataclass(frozen=True, slots=True)
class PromptUse:
    """Prompts of the data that a model answers, or that it reads with their answers."""

    node: Node
    source: str
    column: str
    model: str
    chosen: bool
    """Whether these are only some of the rows: others were left out before."""
    shape: RowFormat | None = None
    """The columns of rows whose answers the model does not generate; `column` is that of their prompts, or of the
    answers where there is none."""
    whole: bool = False
    """Whether the rows are given as a table, so that their tools are used."""
    last: bool = False
    """Whether only the last turn of a conversation carries loss."""
    as_message: bool = False
    """Whether the program makes a message of each text."""


@dataclass(frozen=True, slots=True)
class GivenColumn:
    """A column that the program gives to a function."""

    dtype: DType
    data: str = ""
    """The column of the data that it is; empty where the program computes it."""


@dataclass(frozen=True, slots=True)
class FunctionUse:
    """A call of a function on answers of a model to prompts of the data."""

    function: str
    source: str
    prompt: str
    """The column of the prompts."""
    siblings: int
    """How many answers to a prompt there are, if none was left out."""
    columns: Mapping[str, GivenColumn]


@dataclass(frozen=True, slots=True)
class Origin:
    """From which data the rows of a table are."""

    source: str
    prompt: str = "prompt"
    """The column of the data that the rows have as `prompt`: the one that a model answered. Empty where the program
    computed what it answered."""

    def column_in_data(self, name: str) -> str:
        """Return the column of the data that a column of the rows is, or a part of one; empty where it is none."""
        outer, dot, inner = name.partition(".")
        if outer != "prompt":
            return name
        return f"{self.prompt}{dot}{inner}" if self.prompt else ""


class LoadedFunction(Protocol):
    """A function of the program, as far as it is loaded."""

    def accepts_column(self, name: str) -> bool:
        """Return whether the function takes a column of that name."""
        ...

    def missing_columns(self, names: Collection[str]) -> Sequence[str]:
        """Return what the function asks for and is not given by rows with these columns."""
        ...
