"""Operations on tables, models and things that live across steps: what goes in, what comes out, the least they work
on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class NodeOp:
    name: str
    signature: str
    """Kinds of the inputs and outputs: `model table -> table`; `*` repeats the kind before it, `any` fits all."""
    unit: Literal["row", "group", "batch"]
    doc: str
    reason: str = ""
    """Of a unit that is larger than a row: why."""
    region: bool = False
    effect: bool = False
    """It has to happen even if nobody uses what it makes."""
    draws: bool = False
    """It is random: two of them are never one."""


_ALL = (
    NodeOp(
        "read",
        "cursor -> table cursor",
        "batch",
        "The next rows of a data source.",
        "a data source is read a batch at a time",
        draws=True,
    ),
    NodeOp("encode", "table|tensor tensor -> table", "row", "Prompt and answer as tokens; the answer's carry loss."),
    NodeOp("column", "table -> tensor", "row", "A column of a table."),
    NodeOp("generate", "model table|tensor -> table", "row", "Rows that a model samples from each prompt.", draws=True),
    NodeOp("interact", "model table -> table", "row", "Episodes of a model with an environment.", draws=True),
    NodeOp("logprobs", "model table -> tensor", "row", "Log-probability of each token that carries loss."),
    NodeOp("entropy", "model table -> tensor", "row", "Entropy of the distribution that each token was drawn from."),
    NodeOp("values", "model table -> tensor", "row", "Value of the state before each token."),
    NodeOp("score", "model table -> tensor", "row", "A reward model's score of each row."),
    NodeOp("call", "table tensor* -> tensor", "row", "A Python function of the user's."),
    NodeOp("tensor", "tensor* -> tensor*", "row", "Tensor mathematics."),
    NodeOp(
        "size",
        "any -> tensor",
        "batch",
        "How many rows an axis has in the whole batch.",
        "the rows are counted when all are there",
    ),
    NodeOp("keep", "tensor any* -> any*", "row", "Rows of an axis, and of all axes in it, where a condition holds."),
    NodeOp("pick", "table tensor -> table", "group", "One row of each group.", "a group is compared as a whole"),
    NodeOp("lookup", "keyed tensor -> tensor", "row", "A keyed state's value for each row's key."),
    NodeOp(
        "assign",
        "keyed tensor tensor -> keyed",
        "batch",
        "A keyed state with new values, the mean where keys repeat.",
        "rows of one key may be anywhere in the batch",
    ),
    NodeOp(
        "push",
        "buffer table tensor* -> buffer",
        "batch",
        "A buffer with these rows added.",
        "a buffer is filled in the order of the batch",
    ),
    NodeOp(
        "sample",
        "buffer -> table",
        "batch",
        "Rows drawn from a buffer.",
        "the draw is from the whole buffer",
        draws=True,
    ),
    NodeOp(
        "update",
        "model model -> model",
        "batch",
        "A model with another's weights, or with a moving average of them.",
        "weights change between steps of the program",
    ),
    NodeOp(
        "report",
        "tensor* -> ",
        "batch",
        "Values for the log, exact over all rows.",
        "a metric is over all rows",
        effect=True,
    ),
    NodeOp(
        "train",
        "any* -> any*",
        "batch",
        "One optimizer step on a loss.",
        "an optimizer step needs the gradient of all its rows",
        region=True,
    ),
    NodeOp(
        "minibatch",
        "any* -> any*",
        "batch",
        "A body for each slice of an axis.",
        "slices are of the whole batch",
        region=True,
    ),
    NodeOp(
        "collect",
        "any* -> any*",
        "batch",
        "A body on fresh batches until enough rows are kept.",
        "how many rows are kept is known at the end",
        region=True,
    ),
    NodeOp(
        "every",
        "any* -> any*",
        "batch",
        "A body on some steps only.",
        "what happens on some steps only waits for what it uses",
        region=True,
        effect=True,
    ),
)

NODES: dict[str, NodeOp] = {op.name: op for op in _ALL}

DRAWING = ("generate", "interact")
"""What a model samples."""

MODEL_CALLS = ("logprobs", "entropy", "values", "score")
"""What a model computes for rows that are there, with gradients where it is being trained."""
