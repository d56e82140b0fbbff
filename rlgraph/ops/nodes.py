"""Operations of nodes: on tables, models and things that live across steps. A record declares each of them.

All other code asks the record instead of comparing names. `NODES[node.op]` has the traits, and functions here answer
questions about a node:

    op = NODES[node.op]
    op.generates         a model makes new rows                                    generate interact
    op.scores            a model computes something for existing rows              logprobs entropy values score
    op.trains            an optimizer step of a model                              train
    op.with_model        any of these three: work that a plan gives to a group
    op.updates           the model has other weights afterwards                    train update
    op.selects           its outputs are inputs or parts of them, without a copy   column keep pick recent aged soonest
    op.chooses           the index of the input that says which rows stay, or None keep pick recent aged soonest
    op.region            it has a graph
    op.loop              what that graph is run for: "slices", "rounds" or "steps" minibatch collect every
    op.body              its work is given as expressions                          tensor
    op.pure              the same inputs give the same outputs, without side effects: equal nodes can be merged
    op.counts            it counts rows without reading them                       size
    op.foreign           it runs the user's Python                                 call interact
    op.random, op.effect, op.streams, op.barrier, op.free
    op.attributes        names, types, ranges and defaults of its attributes

    attr(node, "lag")    an attribute's value, or the record's default where the node has none
    unit_word(node)      "row", "group" or "batch": the smallest unit that it works on
    planned_as("apply")  the operation under which a plan places its work: "train"
    model_of(node)       the name of the weights that it uses; "" for none
    table_of(node)       the name of the table that it works on; "" for none
    rows_each(node)      for a node that generates: how many rows it makes for each input row
    expected_of(node)    for a node that generates: the name of the expected lengths of its rows; "" for none
    at_once(node, rows)  for a `collect`: how many batches it begins concurrently
    chosen_from(node)    for a node that chooses rows: the inputs that they are chosen from
    way_to(table, makers)  the nodes through which rows came into a table, the last one first
    sampler(table, makers) the node among them that sampled the rows; None where none did
    code_of(node)        the name of the user's function or environment that it runs; "" for none
    work_of("train")     "trains", "generates", "scores" or None, for any name
    MODEL_OPERATIONS     the names of all operations with_model, in the order of this file
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from rlgraph.ir.attributes import Attribute, Required
from rlgraph.ir.graph import SPANS, Node
from rlgraph.ops.optimizers import optimizer_attributes

Work = Literal["generates", "scores", "trains"]
Unit = Literal["row", "group", "batch"]


@dataclass(frozen=True, slots=True)
class OnSteps:
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
    region: bool = False
    loop: Literal["slices", "rounds", "steps"] | None = None
    """How often it runs its region: for each slice of its axis, until its axis has enough rows, or on some steps. A
    region without a loop runs once."""
    on_steps: OnSteps | None = None
    """When a loop on some steps runs; its statement is `WORD COUNT:`, and the attribute `steps` has the count."""
    body: bool = False
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
    counts: bool = False
    """Whether it counts the rows of an axis without reading them."""
    foreign: str = ""
    """The attribute that names the user's function or environment, for an operation that runs it."""
    weighs: bool = False
    """Whether its output, a number for each row, balances the distribution of rows over replicas."""
    part_of: str = ""
    """The operation of a program of which it is a part, where programs do not use it directly; plans only know that
    one."""

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
    def with_model(self) -> bool:
        """Whether it computes with a model's weights."""
        return self.work is not None

    @property
    def barrier(self) -> bool:
        """Whether it waits for the whole batch."""
        return self.unit == "batch"

    def place(self, kind: str) -> int | None:
        """Return the index of the first input of a kind; None if it takes none."""
        words = self.signature.split("->")[0].split()
        return next((at for at, word in enumerate(words) if kind in word.rstrip("*").split("|")), None)

    def attribute(self, name: str) -> Attribute:
        """Return the declaration of an attribute."""
        return next(attribute for attribute in self.attributes if attribute.name == name)


_SAMPLING = (
    Attribute("n", "int", 1, 1, 65536, "samples for each row; above 1 they are a new axis inside it"),
    Attribute("temperature", "float", 1.0, 0.0, 100.0, "0 takes the likeliest token"),
    Attribute("top_p", "float", 1.0, 1e-6, 1.0, "sample from the likeliest tokens that together have this probability"),
    Attribute("top_k", "int", 0, 0, None, "sample from this many of the likeliest tokens; 0: from all"),
)
_KEY = Attribute("key", "name", doc="seeds its random numbers; two of them differ", by="checker")
_LAG = (
    Attribute("lag", "int", 0, 0, 1024, "steps that its weights lag behind", by="checker"),
    Attribute("staleness", "int", 0, 0, 1024, "steps that its rows may be behind", by="checker"),
    Attribute("held", "int", 0, 0, 1024, "of these, steps that its rows may wait for training", by="checker"),
    Attribute("span", "word", "row", doc="what is of one version", by="checker", names=lambda: SPANS),
)
_AXIS = Attribute("axis", "axis", doc="the axis whose rows it is about", by="checker")
_TABLE = Attribute("table", "name", doc="the table, as the program calls it", by="checker")
_NAMES = Attribute("names", "names", doc="of the inputs that are no table, in their order", by="checker")
UNITS = ("row", "group", "batch")
_TEMPERATURE = Attribute("temperature", "float", 1.0, 1e-6, 100.0, "that at which the rows were sampled")
_OPTIMIZER = (
    Attribute("lr", "rate", low=0.0, doc="learning rate, or a schedule by update"),
    Attribute("clip_norm", "float", 0.0, 0.0, None, "the gradient's norm at most; 0: as it is"),
    *optimizer_attributes(),
)
_UPDATE = "an optimizer step needs the gradient of all its rows"

_ALL = (
    NodeOp(
        "read",
        "cursor -> table cursor",
        "batch",
        "The next rows of a data source.",
        "a data source is read a batch at a time",
        pure=False,
        random=True,
    ),
    NodeOp("encode", "table|tensor tensor -> table", "row", "Prompt and answer as tokens; the answer's carry loss."),
    NodeOp(
        "length",
        "tensor -> tensor",
        "row",
        "Tokens of each text of a column; of a list of messages with what the chat template adds.",
        free=True,
    ),
    NodeOp(
        "column",
        "table -> tensor",
        "row",
        "A column of a table.",
        attributes=(Attribute("name", "name", doc="of the column", by="checker"),),
        selects=True,
        free=True,
    ),
    NodeOp(
        "generate",
        "model table|tensor tensor* -> table",
        "row",
        "Rows that a model samples from each prompt.",
        attributes=(
            *_SAMPLING,
            Attribute("first", "int", None, 1, 65536, "of each row's `n` samples only those that end first, so many"),
            Attribute("max_tokens", "int", low=0, doc="tokens of an answer at most, its end included"),
            Attribute("min_tokens", "int", 0, 0, None, "tokens before an answer may end"),
            Attribute("stop", "texts", (), doc="an answer ends with any of these tokens"),
            _KEY,
            *_LAG,
        ),
        work="generates",
        pure=False,
        random=True,
        streams=True,
    ),
    NodeOp(
        "interact",
        "model table -> table",
        "row",
        "Episodes of a model with an environment.",
        attributes=(
            *_SAMPLING,
            Attribute("max_turns", "int", low=1, doc="times the model may act"),
            Attribute("max_tokens", "int", low=1, doc="tokens of an episode at most, the environment's included"),
            Attribute("env", "name", doc="the environment", by="checker"),
            _KEY,
            *_LAG,
        ),
        work="generates",
        pure=False,
        random=True,
        foreign="env",
    ),
    NodeOp(
        "logprobs",
        "model table -> tensor",
        "row",
        "Log-probability of each token that carries loss.",
        attributes=(_TEMPERATURE,),
        work="scores",
    ),
    NodeOp(
        "entropy",
        "model table -> tensor",
        "row",
        "Entropy of the distribution that each token was sampled from.",
        attributes=(_TEMPERATURE,),
        work="scores",
    ),
    NodeOp("values", "model table -> tensor", "row", "Value of the state before each token.", work="scores"),
    NodeOp("score", "model table -> tensor", "row", "A reward model's score of each row.", work="scores"),
    NodeOp(
        "call",
        "table tensor* -> tensor",
        "row",
        "A Python function of the user's.",
        attributes=(
            Attribute("func", "name", doc="the function", by="checker"),
            _NAMES,
            Attribute(
                "over",
                "word",
                "group",
                doc="the rows on which the number of a row may depend",
                by="checker",
                names=lambda: UNITS,
            ),
        ),
        pure=False,
        foreign="func",
    ),
    NodeOp("tensor", "tensor* -> tensor*", "row", "Tensor mathematics.", body=True),
    NodeOp(
        "size",
        "any -> tensor",
        "batch",
        "How many rows an axis has in the whole batch.",
        "the rows are counted when all are there",
        attributes=(_AXIS,),
        free=True,
        counts=True,
    ),
    NodeOp(
        "keep",
        "tensor any* -> any*",
        "row",
        "Rows of an axis, and of all axes in it, where a condition holds.",
        attributes=(_AXIS,),
        selects=True,
        chooses=0,
    ),
    NodeOp(
        "pick",
        "table tensor -> table",
        "group",
        "One row of each group.",
        "a group is compared as a whole",
        selects=True,
        chooses=1,
    ),
    NodeOp(
        "recent",
        "tensor -> ",
        "batch",
        "Of rows that a `collect` has carried over those that are not too old; by the versions of what lies in them.",
        "rows that earlier steps have left over are looked at together",
        attributes=(
            _AXIS,
            Attribute("model", "name", doc="that sampled them", by="checker"),
            Attribute("oldest", "int", 0, 0, 1024, "steps that they may be behind", by="checker"),
        ),
        selects=True,
        chooses=0,
        effect=True,
        free=True,
    ),
    NodeOp(
        "aged",
        "tensor* -> ",
        "batch",
        "The rows that a `collect` has, those first whose oldest versions are the oldest; none is left out.",
        "rows of several batches are compared",
        attributes=(_AXIS, Attribute("models", "names", doc="that sampled them, for each input", by="checker")),
        selects=True,
        chooses=0,
        effect=True,
        free=True,
    ),
    NodeOp(
        "soonest",
        "tensor* -> ",
        "batch",
        "The rows that a `collect` has, those first that end first: whose longest answers are the shortest.",
        "rows of several batches are compared",
        attributes=(_AXIS,),
        selects=True,
        chooses=0,
        effect=True,
        free=True,
    ),
    NodeOp("lookup", "keyed tensor -> tensor", "row", "A keyed state's value for each row's key.", free=True),
    NodeOp(
        "assign",
        "keyed tensor tensor -> keyed",
        "batch",
        "A keyed state with new values, the mean where keys repeat.",
        "rows of one key may be anywhere in the batch",
        pure=False,
    ),
    NodeOp(
        "push",
        "buffer table tensor* -> buffer",
        "batch",
        "A buffer with these rows added.",
        "a buffer is filled in the order of the batch",
        attributes=(_NAMES,),
        pure=False,
    ),
    NodeOp(
        "sample",
        "buffer -> table",
        "batch",
        "Rows sampled from a buffer.",
        "it samples from the whole buffer",
        attributes=(Attribute("rows", "int", low=1, doc="rows to sample"), _KEY),
        pure=False,
        random=True,
    ),
    NodeOp(
        "update",
        "model model -> model",
        "batch",
        "A model with another's weights, or with a moving average of them.",
        "weights change between steps of the program",
        attributes=(Attribute("ema", "float", None, 0.0, 1.0, "share of the old weights that stays"),),
        updates=True,
        pure=False,
    ),
    NodeOp(
        "report",
        "tensor* -> ",
        "batch",
        "Values for the log, exact over all rows.",
        "a metric is over all rows",
        attributes=(replace(_NAMES, doc="of the metrics, in the order of the inputs"),),
        pure=False,
        effect=True,
        free=True,
    ),
    NodeOp(
        "train",
        "model any* -> model any*",
        "batch",
        "One optimizer step on a loss.",
        _UPDATE,
        attributes=(
            *_OPTIMIZER,
            Attribute(
                "micro", "axis", None, doc="rows of this axis may be computed apart; none: all at once", by="pass"
            ),
            Attribute("why", "text", doc="why they may not", by="pass"),
        ),
        work="trains",
        updates=True,
        region=True,
        pure=False,
    ),
    NodeOp(
        "accumulate",
        "model any* -> tensor any*",
        "row",
        "The gradient of a loss on some rows, added to that of the rows before; makes a 1 for each.",
        attributes=(_AXIS,),
        work="trains",
        region=True,
        pure=False,
        part_of="train",
    ),
    NodeOp(
        "apply",
        "model tensor -> model",
        "batch",
        "One optimizer step with the gradient that was accumulated, times a number.",
        _UPDATE,
        attributes=_OPTIMIZER,
        work="trains",
        updates=True,
        pure=False,
        part_of="train",
    ),
    NodeOp(
        "expect",
        "table|tensor -> tensor",
        "row",
        "How many tokens each row of a table that is going to be sampled will have.",
        attributes=(
            _TABLE,
            Attribute("func", "name", "", doc="the function that says so", by="checker"),
            Attribute("column", "name", "", doc="the column of the data that does", by="checker"),
        ),
        pure=False,
        free=True,
        foreign="func",
        weighs=True,
        part_of="generate",
    ),
    NodeOp(
        "learn",
        "tensor -> ",
        "batch",
        "How many tokens the rows of a table have had, for those of the same prompts in later steps.",
        "it is told when all are there",
        attributes=(_TABLE, Attribute("samples", "bool", False, doc="rows lie in those of a prompt", by="checker")),
        pure=False,
        effect=True,
        free=True,
        part_of="generate",
    ),
    NodeOp(
        "minibatch",
        "any* -> any*",
        "batch",
        "A body for each slice of an axis.",
        "slices are of the whole batch",
        attributes=(
            Attribute("parts", "int", 1, 1, None, "slices", counts="part"),
            Attribute("epochs", "int", 1, 1, None, "passes over all slices", counts="epoch"),
            Attribute("shuffle", "bool", False, doc="each pass with other slices"),
            _AXIS,
            _KEY,
        ),
        region=True,
        loop="slices",
        pure=False,
    ),
    NodeOp(
        "collect",
        "any* -> any*",
        "batch",
        "A body on fresh batches until enough rows are kept.",
        "how many rows are kept is known at the end",
        attributes=(
            Attribute("rows", "int", low=1, doc="rows to keep", counts="row"),
            Attribute("rounds", "int", 64, 1, None, "give up after so many batches"),
            Attribute(
                "ahead", "float", None, 1.0, 64.0, "begin so many times the batches that are missing, side by side"
            ),
            Attribute(
                "rest",
                "word",
                "carry",
                doc="what becomes of the surplus, and which rows that is",
                names=lambda: ("carry", "drop", "later", "longest"),
            ),
            Attribute("once", "bool", False, doc="the surplus is carried over once at most", by="checker"),
            Attribute(
                "late",
                "word",
                "wait",
                doc="what becomes of surplus that is too old",
                by="checker",
                names=lambda: ("wait", "drop", "again"),
            ),
            Attribute(
                "order",
                "word",
                "data",
                doc="which of the rows that are there it takes",
                by="checker",
                names=lambda: ("data", "arrival", "deadline"),
            ),
            Attribute("batch", "int", None, 1, None, "rows that are read at a time", by="checker"),
            _AXIS,
        ),
        region=True,
        loop="rounds",
        pure=False,
    ),
    NodeOp(
        "every",
        "any* -> any*",
        "batch",
        "A body on some steps only.",
        "what happens on some steps only waits for what it uses",
        attributes=(Attribute("steps", "int", low=1, doc="from one time to the next", counts="step"),),
        region=True,
        loop="steps",
        on_steps=OnSteps(lambda step, count: step % count == 0, float),
        pure=False,
        effect=True,
    ),
)

NODES: Mapping[str, NodeOp] = {op.name: op for op in _ALL}

MODEL_OPERATIONS = tuple(op.name for op in _ALL if op.with_model and not op.part_of)
"""The operations that a plan gives to groups of processes: all that compute with a model's weights."""


def work_of(operation: str) -> Work | None:
    """Return what an operation does with a model's weights; None if it needs no model or does not exist."""
    return NODES[operation].work if operation in NODES else None


def attribute_value(node: Node, name: str) -> Any:
    """Return an attribute's value, or the record's default where the node has none."""
    default = NODES[node.op].attribute(name).default
    return node.attr(name, None if isinstance(default, Required) else default)


def unit_word(node: Node) -> Unit:
    """Return the smallest unit that a node works on: that of its operation, or what its function needs to see."""
    op = NODES[node.op]
    has_over = any(attribute.name == "over" for attribute in op.attributes)
    return cast(Unit, attribute_value(node, "over")) if has_over else op.unit


def planned_as(operation: str) -> str:
    """Return the operation under which a plan places an operation's work."""
    return NODES[operation].part_of or operation


def model_of(node: Node) -> str:
    """Return the name of the weights that a node uses, those that are trained or replaced first; "" for none."""
    return _input(node, "model")


def table_of(node: Node) -> str:
    """Return the name of the table that a node works on; "" for none."""
    return _input(node, "table")


def rows_per_input(node: Node) -> int:
    """Return how many rows a node that generates makes for each input row. It may sample more of them."""
    rows: int = node.attr("first") or attribute_value(node, "n")
    return rows


def expected_lengths_of(node: Node) -> str:
    """Return the name of the expected lengths of the rows of a node that generates; "" where a plan asks for none."""
    return node.inputs[2] if NODES[node.op].streams and len(node.inputs) > 2 else ""


def concurrent_batches(node: Node, missing: float) -> int:
    """Return how many batches a `collect` begins concurrently where so many rows are missing."""
    ahead = attribute_value(node, "ahead")
    return 1 if ahead is None else math.ceil(ahead * missing / node.attr("batch") - 1e-9)


def code_of(node: Node) -> str:
    """Return the name of the user's function or environment that a node runs; "" for none."""
    name = NODES[node.op].foreign
    return str(node.attr(name)) if name else ""


def read_inputs(node: Node) -> tuple[str, ...]:
    """Return the inputs that a node reads; rows that are only chosen from are not read."""
    chooses = NODES[node.op].chooses
    return node.inputs if chooses is None or not node.outputs else (node.inputs[chooses],)


def chosen_from(node: Node) -> tuple[str, ...]:
    """Return the inputs that a node chooses rows from, one for each output."""
    at = NODES[node.op].chooses
    assert at is not None
    return node.inputs[:at] + node.inputs[at + 1 :]


def row_history(table: str, makers: Mapping[str, tuple[Node, int]]) -> Iterator[tuple[Node, int]]:
    """Return the nodes through which rows came into a table, the last one first, each with the index of the output.

    makers: for each value of a graph the node that makes it, and the index of the output."""
    while table in makers:
        node, at = makers[table]
        op = NODES[node.op]
        yield node, at
        if op.region:
            table = node.region.outputs[at]
        else:
            table = chosen_from(node)[at] if op.chooses is not None else table_of(node)


def sampling_node(table: str, makers: Mapping[str, tuple[Node, int]]) -> Node | None:
    """Return the node that sampled the rows of a table; None if none did. makers: as in `row_history`."""
    return next((node for node, _ in row_history(table, makers) if NODES[node.op].generates), None)


def _input(node: Node, kind: str) -> str:
    place = NODES[node.op].place(kind)
    return "" if place is None or place >= len(node.inputs) else node.inputs[place]
