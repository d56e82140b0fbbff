"""What `collect` does: it runs its region on fresh batches until enough rows are kept, and says which of them are taken
now, which begin the next step's, and which are asked again."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np

from rlgraph.backends.batches import Batches
from rlgraph.backends.frame import Frame, Surplus
from rlgraph.backends.regions import LOOKS, Loop, body_of
from rlgraph.backends.step import Ended, Step
from rlgraph.errors import Diagnostic, RunError
from rlgraph.ir.graph import Graph, Node
from rlgraph.ir.types import Table, axis_of
from rlgraph.ops.nodes import NODES, at_once, attr


def collect(loop: Loop) -> Frame:
    """On fresh batches until enough rows are kept, the first of them in the order of the data. The surplus begins the
    next step's, or is asked again there, or is dropped; so are rows of it that are too old."""
    if attr(loop.node, "order") != "data":
        return collect_as_they_end(loop)
    if attr(loop.node, "rest") == "longest":
        return collect_soonest(loop)
    node, frame, rest, late = loop.node, loop.frame, attr(loop.node, "rest"), attr(loop.node, "late")
    axis, wanted = node.attr("axis"), node.attr("rows")
    place, name = _surplus_of(node)
    names = _kept_names(node)
    before, loop.carried[place] = loop.carried[place], None
    again = before if rest == "later" else None
    if late != "wait":
        before, old = (None, None) if before is None else _recent(loop, before)
        loop.metrics[f"{name}.late"] = 0.0 if old is None else float(old.size(axis))
        again = old if late == "again" and old is not None and old.size(axis) else None
    parts: list[Frame] = [before] if before is not None and rest == "carry" else []
    kept, rounds = sum(part.size(axis) for part in parts), 0
    while kept < wanted or again is not None:
        allowed, missing = node.attr("rounds") - rounds, wanted - kept
        if not allowed:
            raise _too_few(node, kept, rounds)
        begun = [] if again is None else [_asked_again(loop, again)]
        if again is None or attr(node, "ahead") is not None:
            missing -= 0 if again is None else again.size(axis)
            begun += [frame.child() for _ in range(min(allowed - len(begun), at_once(node, max(0, missing))))]
        bodies = loop.run_all(begun)
        # What is asked again was read before all others.
        parts = [*parts, *bodies] if again is None else [bodies[0], *parts, *bodies[1:]]
        kept, rounds, again = kept + sum(body.size(axis) for body in bodies), rounds + len(bodies), None
        loop.host.note(f"{kept} of {wanted} rows kept")
    whole = frame.child()
    whole.append(parts, names)
    top = list(whole.rows[axis].axis.path())[-1].key
    last = int(whole.index(axis, top)[wanted - 1]) + 1
    now, _ = whole.slice(top, np.arange(last), names)
    # What was carried over once is the first of them.
    first = max(last, before.size(top)) if before is not None and attr(node, "once") else last
    kept_for_later = names if rest == "carry" else [_data(node)]
    later, _ = whole.slice(top, np.arange(first, whole.size(top)), kept_for_later)
    loop.carried[place] = later if later.size(top) and rest != "drop" else None
    left = whole.size(axis) - now.size(axis)
    if rest == "later":
        loop.metrics[f"{name}.later"] = float(left)
    elif rest == "drop" or attr(node, "once"):
        loop.metrics[f"{name}.dropped"] = float(left if rest == "drop" else left - later.size(axis))
    now.values.update({value.name: now.values[inner] for inner, value in node.exported})
    return now


def collect_soonest(loop: Loop) -> Frame:
    """On fresh batches, those that are begun side by side as one: the rows whose answers end first. The others wait,
    without their answers; once as many wait as a step takes, a step asks these, and waits for all of them."""
    node, frame, axis, wanted = loop.node, loop.frame, loop.node.attr("axis"), loop.node.attr("rows")
    (place, name), names, data = _surplus_of(node), _kept_names(node), [_data(node)]
    waiting, loop.carried[place] = loop.carried[place], None
    parts: list[Frame] = []
    left: list[Frame] = [] if waiting is None else [waiting]
    if waiting is not None and waiting.size(axis) >= wanted:
        turn, rest = np.arange(wanted), np.arange(wanted, waiting.size(axis))
        parts.append(loop.run(_asked_again(loop, waiting.slice(axis, turn, data)[0])))
        left = [waiting.slice(axis, rest, data)[0]]
    again, rounds = len(parts), len(parts)
    kept = sum(part.size(axis) for part in parts)
    while kept < wanted:
        batches = min(node.attr("rounds") - rounds, at_once(node, wanted - kept))
        if not batches:
            raise _too_few(node, kept, rounds)
        body = _read_together(loop, batches)
        body.soonest = wanted - kept if _by_length_alone(node) else None
        parts.append(loop.run(body))
        kept, rounds = kept + parts[-1].size(axis), rounds + batches
        loop.host.note(f"{kept} of {wanted} rows kept")
    whole = frame.child()
    whole.append(parts, names)
    top = list(whole.rows[axis].axis.path())[-1].key
    taken = np.unique(whole.index(axis, top)[_in_turn(loop, whole)[:wanted]])
    now, _ = whole.slice(top, taken, names)
    later, _ = whole.slice(top, np.setdiff1d(np.arange(whole.size(top)), taken), data)
    waits = frame.child()
    waits.append([*left, later], data)
    loop.carried[place] = waits if waits.size(axis) else None
    loop.metrics |= {f"{name}.later": float(waits.size(axis)), f"{name}.again": float(again * wanted)}
    now.values.update({value.name: now.values[inner] for inner, value in node.exported})
    return now


def _read_together(loop: Loop, batches: int) -> Frame:
    """A frame with the rows of so many batches, read one after the other."""
    read = _read(loop.node)
    table, cursor = read.outputs
    at = [value.name for value in loop.node.region.inputs].index(read.inputs[0])
    parts, place = list[Frame](), loop.carried[at]
    for _ in range(batches):
        part = loop.frame.child()
        part.values[read.inputs[0]] = place
        loop.host.executor.run(Graph((), (read,), ()), part)
        parts.append(part)
        place = part.values[cursor.name]
    body = loop.frame.child()
    body.append(parts, [table.name])
    body.values[cursor.name] = place
    return body


def _by_length_alone(node: Node) -> bool:
    """Whether one table of answers tells which rows of the data a `collect` takes, and nothing else does: then who
    samples it need not go on with rows that are longer than those."""
    inner = [each for each in node.region.walk() if each.op not in LOOKS]
    samplers = [each for each in inner if NODES[each.op].generates]
    if len(samplers) != 1 or NODES[samplers[0].op].foreign or any(NODES[each.op].chooses is not None for each in inner):
        return False
    asked = axis_of(node.region.values()[samplers[0].inputs[1]])
    return asked is not None and asked.key == node.attr("axis")


def collect_as_they_end(loop: Loop) -> Frame:
    """On fresh batches until enough rows are kept: those of the batches that end first. The others go on, and the next
    step's `collect` takes them; what is too much of those that have ended waits for it, too.

    With `order=deadline` the oldest of the rows that are there go first. Who may wait for one step alone is waited
    for in the next one. A recording that is replayed says which batches ended, one after the other.
    """
    node, frame, host = loop.node, loop.frame, loop.host
    axis, wanted, late, once = node.attr("axis"), node.attr("rows"), attr(node, "late"), attr(node, "once")
    (place, name), names, number = _surplus_of(node), _kept_names(node), frame.step.number
    before: Surplus | None = loop.carried[place]
    loop.carried[place] = None
    most = at_once(node, wanted) + 1
    batches = Batches(host.executor, body_of(node), loop.carried, f"{frame.step.phase}.{name}", most)
    for batch in before.going if before else ():
        batches.go_on(batch, frame.step.attempt)
    told = host.endings.told(number, name)
    parts: list[tuple[Frame, bool]] = []
    """Rows that are there, in their order, and whether an earlier step has begun them."""
    ended, again, lost = list[Ended](), deque[Frame](), 0
    begun, asked, kept = 0, 0, 0

    def there(part: Frame, waited: bool) -> None:
        nonlocal kept, lost
        if waited and late != "wait":
            part, old = _recent(loop, part)
            lost += old.size(axis)
            if late == "again" and old.size(axis):
                again.append(old)
        parts.append((part, waited))
        kept += part.size(axis)

    if before and before.rows:
        there(before.rows, True)
    while True:
        while again and len(batches.going) < most:
            asked += 1
            batches.begin_with(_of_batch(_asked_again(loop, again.popleft()), -asked))
        if told is not None:
            more = told[0] - begun
        else:
            # Where one node runs at a time nothing ends before its turn.
            side_by_side = at_once(node, max(0, wanted - kept)) if host.executor.clock.together else int(kept < wanted)
            more = min(side_by_side - len(batches.going), node.attr("rounds") - begun)
        for _ in range(more):
            batches.begin(_of_batch(frame.child(), begun))
            begun += 1
        if kept < wanted and not batches.going:
            raise _too_few(node, kept, begun)
        # Nobody else waits for them after this step.
        due = once and any(batch.step < number for batch in batches.going)
        over = kept >= wanted and not due if told is None else len(ended) == len(told[1])
        if over and not again and batches.read:
            break
        if told is not None:
            turn = told[1][len(ended)] if len(ended) < len(told[1]) else None
            if turn is None and kept < wanted or turn is not None and turn not in batches.under_way:
                raise _not_so(node, frame.step)
        for batch in batches.advance(None if told is None else turn):
            ended.append((batch.step, batch.number))
            there(batch.run.frame, batch.step < number)
        host.note(f"{kept} of {wanted} rows kept")
    whole = frame.child()
    whole.append([part for part, _ in parts], names)
    top = list(whole.rows[axis].axis.path())[-1].key
    first = _in_turn(loop, whole)[:wanted]
    taken = np.array(list(dict.fromkeys(whole.index(axis, top)[first].tolist())), dtype=np.int64)
    now, _ = whole.slice(top, taken, names)
    left = np.setdiff1d(np.arange(whole.size(top)), taken)
    if once:
        waited = np.repeat([waited for _, waited in parts], [part.size(top) for part, _ in parts])
        left = left[~waited[left]]
    later, _ = whole.slice(top, left, names)
    if once:
        loop.metrics[f"{name}.dropped"] = float(whole.size(axis) - now.size(axis) - later.size(axis))
    if late != "wait":
        loop.metrics[f"{name}.late"] = float(lost)
    loop.carried = batches.left()
    loop.carried[place] = Surplus(later if later.size(top) else None, tuple(batches.going))
    host.ended(frame.step, name, begun, ended)
    now.values.update({value.name: now.values[inner] for inner, value in node.exported})
    return now


def _in_turn(loop: Loop, whole: Frame) -> np.ndarray:
    """The rows of the axis of a `collect` in the order in which they are taken, int64."""
    order = np.arange(whole.size(loop.node.attr("axis")))
    for each in (*_looks(loop.node, "aged"), *_looks(loop.node, "soonest")):
        found = whole.child()
        columns = tuple(node for node in loop.node.region.nodes if node.op == "column" and node.name in each.inputs)
        loop.host.executor.run(Graph((), columns, ()), found)
        order = loop.host.choose(each, found)
    return order


def _of_batch(frame: Frame, number: int) -> Frame:
    frame.step = replace(frame.step, batch=number)
    return frame


def _not_so(node: Node, step: Step) -> RunError:
    message = f"the recording has other batches in step {step.number} than this run"
    hint = "replay with the program, the data and the numbers of rows that were recorded"
    return RunError(Diagnostic("E0816", message, node.span, hint))


def _too_few(node: Node, kept: int, batches: int) -> RunError:
    message = f"{kept} of {node.attr('rows')} rows were kept after {batches} batches"
    hint = "keep more of them, raise `rounds`, or lower the number of rows"
    return RunError(Diagnostic("E0737", message, node.span, hint))


def _looks(node: Node, op: str) -> list[Node]:
    """The nodes of its body by which a `collect` looks at rows that it has."""
    return [each for each in node.region.nodes if each.op == op]


def _surplus_of(node: Node) -> tuple[int, str]:
    """Of a `collect`: at which place its surplus is carried, and the name of the data."""
    names = [value.name for value in node.region.inputs]
    place = next(at for at, name in enumerate(names) if _surplus(name))
    return place, names[place].rsplit(".surplus", 1)[0]


def _kept_names(node: Node) -> list[str]:
    """The values of its region that a `collect` keeps, and those by which it tells which rows it takes."""
    asked = {name for op in LOOKS for each in _looks(node, op) for name in each.inputs}
    tables = [each.inputs[0] for each in node.region.nodes if each.name in asked]
    return list(dict.fromkeys([*(inner for inner, _ in node.exported), *tables]))


def _ages(node: Node) -> list[tuple[Node, Node]]:
    """What tells whether rows that a `collect` carries over are too old: a column of theirs, and who chooses by it."""
    makers = {value.name: each for each in node.region.nodes for value in each.outputs}
    return [(makers[each.inputs[0]], each) for each in _looks(node, "recent")]


def _recent(loop: Loop, waiting: Frame) -> tuple[Frame, Frame]:
    """Of rows that were carried over those that are not too old, and of the others their rows of the data."""
    node, names = loop.node, _kept_names(loop.node)
    axis, data = node.attr("axis"), _data(node)
    late = []
    for column, choosing in _ages(node):
        found = loop.frame.child()
        found.append([waiting], names)
        loop.host.executor.run(Graph((), (column,), ()), found)
        recent = loop.host.choose(choosing, found)
        waiting, _ = found.slice(axis, recent, names)
        late.append(found.slice(axis, np.setdiff1d(np.arange(found.size(axis)), recent), [data])[0])
    old = loop.frame.child()
    old.append(late, [data])
    return waiting, old


def _data(node: Node) -> str:
    """The rows of the data that a `collect` keeps, by the name of their table in its region."""
    tables = ((inner, value.type) for inner, value in node.exported if isinstance(value.type, Table))
    return next(inner for inner, kind in tables if kind.axis.key == node.attr("axis") and kind.token is None)


def _asked_again(loop: Loop, rows: Frame) -> Frame:
    """A batch of rows of the data that were read before, instead of the next ones."""
    node, body = loop.node, loop.frame.child()
    read = _read(node)
    table, cursor = read.outputs
    assert isinstance(table.type, Table)
    body.add_rows(replace(rows.rows[node.attr("axis")], axis=table.type.axis))
    body.values[table.name] = rows.values[_data(node)]
    carried = [value.name for value in node.region.inputs]
    body.values[cursor.name] = loop.carried[carried.index(read.inputs[0])]
    return body


def _read(node: Node) -> Node:
    """What reads the data in the body of a `collect`."""
    return next(each for each in node.region.nodes if NODES[each.op].place("cursor") is not None)


def _surplus(name: str) -> bool:
    return name.rsplit("@", 1)[0].endswith(".surplus")
