"""Gathers the operations of each model into containers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rlgraph.viz.boxes import Body, Box, Port, ValueLink


@dataclass
class DraftBody:
    """A body while it is being made: boxes with the values they use and make."""

    boxes: list[Box] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)
    """The box that makes each value; the empty id for values that the frame brings in."""
    owners: dict[str, tuple[str, str]] = field(default_factory=dict)
    """For each operation of a model, the model and the version of its weights."""
    ends: list[ValueLink] = field(default_factory=list)
    """Links to the lower ports of the frame."""

    def linked_body(self) -> Body:
        """Return the body with its links."""
        links = [
            ValueLink(self.sources[port.value], port.value, box.id, port.value, port.line, port.role)
            for box in self.boxes
            for port in box.inputs
            if port.value in self.sources
        ]
        return Body(tuple(self.boxes), tuple(links + self.ends))


def gather_containers(draft: DraftBody, shells: dict[tuple[str, str], Box]) -> None:
    """Put the operations of each model into its container, several into one wherever that makes no cycle."""
    groups = _groups(draft)
    member = {box.id: group for group, boxes in groups.items() for box in boxes}
    _weights(draft, groups, member)
    made = {
        group: _container(draft, replace(shells[draft.owners[boxes[0].id]], id=group), boxes, member)
        for group, boxes in groups.items()
    }
    merged: dict[str, Box] = {}
    for box in draft.boxes:
        box_id = member.get(box.id, box.id)
        merged.setdefault(box_id, made.get(box_id, box))
    draft.boxes = list(merged.values())
    draft.sources = {value: member.get(source, source) for value, source in draft.sources.items()}
    draft.ends = [replace(link, source=member.get(link.source, link.source)) for link in draft.ends]


def _groups(draft: DraftBody) -> dict[str, list[Box]]:
    """Return the boxes of each container, by the container's id."""
    groups: dict[str, list[Box]] = {}
    latest: dict[tuple[str, str], str] = {}
    member: dict[str, str] = {}
    for box in draft.boxes:
        owner = draft.owners.get(box.id)
        if owner is None:
            continue
        group = latest.get(owner, "")
        if not group or _circular(draft, {**member, box.id: group}):
            group = latest[owner] = f"{box.id}_{owner[0]}"
            groups[group] = []
        member[box.id] = group
        groups[group].append(box)
    return groups


def _weights(draft: DraftBody, groups: dict[str, list[Box]], member: dict[str, str]) -> None:
    """Let a model's first weights come from its first container, unless boxes would then wait for each other."""
    for group, boxes in groups.items():
        weights = draft.owners[boxes[0].id][1]
        if weights in draft.sources:
            continue
        draft.sources[weights] = group
        if _circular(draft, member):
            del draft.sources[weights]


def _circular(draft: DraftBody, member: dict[str, str]) -> bool:
    """Return whether boxes would wait for each other if the members of each group were one."""
    after: dict[str, set[str]] = {}
    for box in draft.boxes:
        group = member.get(box.id, box.id)
        waits = after.setdefault(group, set())
        for port in box.inputs:
            source = draft.sources.get(port.value, "")
            source = member.get(source, source)
            if source and source != group:
                waits.add(source)
    waiting = dict(after)
    while waiting:
        ready = [group for group, waits in waiting.items() if not any(source in waiting for source in waits)]
        if not ready:
            return True
        for group in ready:
            del waiting[group]
    return False


def _container(draft: DraftBody, shell: Box, boxes: list[Box], member: dict[str, str]) -> Box:
    """Return a container with its boxes, and ports for the values that cross its edge."""
    inside = {box.id for box in boxes}
    used_outside = {port.value for box in draft.boxes if member.get(box.id) != shell.id for port in box.inputs} | {
        link.out for link in draft.ends
    }
    inputs: dict[str, Port] = {}
    links: list[ValueLink] = []
    outputs: list[Port] = []
    for box in boxes:
        for port in box.inputs:
            source = draft.sources.get(port.value)
            if source is None or source == shell.id:
                continue
            if source in inside:
                links.append(ValueLink(source, port.value, box.id, port.value, port.line, port.role))
                continue
            inputs.setdefault(port.value, replace(port, inside=port.value))
            # The weights enter the container itself: every operation in it uses them.
            if port.value != draft.owners[box.id][1]:
                links.append(ValueLink("", port.value, box.id, port.value, port.line, port.role))
        for port in box.outputs:
            if port.value in used_outside:
                outputs.append(replace(port, inside=port.value, label=""))
                links.append(ValueLink(box.id, port.value, "", port.value, port.line, port.role))
    weights = draft.owners[boxes[0].id][1]
    if weights in used_outside and draft.sources.get(weights) == shell.id:
        outputs.append(Port(weights, weights, "weights", weights, shell.role))
    return replace(shell, inputs=tuple(inputs.values()), outputs=tuple(outputs), body=Body(tuple(boxes), tuple(links)))
