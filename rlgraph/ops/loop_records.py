"""The declarations of the operations with a body: slices of a batch, rounds, some steps, conditions."""

from __future__ import annotations

from rlgraph.ir.attributes import Attribute
from rlgraph.ops.node_op import LoopStepRule, NodeOp

KEY = Attribute("key", "name", doc="seeds its random numbers; two of them differ", by="checker")
AXIS = Attribute("axis", "axis", doc="the axis whose rows it is about", by="checker")

LOOPS = (
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
            Attribute("beside", "names", (), doc="other axes that are sliced, too", by="checker"),
            AXIS,
            KEY,
        ),
        has_region=True,
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
            AXIS,
        ),
        has_region=True,
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
        has_region=True,
        loop="steps",
        on_steps=LoopStepRule(lambda step, count: step % count == 0, float),
        pure=False,
        effect=True,
    ),
    NodeOp(
        "if",
        "any* -> any*",
        "batch",
        "A body that runs only where a number says so.",
        "a condition is about all rows",
        has_region=True,
        loop="condition",
        pure=False,
        effect=True,
    ),
)
