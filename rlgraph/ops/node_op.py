"""What is declared of an operation of nodes; `records` has the declarations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rlgraph.ir.attributes import Attribute

Work = Literal["generates", "scores", "trains"]
Unit = Literal["row", "group", "batch"]


@dataclass(frozen=True, slots=True)
class LoopStepRule:
    """What the count of a loop means that runs its region on some steps. Steps are counted from 1."""

    when: Callable[[int, int], bool]
    """Returns whether the region runs, given the step and the count."""
    period: Callable[[int], float]
    """Returns the average number of steps from one run to the next, given the count: plans reckon with it."""


@dataclass(frozen=True, slots=True)
class NodeOp:
    """The declaration of an operation of nodes."""

    name: str
    signature: str
    """The kinds of inputs and outputs: `model table -> table`; `*` repeats the kind before it, `any` fits all."""
    unit: Unit
    """The smallest unit that it works on; an attribute `over` of a node takes precedence (`unit_word`)."""
    doc: str
    reason: str = ""
    """Why its unit is larger than a row, where it is."""
    attributes: tuple[Attribute, ...] = ()
    work: Work | None = None
    """What it does with a model's weights."""
    updates: bool = False
    """Whether its model has other weights afterwards."""
    selects: bool = False
    """Whether its outputs are inputs or parts of them, so that the rows stay where they are."""
    chooses: int | None = None
    """The index of the input that says which rows an operation selects."""
    has_region: bool = False
    loop: Literal["slices", "rounds", "steps", "condition"] | None = None
    """How often it runs its region: for each slice of its axis, until its axis has enough rows, on some steps, or once
    where a number says so. A region without a loop runs once."""
    on_steps: LoopStepRule | None = None
    """When a loop on some steps runs; its statement is `WORD COUNT:`, and the attribute `steps` has the count."""
    has_body: bool = False
    """Whether its work is given in the node, as expressions."""
    pure: bool = True
    """Whether the same inputs give the same outputs, without side effects: equal nodes can be merged."""
    random: bool = False
    effect: bool = False
    """Whether it must run even if nothing uses its outputs."""
    streams: bool = False
    """Whether its rows are ready one by one, so that an engine may hand them on before the last is done."""
    free: bool = False
    """Whether a plan counts no time for it, as it reads off existing values."""
    joint: bool = False
    """Whether it may read other models beside its own, each given in front of its table."""
    counts: bool = False
    """Whether it counts the rows of an axis without reading them."""
    foreign: str = ""
    """The attribute that names the user's function or environment, for an operation that runs it."""
    weighs: bool = False
    """Whether its output, a number for each row, balances the distribution of rows over replicas."""
    done_where: str = ""
    """The operation whose processes do it, of the model that its attribute `model` names, where it needs no model: its
    rows are there."""
    nests: bool = False
    """Whether its rows lie in those of its table, and were sampled with them."""
    part_of: str = ""
    """The operation of a program of which it is a part, where programs do not use it directly; plans only know that
    one."""

    latex: str = ""
    """Its form in LaTeX, where it is not a function of its name: `#1` is the first input, `#*` are all others. One that
    begins with a relation, `\\sim`, has no `=` before it."""

    @property
    def generates(self) -> bool:
        """Whether a model makes new rows."""
        return self.work == "generates"

    @property
    def scores(self) -> bool:
        """Whether a model computes something for existing rows."""
        return self.work == "scores"

    @property
    def trains(self) -> bool:
        """Whether it is an optimizer step of a model, or a part of one."""
        return self.work == "trains"

    @property
    def uses_model(self) -> bool:
        """Whether it computes with a model's weights."""
        return self.work is not None

    @property
    def is_column(self) -> bool:
        """Whether its output is a part of its input, which is there as soon as that is."""
        return self.selects and self.chooses is None

    @property
    def is_barrier(self) -> bool:
        """Whether it waits for the whole batch."""
        return self.unit == "batch"

    def input_index(self, kind: str) -> int | None:
        """Return the index of the first input of a kind; None if it takes none."""
        words = self.signature.split("->")[0].split()
        return next((at for at, word in enumerate(words) if kind in word.rstrip("*").split("|")), None)

    def attribute_named(self, name: str) -> Attribute:
        """Return the declaration of an attribute."""
        return next(attribute for attribute in self.attributes if attribute.name == name)
