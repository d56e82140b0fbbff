"""This module runs `collect`: it runs the region on fresh batches until enough rows are kept, and decides which rows
are taken now, which begin the next step's, and which are asked again."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rlgraph.backends.collect_batches import CollectBatches, Surplus
from rlgraph.backends.frame import Frame
from rlgraph.backends.regions import LOOKS, Loop, loop_body
from rlgraph.backends.step import Ended, Step
from rlgraph.errors import Diagnostic, RunError
from rlgraph.ir.graph import Graph, Node
from rlgraph.ir.types import Table, axis_of
from rlgraph.ops.nodes import NODES, attribute_value, concurrent_batches


def run_collect(loop: Loop) -> Frame:
    """Run the region on fresh batches until enough rows are kept, and take some of them."""
    if attribute_value(loop.node, "order") != "data":
        now = collect_as_they_end(loop)
    elif attribute_value(loop.node, "rest") == "longest":
        now = collect_soonest(loop)
    else:
        now = collect_in_order(loop)
    now.values.update({value.name: now.values[inner] for inner, value in loop.node.exported_values})
    return now


def collect_in_order(loop: Loop) -> Frame:
    """Take the first rows in the order of the data. The surplus begins the next step's, or is asked again there, or is
    dropped; so are rows of it that are too old."""
    node, frame = loop.node, loop.frame
    rest, late = attribute_value(node, "rest"), attribute_value(node, "late")
    axis, wanted = node.attr("axis"), node.attr("rows")
    place, name = _surplus_of(node)
    names = _kept_names(node)
    before, loop.carried[place] = loop.carried[place], None
    again = before if rest == "later" else None
    if late != "wait":
        before, old = (None, None) if before is None else _split_recent(loop, before)
        loop.metrics[f"{name}.late"] = 0.0 if old is None else float(old.row_count(axis))
        again = old if late == "again" and old is not None and old.row_count(axis) else None
    parts: list[Frame] = [before] if before is not None and rest == "carry" else []
    kept, rounds = sum(part.row_count(axis) for part in parts), 0
    while kept < wanted or again is not None:
        allowed, missing = node.attr("rounds") - rounds, wanted - kept
        if not allowed:
            raise _too_few_rows(node, kept, rounds)
        begun = [] if again is None else [_batch_again(loop, again)]
        if again is None or attribute_value(node, "ahead") is not None:
            missing -= 0 if again is None else again.row_count(axis)
            begun += [
                frame.child_frame() for _ in range(min(allowed - len(begun), concurrent_batches(node, max(0, missing))))
            ]
        bodies = loop.run_bodies(begun)
        # What is asked again was read before all others.
        parts = [*parts, *bodies] if again is None else [bodies[0], *parts, *bodies[1:]]
        kept, rounds, again = kept + sum(body.row_count(axis) for body in bodies), rounds + len(bodies), None
        loop.host.report_progress(f"{kept} of {wanted} rows kept")
    joined, top = _joined(loop, parts)
    last = int(joined.ancestor_rows(axis, top)[wanted - 1]) + 1
    now, _ = joined.slice_rows(top, np.arange(last), names)
    # What was carried over once is the first of them.
    first = max(last, before.row_count(top)) if before is not None and attribute_value(node, "once") else last
    kept_for_later = names if rest == "carry" else [_data_table(node)]
    later, _ = joined.slice_rows(top, np.arange(first, joined.row_count(top)), kept_for_later)
    loop.carried[place] = later if later.row_count(top) and rest != "drop" else None
    left = joined.row_count(axis) - now.row_count(axis)
    if rest == "later":
        loop.metrics[f"{name}.later"] = float(left)
    elif rest == "drop" or attribute_value(node, "once"):
        loop.metrics[f"{name}.dropped"] = float(left if rest == "drop" else left - later.row_count(axis))
    return now


def collect_soonest(loop: Loop) -> Frame:
    """Run the region on fresh batches, those begun side by side as one, and take the rows whose answers end first. The
    others wait, without their answers; once as many wait as a step takes, a step asks these, and waits for all of
    them."""
    node, frame, axis, wanted = loop.node, loop.frame, loop.node.attr("axis"), loop.node.attr("rows")
    (place, name), names, data = _surplus_of(node), _kept_names(node), [_data_table(node)]
    waiting, loop.carried[place] = loop.carried[place], None
    parts: list[Frame] = []
    left: list[Frame] = [] if waiting is None else [waiting]
    if waiting is not None and waiting.row_count(axis) >= wanted:
        turn, rest = np.arange(wanted), np.arange(wanted, waiting.row_count(axis))
        parts.append(loop.run_body(_batch_again(loop, waiting.slice_rows(axis, turn, data)[0])))
        left = [waiting.slice_rows(axis, rest, data)[0]]
    again, rounds = len(parts), len(parts)
    kept = sum(part.row_count(axis) for part in parts)
    while kept < wanted:
        batches = min(node.attr("rounds") - rounds, concurrent_batches(node, wanted - kept))
        if not batches:
            raise _too_few_rows(node, kept, rounds)
        body = _read_together(loop, batches)
        body.soonest = wanted - kept if _by_length_alone(node) else None
        parts.append(loop.run_body(body))
        kept, rounds = kept + parts[-1].row_count(axis), rounds + batches
        loop.host.report_progress(f"{kept} of {wanted} rows kept")
    joined, top = _joined(loop, parts)
    taken = np.unique(joined.ancestor_rows(axis, top)[_rows_in_turn(loop, joined)[:wanted]])
    now, _ = joined.slice_rows(top, taken, names)
    later, _ = joined.slice_rows(top, np.setdiff1d(np.arange(joined.row_count(top)), taken), data)
    waits = frame.child_frame()
    waits.append_frames([*left, later], data)
    loop.carried[place] = waits if waits.row_count(axis) else None
    loop.metrics |= {f"{name}.later": float(waits.row_count(axis)), f"{name}.again": float(again * wanted)}
    return now


def _read_together(loop: Loop, batches: int) -> Frame:
    """Return a frame with the rows of so many batches, read one after the other."""
    read = _reading_node(loop.node)
    table, cursor = read.outputs
    at = [value.name for value in loop.node.region.inputs].index(read.inputs[0])
    parts, place = list[Frame](), loop.carried[at]
    for _ in range(batches):
        part = loop.frame.child_frame()
        part.values[read.inputs[0]] = place
        loop.host.executor.run(Graph((), (read,), ()), part)
        parts.append(part)
        place = part.values[cursor.name]
    body = loop.frame.child_frame()
    body.append_frames(parts, [table.name])
    body.values[cursor.name] = place
    return body


def _by_length_alone(node: Node) -> bool:
    """Whether the lengths of one table of answers alone decide which rows of the data a `collect` takes: then the
    engine that samples it need not go on with rows that are longer than those."""
    inner = [body_node for body_node in node.region.walk() if body_node.op not in LOOKS]
    samplers = [body_node for body_node in inner if NODES[body_node.op].generates]
    if (
        len(samplers) != 1
        or NODES[samplers[0].op].foreign
        or any(NODES[body_node.op].chooses is not None for body_node in inner)
    ):
        return False
    asked = axis_of(node.region.value_types()[samplers[0].inputs[1]])
    return asked is not None and asked.key == node.attr("axis")


def collect_as_they_end(loop: Loop) -> Frame:
    """Run the region on fresh batches until enough rows are kept, and take the rows of the batches that end first. The
    others go on, and the next step's `collect` takes them; so it does with the surplus of those that have ended.

    With `order=deadline` the oldest of the rows that have come go first. Rows that may wait for one step alone are
    waited for in the next one. A recording that is replayed says which batches ended, one after the other.
    """
    node, frame, host = loop.node, loop.frame, loop.host
    axis, wanted = node.attr("axis"), node.attr("rows")
    late, once = attribute_value(node, "late"), attribute_value(node, "once")
    (place, name), names, number = _surplus_of(node), _kept_names(node), frame.step.number
    before: Surplus | None = loop.carried[place]
    loop.carried[place] = None
    most = concurrent_batches(node, wanted) + 1
    batches = CollectBatches(host.executor, loop_body(node), loop.carried, f"{frame.step.phase}.{name}", most)
    for batch in before.unfinished_batches if before else ():
        batches.continue_batch(batch, frame.step.attempt)
    recorded = host.finish_order.read_collect(number, name)
    parts: list[tuple[Frame, bool]] = []
    """Rows that have come, in their order, and whether an earlier step has begun them."""
    ended, again, lost = list[Ended](), deque[Frame](), 0
    begun, asked, kept = 0, 0, 0

    def add_part(part: Frame, waited: bool) -> None:
        nonlocal kept, lost
        if waited and late != "wait":
            part, old = _split_recent(loop, part)
            lost += old.row_count(axis)
            if late == "again" and old.row_count(axis):
                again.append(old)
        parts.append((part, waited))
        kept += part.row_count(axis)

    if before and before.rows:
        add_part(before.rows, True)
    while True:
        while again and len(batches.going) < most:
            asked += 1
            batches.begin_on_given_rows(_numbered(_batch_again(loop, again.popleft()), -asked))
        if recorded is not None:
            more = recorded[0] - begun
        else:
            # Where one node runs at a time nothing ends before its turn.
            side_by_side = (
                concurrent_batches(node, max(0, wanted - kept))
                if host.executor.clock.concurrent
                else int(kept < wanted)
            )
            more = min(side_by_side - len(batches.going), node.attr("rounds") - begun)
        for _ in range(more):
            batches.begin_batch(_numbered(frame.child_frame(), begun))
            begun += 1
        if kept < wanted and not batches.going:
            raise _too_few_rows(node, kept, begun)
        # With `once` no step after this one waits for the batches of earlier steps.
        due = once and any(batch.step_number < number for batch in batches.going)
        done = kept >= wanted and not due if recorded is None else len(ended) == len(recorded[1])
        if done and not again and batches.all_batches_have_rows:
            break
        if recorded is not None:
            next_ended = recorded[1][len(ended)] if len(ended) < len(recorded[1]) else None
            if (
                next_ended is None
                and kept < wanted
                or next_ended is not None
                and next_ended not in batches.unfinished_batches
            ):
                raise _wrong_recording(node, frame.step)
        for batch in batches.advance(None if recorded is None else next_ended):
            ended.append((batch.step_number, batch.number))
            add_part(batch.run.frame, batch.step_number < number)
        host.report_progress(f"{kept} of {wanted} rows kept")
    joined, top = _joined(loop, [part for part, _ in parts])
    first = _rows_in_turn(loop, joined)[:wanted]
    taken = np.array(list(dict.fromkeys(joined.ancestor_rows(axis, top)[first].tolist())), dtype=np.int64)
    now, _ = joined.slice_rows(top, taken, names)
    left = np.setdiff1d(np.arange(joined.row_count(top)), taken)
    if once:
        waited = np.repeat([waited for _, waited in parts], [part.row_count(top) for part, _ in parts])
        left = left[~waited[left]]
    later, _ = joined.slice_rows(top, left, names)
    if once:
        loop.metrics[f"{name}.dropped"] = float(joined.row_count(axis) - now.row_count(axis) - later.row_count(axis))
    if late != "wait":
        loop.metrics[f"{name}.late"] = float(lost)
    loop.carried = batches.carried_values()
    loop.carried[place] = Surplus(later if later.row_count(top) else None, tuple(batches.going))
    host.report_ended_batches(frame.step, name, begun, ended)
    return now


def _joined(loop: Loop, parts: Sequence[Frame]) -> tuple[Frame, str]:
    """Return a frame with the rows of all parts, and the key of their outermost axis."""
    joined = loop.frame.child_frame()
    joined.append_frames(parts, _kept_names(loop.node))
    return joined, joined.rows[loop.node.attr("axis")].axis.root_axis.key


def _rows_in_turn(loop: Loop, joined: Frame) -> np.ndarray:
    """Return the rows of the axis of a `collect` in the order in which they are taken, int64."""
    order = np.arange(joined.row_count(loop.node.attr("axis")))
    for look in (*_look_nodes(loop.node, "aged"), *_look_nodes(loop.node, "soonest")):
        looked_at = joined.child_frame()
        columns = tuple(node for node in loop.node.region.nodes if node.op == "column" and node.name in look.inputs)
        loop.host.executor.run(Graph((), columns, ()), looked_at)
        order = loop.host.choose_rows(look, looked_at)
    return order


def _numbered(frame: Frame, number: int) -> Frame:
    """Give the step of a frame the number of a batch."""
    frame.step = replace(frame.step, batch=number)
    return frame


def _wrong_recording(node: Node, step: Step) -> RunError:
    message = f"the recording has other batches in step {step.number} than this run"
    hint = "replay with the program, the data and the numbers of rows that were recorded"
    return RunError(Diagnostic("E0816", message, node.span, hint))


def _too_few_rows(node: Node, kept: int, batches: int) -> RunError:
    message = f"{kept} of {node.attr('rows')} rows were kept after {batches} batches"
    hint = "keep more of them, raise `rounds`, or lower the number of rows"
    return RunError(Diagnostic("E0737", message, node.span, hint))


def _look_nodes(node: Node, op: str) -> list[Node]:
    """Return the nodes of its body by which a `collect` looks at rows that it has."""
    return [body_node for body_node in node.region.nodes if body_node.op == op]


def _surplus_of(node: Node) -> tuple[int, str]:
    """Return the position at which a `collect` carries its surplus, and the name of the data."""
    names = [value.name for value in node.region.inputs]
    place = next(at for at, name in enumerate(names) if _is_surplus(name))
    return place, names[place].rsplit(".surplus", 1)[0]


def _kept_names(node: Node) -> list[str]:
    """Return the values of its region that a `collect` keeps, and those by which it decides which rows it takes."""
    asked = {name for op in LOOKS for body_node in _look_nodes(node, op) for name in body_node.inputs}
    tables = [body_node.inputs[0] for body_node in node.region.nodes if body_node.name in asked]
    return list(dict.fromkeys([*(inner for inner, _ in node.exported_values), *tables]))


def _age_checks(node: Node) -> list[tuple[Node, Node]]:
    """Return the nodes that decide whether rows that were carried over are too old: a column of theirs, and the node
    that chooses by it."""
    makers = {value.name: maker for maker in node.region.nodes for value in maker.outputs}
    return [(makers[look.inputs[0]], look) for look in _look_nodes(node, "recent")]


def _split_recent(loop: Loop, waiting: Frame) -> tuple[Frame, Frame]:
    """Split rows that were carried over: those that are not too old, and of the others their rows of the data."""
    node, names = loop.node, _kept_names(loop.node)
    axis, data = node.attr("axis"), _data_table(node)
    late = []
    for column, choosing in _age_checks(node):
        looked_at = loop.frame.child_frame()
        looked_at.append_frames([waiting], names)
        loop.host.executor.run(Graph((), (column,), ()), looked_at)
        recent = loop.host.choose_rows(choosing, looked_at)
        waiting, _ = looked_at.slice_rows(axis, recent, names)
        late.append(looked_at.slice_rows(axis, np.setdiff1d(np.arange(looked_at.row_count(axis)), recent), [data])[0])
    old = loop.frame.child_frame()
    old.append_frames(late, [data])
    return waiting, old


def _data_table(node: Node) -> str:
    """Return the name, in its region, of the table of the rows of the data that a `collect` keeps."""
    tables = ((inner, value.type) for inner, value in node.exported_values if isinstance(value.type, Table))
    return next(inner for inner, kind in tables if kind.axis.key == node.attr("axis") and kind.token is None)


def _batch_again(loop: Loop, rows: Frame) -> Frame:
    """Return a batch of rows of the data that were read before, instead of the next ones."""
    node, body = loop.node, loop.frame.child_frame()
    read = _reading_node(node)
    table, cursor = read.outputs
    assert isinstance(table.type, Table)
    body.add_rows(replace(rows.rows[node.attr("axis")], axis=table.type.axis))
    body.values[table.name] = rows.values[_data_table(node)]
    carried = [value.name for value in node.region.inputs]
    body.values[cursor.name] = loop.carried[carried.index(read.inputs[0])]
    return body


def _reading_node(node: Node) -> Node:
    """Return the node that reads the data in the body of a `collect`."""
    return next(body_node for body_node in node.region.nodes if NODES[body_node.op].input_index("cursor") is not None)


def _is_surplus(name: str) -> bool:
    return name.rsplit("@", 1)[0].endswith(".surplus")
