"""Operations on tables, models and things that live across steps: a record for each says all that is known of it.

Everything else asks the record and knows no names. `NODES[node.op]` has the traits, and a few questions about a node
are functions here:

    op = NODES[node.op]
    op.generates         a model makes new rows                                    generate interact
    op.scores            a model computes something for rows that are there        logprobs entropy values score
    op.trains            an optimizer step of a model                              train
    op.with_model        any of the three: work that a plan gives to a group
    op.updates           a model has other weights afterwards                      train update
    op.selects           its outputs are inputs, or parts of them, where they are  column keep pick recent aged soonest
    op.chooses           which input says what rows stay, None where none does     keep pick recent aged soonest
    op.region            it holds a graph
    op.loop              how often that graph is run: "slices", "rounds" or "steps"        minibatch collect every
    op.body              it is written as expressions                              tensor
    op.pure              same inputs, same outputs, and nothing else happens: two of them are one
    op.counts            how many rows there are: it reads none of them            size
    op.foreign           it runs the user's Python                                 call interact
    op.random, op.effect, op.streams, op.barrier, op.free
    op.attributes        names, types, ranges and defaults of its attributes

    attr(node, "lag")    an attribute's value, the record's default where the node does not say it
    unit_word(node)      "row", "group" or "batch": the least that it works on
    planned_as("apply")  the operation as which a plan places its work: "train"
    model_of(node)       the version of the weights that it uses, by name; "" of none
    table_of(node)       the rows that a model is asked about, by name; "" of none
    rows_each(node)      of a node that generates: the rows that it makes for each one that it is asked
    expected_of(node)    of a node that generates: how long its rows are expected to be, by name; "" where nobody says
    at_once(node, rows)  of a `collect`: the batches that it begins side by side
    chosen_from(node)    of a node that chooses rows: the inputs that they are chosen from
    way_to(table, makers)  the nodes by which rows came into a table, the last one first
    sampler(table, makers) the one among them that sampled the rows; None where none did
    code_of(node)        the function or environment of the user's that it runs, by name; "" of none
    work_of("train")     "trains", "generates", "scores" or None: of a name, which may be none of an operation
    MODEL_OPERATIONS     names of all operations with_model, in the order of this file
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from rlgraph.ir.attributes import Attribute, Required
from rlgraph.ir.graph import SPANS, Node
from rlgraph.ops.optimizers import attributes as of_optimizers

Work = Literal["generates", "scores", "trains"]
Unit = Literal["row", "group", "batch"]


@dataclass(frozen=True, slots=True)
class OnSteps:
    """Of a loop that runs its region on some steps: what its count means. Steps are counted from 1."""

    when: Callable[[int, int], bool]
    """Whether it does in a step, given that and the count."""
    period: Callable[[int], float]
    """Given the count, the steps from one time to the next in the long run: what a plan reckons with."""


@dataclass(frozen=True, slots=True)
class NodeOp:
    name: str
    signature: str
    """Kinds of the inputs and outputs: `model table -> table`; `*` repeats the kind before it, `any` fits all."""
    unit: Unit
    """The least that it works on; of a node whose attribute `over` says it that (`unit_word`)."""
    doc: str
    reason: str = ""
    """Of a unit that is larger than a row: why."""
    attributes: tuple[Attribute, ...] = ()
    work: Work | None = None
    """What it does with a model's weights."""
    updates: bool = False
    """Its model has other weights afterwards."""
    selects: bool = False
    """What it makes are inputs of it, or parts of them: the rows stay where they are."""
    chooses: int | None = None
    """Of an operation that selects rows: the place of the input that says which."""
    region: bool = False
    loop: Literal["slices", "rounds", "steps"] | None = None
    """How often it runs its region: for each slice of its axis, until there are enough rows of its axis, or on some
    steps. A region that is no loop is run once."""
    on_steps: OnSteps | None = None
    """Of a loop on some steps, whose statement is `WORD COUNT:`; its attribute `steps` has the count."""
    body: bool = False
    """Its work is written in the node, as expressions."""
    pure: bool = True
    """The same inputs make the same outputs, and nothing else happens: two of them are one."""
    random: bool = False
    effect: bool = False
    """It has to happen even if nobody uses what it makes."""
    streams: bool = False
    """Its rows are ready one by one: an engine that can may hand them on before the last is done."""
    free: bool = False
    """It is read off what is there already: no time is planned for it."""
    counts: bool = False
    """It is about how many rows an axis has, and reads none of them."""
    foreign: str = ""
    """Of an operation that runs the user's Python: the attribute that names the function or environment."""
    weighs: bool = False
    """It makes a number for each row by which rows are shared out: whoever does that is told them."""
    part_of: str = ""
    """Of an operation that no program asks for: that of the program which it does a part of. A plan only knows that."""

    @property
    def generates(self) -> bool:
        return self.work == "generates"

    @property
    def scores(self) -> bool:
        return self.work == "scores"

    @property
    def trains(self) -> bool:
        return self.work == "trains"

    @property
    def with_model(self) -> bool:
        return self.work is not None

    @property
    def barrier(self) -> bool:
        """It waits for the whole batch."""
        return self.unit == "batch"

    def place(self, kind: str) -> int | None:
        """The place of the first input of a kind; None if it takes none."""
        words = self.signature.split("->")[0].split()
        return next((at for at, word in enumerate(words) if kind in word.rstrip("*").split("|")), None)

    def attribute(self, name: str) -> Attribute:
        return next(each for each in self.attributes if each.name == name)


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
    *of_optimizers(),
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
"""What a plan gives to groups of processes: everything that computes with a model's weights."""


def work_of(operation: str) -> Work | None:
    """What an operation does with a model's weights; None of one that needs no model, or of a name that is none."""
    return NODES[operation].work if operation in NODES else None


def attr(node: Node, name: str) -> Any:
    """An attribute's value; the record's default where the node does not say it."""
    default = NODES[node.op].attribute(name).default
    return node.attr(name, None if isinstance(default, Required) else default)


def unit_word(node: Node) -> Unit:
    """The least that a node works on: that of its operation, or what its function needs to see."""
    op = NODES[node.op]
    says = any(each.name == "over" for each in op.attributes)
    return cast(Unit, attr(node, "over")) if says else op.unit


def planned_as(operation: str) -> str:
    """The operation as which a plan places the work of one."""
    return NODES[operation].part_of or operation


def model_of(node: Node) -> str:
    """The version of the weights that a node uses, that which is trained or replaced first; "" of none."""
    return _input(node, "model")


def table_of(node: Node) -> str:
    """The rows that a node is about, by the name of their table; "" of none."""
    return _input(node, "table")


def rows_each(node: Node) -> int:
    """Of a node that generates: how many rows it makes for each one that it is asked. It may sample more of them."""
    found: int = node.attr("first") or attr(node, "n")
    return found


def expected_of(node: Node) -> str:
    """Of a node that generates: the value that says how long its rows are expected to be; "" where a plan asks for
    none."""
    return node.inputs[2] if NODES[node.op].streams and len(node.inputs) > 2 else ""


def at_once(node: Node, missing: float) -> int:
    """Of a `collect`: how many batches it begins side by side where so many rows are missing."""
    ahead = attr(node, "ahead")
    return 1 if ahead is None else math.ceil(ahead * missing / node.attr("batch") - 1e-9)


def code_of(node: Node) -> str:
    """The function or environment of the user's that a node runs, by name; "" of none."""
    name = NODES[node.op].foreign
    return str(node.attr(name)) if name else ""


def needed(node: Node) -> tuple[str, ...]:
    """The values that a node's work reads: rows that are only chosen from stay where they are."""
    chooses = NODES[node.op].chooses
    return node.inputs if chooses is None or not node.outputs else (node.inputs[chooses],)


def chosen_from(node: Node) -> tuple[str, ...]:
    """Of a node that chooses rows: the inputs that they are chosen from, one for each output."""
    at = NODES[node.op].chooses
    assert at is not None
    return node.inputs[:at] + node.inputs[at + 1 :]


def way_to(table: str, makers: Mapping[str, tuple[Node, int]]) -> Iterator[tuple[Node, int]]:
    """The nodes by which rows came into a table, the last one first, each with which of its outputs they are.

    makers: of each value of a graph who makes it, and as which output."""
    while table in makers:
        node, at = makers[table]
        op = NODES[node.op]
        yield node, at
        if op.region:
            table = node.region.outputs[at]
        else:
            table = chosen_from(node)[at] if op.chooses is not None else table_of(node)


def sampler(table: str, makers: Mapping[str, tuple[Node, int]]) -> Node | None:
    """Who sampled the rows of a table."""
    return next((node for node, _ in way_to(table, makers) if NODES[node.op].generates), None)


def _input(node: Node, kind: str) -> str:
    place = NODES[node.op].place(kind)
    return "" if place is None or place >= len(node.inputs) else node.inputs[place]
