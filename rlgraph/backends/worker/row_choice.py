"""The operations that choose rows: which rows of an axis each takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch

from rlgraph.backends.frame import Frame, NodeOutput
from rlgraph.backends.selection import select_rows
from rlgraph.backends.worker.columns import Who, column_tensor
from rlgraph.backends.worker.draws import draw
from rlgraph.backends.worker.sampling import rows_of_inner_axes, table_type
from rlgraph.backends.worker.session import Session
from rlgraph.errors import Diagnostic, RunError
from rlgraph.ir.graph import Node
from rlgraph.ir.types import Axis, Table, axis_of


def run_keep(node: Node, frame: Frame, session: Session) -> NodeOutput:
    """Choose the rows of an axis where a condition holds, or that are drawn; they are the rows of new axes."""
    return select_rows(node, frame, chosen_row_indices(node, frame, session))


def chosen_row_indices(node: Node, frame: Frame, session: Session) -> np.ndarray:
    """Return which rows a node takes that only selects some, int64."""
    axis, places = _CHOOSE[node.op](node, frame, session)
    if axis is None:
        return places
    if session.notes.wanted:
        row_ids, chosen = frame.rows[axis].known_ids, set(places.tolist())
        dropped = [row for place, row in enumerate(row_ids) if place not in chosen]
        session.notes.add_note(frame.step, "dropped", node.name, dropped)
    return places


def _kept_places(node: Node, frame: Frame, session: Session) -> tuple[str, np.ndarray]:
    """Return an axis, and which of its rows are kept, int64."""
    mask, kind = frame.values[node.inputs[0]], frame.types[node.inputs[0]]
    axis = axis_of(kind)
    assert axis is not None
    if isinstance(mask, list):
        mask = column_tensor(mask, node.inputs[0], row_namer(frame, node.inputs[0]), node.span, torch.float64)
    kept = np.flatnonzero(np.asarray(mask, dtype=bool)[frame.ancestor_rows(node.attr("axis"), axis.key)])
    return node.attr("axis"), kept


def _resampled_places(node: Node, frame: Frame, session: Session) -> tuple[str, np.ndarray]:
    """Return an axis, and which of its rows are drawn, as often as they are, int64."""
    axis, group = node.attr("axis"), node.attr("group")
    value, weight_axis = frame.values[node.inputs[0]], axis_of(frame.types[node.inputs[0]])
    assert weight_axis is not None
    who = row_namer(frame, node.inputs[0])
    if isinstance(value, list):
        value = column_tensor(value, node.inputs[0], who, node.span, torch.float64)
    given = np.asarray(value, dtype=np.float64)
    wrong = np.flatnonzero(~np.isfinite(given) | (given < 0))
    if wrong.size:
        message = f"{who(int(wrong[0]))} has the weight {given[wrong[0]]:g}, which no row can be drawn with"
        raise RunError(
            Diagnostic("E0896", message, node.span, "weights are numbers from 0 on: take `abs(x)` or `max(x, 0)`")
        )
    weights = given[frame.ancestor_rows(axis, weight_axis.key)]
    above = np.zeros(len(weights), dtype=np.int64) if group is None else frame.ancestor_rows(axis, group)
    ids = frame.rows[axis].known_ids
    drawn = [np.arange(0)]
    for place in np.unique(above):
        members = np.flatnonzero(above == place)
        name = "the batch" if group is None else frame.rows[group].row_name(int(place))
        if not weights[members].any():
            message = f"all rows of {name} have the weight 0: none can be drawn"
            hint = "add a little to each, `weight=w + 1e-6`, or drop such groups above with `keep`"
            raise RunError(Diagnostic("E0897", message, node.span, hint))
        # In the order of their identities, which no block and no plan changes.
        members = members[sorted(range(len(members)), key=lambda at: repr(ids[members[at]]))]
        names = [ids[member] for member in members]
        key = f"{node.attr('key')}/{name if group else ''}"
        drawn.append(members[draw(weights[members], names, node.attr("rows"), node.attr("replace"), key, frame.step)])
    return axis, np.sort(np.concatenate(drawn))


def _recent_places(node: Node, frame: Frame, session: Session) -> tuple[str, np.ndarray]:
    """Return an axis, and which of its rows have nothing in them that is too old, int64."""
    value_axis = axis_of(frame.types[node.inputs[0]])
    assert value_axis is not None
    axis, versions = node.attr("axis"), frame.values[node.inputs[0]].numpy()
    age = session.versions.version_at(node.attr("model"), frame.step) - versions
    old = frame.ancestor_rows(value_axis.key, axis)[age > node.attr("oldest")]
    return axis, np.setdiff1d(np.arange(frame.row_count(axis)), old)


def _aged_places(node: Node, frame: Frame, session: Session) -> tuple[str, np.ndarray]:
    """Return an axis, and its rows in the order of the age of the oldest that lies in them, older ones first, int64."""
    axis = node.attr("axis")
    sampled = zip(node.inputs, node.attr("models"), strict=True)
    ages = [
        (name, session.versions.version_at(model, frame.step) - frame.values[name].numpy()) for name, model in sampled
    ]
    return axis, np.argsort(-frame.max_per_row(axis, ages), kind="stable")


def _soonest_places(node: Node, frame: Frame, session: Session) -> tuple[str, np.ndarray]:
    """Return an axis, and its rows by the tokens of the longest answer in each, the shortest first, int64. A row that
    was given up has none, and counts as longer than any other."""
    axis = node.attr("axis")
    lengths = [(name, frame.values[name].numpy()) for name in node.inputs]
    longest = frame.max_per_row(axis, [(name, np.where(tokens > 0, tokens, np.inf)) for name, tokens in lengths])
    return axis, np.argsort(longest, kind="stable")


def _condition(node: Node, frame: Frame, session: Session) -> tuple[None, np.ndarray]:
    """Return no axis, and one place where a condition holds, none where it does not, int64."""
    return None, np.arange(int(bool(frame.values[node.inputs[0]])))


def run_pick(node: Node, frame: Frame, session: Session) -> NodeOutput:
    """Do `pick`: one row of each group."""
    made = select_rows(node, frame, chosen_row_indices(node, frame, session))
    made.rows.extend(rows_of_inner_axes(table_type(node), made.values[node.name]))
    return made


def _picked_places(node: Node, frame: Frame, session: Session) -> tuple[str, np.ndarray]:
    """Return a table's axis, and which of its rows each group's chosen one is, int64."""
    index: np.ndarray = frame.values[node.inputs[1]].numpy()
    kind, made = frame.types[node.inputs[0]], table_type(node)
    assert isinstance(kind, Table)
    if bool((index < 0).any()):
        place = int((index < 0).argmax())
        who = frame.rows[made.axis.key].row_name(place)
        raise RunError(
            Diagnostic(
                "E0736",
                f"{who} has no rows left to pick from",
                node.span,
                f"drop it first: `keep {made.axis.name} where ...`",
            )
        )
    places: np.ndarray = index + group_starts(frame, kind.axis, made.axis)
    return kind.axis.key, places


def group_starts(frame: Frame, axis: Axis, group: Axis) -> np.ndarray:
    """Return for each row of `group` the place of its first row on `axis`, int64."""
    counts = np.bincount(frame.ancestor_rows(axis.key, group.key), minlength=frame.row_count(group.key))
    first: np.ndarray = counts.cumsum() - counts
    return first


def row_namer(frame: Frame, name: str) -> Who:
    """Return the function that names the rows of a value in a message."""
    axis = axis_of(frame.types[name])
    return frame.rows[axis.key].row_name if axis else lambda place: f"row {place}"


_CHOOSE: Mapping[str, Callable[[Node, Frame, Session], tuple[str | None, np.ndarray]]] = {
    "keep": _kept_places,
    "resample": _resampled_places,
    "pick": _picked_places,
    "recent": _recent_places,
    "aged": _aged_places,
    "soonest": _soonest_places,
    "when": _condition,
    "stop": _condition,
}
"""Which rows each operation chooses, by its name."""
