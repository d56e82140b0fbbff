"""Reads and writes clusters in one line, `4x8:h100-80gb + 8x8:h20-96gb@200Gb/s/node ~ 10Gb/s`. Each word keeps its
place for diagnostics.

    cluster   = group {"+" group} ["~" BANDWIDTH ["," TIME]]
    group     = NODES "x" PER_NODE ":" DEVICE ["(" FIELD "=" VALUE {"," FIELD "=" VALUE} ")"] ["@" BANDWIDTH]
    BANDWIDTH = a number and a unit, for each device; with "/node" behind it for all devices of a node together

Spaces do not matter, and neither does case in the names of devices.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from rlgraph.catalog.clusters.cluster import NodeGroup
from rlgraph.catalog.clusters.devices import FIELDS, ListedDevice, device_names, known_devices
from rlgraph.catalog.clusters.units import format_exact
from rlgraph.errors import Diagnostic, ProgramError, Source, Span

BAD_TEXT = "E0920"

_COUNT = r"[+-]?\d+"
_NAME = r"[\w.-]+"
_QUANTITY = r"[+-]?[\d.]*(?:[eE][+-]?\d+)?\s*[\w$/]*"
_FORM = "a group is `NODESxDEVICES:NAME`, as in `4x8:h100-80gb`; groups are joined by `+`"


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a cluster's description, and its place."""

    text: str
    span: Span


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """A node group as it is described."""

    nodes: Word
    per_node: Word
    device: Word
    options: tuple[tuple[Word, Word], ...] = ()
    """Names of the device's fields, and their values."""
    network: Word | None = None


@dataclass(frozen=True, slots=True)
class ClusterRequest:
    """A cluster as it is described."""

    groups: tuple[GroupRequest, ...]
    between: Word | None = None
    between_latency: Word | None = None


def read_text(text: str) -> ClusterRequest:
    """Read the cluster that a line describes. Raises ProgramError with a caret under what does not belong there."""
    return _Reader(Source("--cluster", " ".join(text.splitlines()))).cluster()


class _Reader:
    """A recursive-descent parser of the line."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.text = source.text
        self.place = 0

    def cluster(self) -> ClusterRequest:
        if not self.text.strip():
            raise self.error("there is no cluster in an empty text", 0, 0, _FORM)
        groups = [self.group()]
        while self.sign("+"):
            groups.append(self.group())
        between = latency = None
        if self.sign("~"):
            between = self.word(_QUANTITY, "the bandwidth between groups", "as in `~ 10Gb/s`")
            if self.sign(","):
                latency = self.word(_QUANTITY, "the latency between groups", "as in `~ 10Gb/s, 5ms`")
        if self.rest():
            raise self.error(f"`{self.rest()}` does not belong here", self.place, len(self.text.rstrip()), _FORM)
        return ClusterRequest(tuple(groups), between, latency)

    def group(self) -> GroupRequest:
        begin = self.skip()
        nodes = self.take(_COUNT)
        per_node = (
            self.word(_COUNT, "the number of devices in a node", _FORM) if nodes and self.sign("x", "X", "×") else None
        )
        if not nodes or not per_node:
            device_name = self.take(rf"(:\s*)?{_NAME}")
            name = device_name.text.lstrip(": ") if device_name else ""
            count = nodes.text if nodes else "8"
            hint = f"for one node of {count} devices: `1x{count}:{name}`" if name.lower() in device_names() else _FORM
            raise self.error("a group of nodes is expected here", begin, self.place, hint)
        if not self.sign(":"):
            hint = f"as in `{nodes.text}x{per_node.text}:h100-80gb`"
            raise self.error("the device is missing", begin, self.place, hint)
        device = self.word(_NAME, "the name of a device", _FORM)
        options = self.options() if self.sign("(") else ()
        network = self.word(_QUANTITY, "the bandwidth of the network", "as in `@25GB/s`") if self.sign("@") else None
        return GroupRequest(nodes, per_node, device, options, network)

    def options(self) -> tuple[tuple[Word, Word], ...]:
        hint = "fields of a device stand in parentheses, as in `(memory=64GiB, price=2.5)`"
        options = []
        while True:
            name = self.word(_NAME, "a field of the device", hint)
            self.expect("=", hint)
            options.append((name, self.word(_QUANTITY, f"the value of `{name.text}`", hint)))
            if not self.sign(","):
                self.expect(")", hint)
                return tuple(options)

    def skip(self) -> int:
        while self.place < len(self.text) and self.text[self.place].isspace():
            self.place += 1
        return self.place

    def sign(self, *signs: str) -> bool:
        """Consume one of these signs if it is next, and return whether it was."""
        matches = self.text[self.skip() : self.place + 1] in signs
        self.place += matches
        return matches

    def expect(self, sign: str, hint: str) -> None:
        if not self.sign(sign):
            raise self.error(f"`{sign}` is expected here", self.place, self.place + 1, hint)

    def take(self, pattern: str) -> Word | None:
        begin = self.skip()
        match = re.compile(pattern).match(self.text, begin)
        if not match or not match[0].strip():
            return None
        self.place = begin + len(match[0].rstrip())
        return Word(match[0].rstrip(), self.span(begin, self.place))

    def word(self, pattern: str, what: str, hint: str) -> Word:
        word = self.take(pattern)
        if not word:
            raise self.error(f"{what} is expected here", self.place, self.place + 1, hint)
        return word

    def rest(self) -> str:
        return self.text[self.skip() :].rstrip()

    def span(self, begin: int, end: int) -> Span:
        return Span(self.source, 1, begin + 1, 1, max(end, begin + 1) + 1)

    def error(self, message: str, begin: int, end: int, hint: str) -> ProgramError:
        return ProgramError(Diagnostic(BAD_TEXT, message, self.span(begin, end), hint))


def write_text(islands: Iterable[NodeGroup], between: str) -> str:
    """Return the line that describes these node groups; `between` is what follows `~`, if anything."""
    text = " + ".join(_group(island) for island in islands)
    return f"{text} ~ {between}" if between else text


def _group(island: NodeGroup) -> str:
    device = island.device
    network = "" if island.network == device.network else f"@{format_exact(island.network, 'bandwidth')}"
    return f"{island.nodes}x{island.per_node}:{device.name}{_changed_fields(island)}{network}"


def _changed_fields(island: NodeGroup) -> str:
    """Return in parentheses the fields in which a device differs from the table's."""
    device = island.device
    values = ListedDevice(device, island.link_latency, island.network_latency).values()
    usual = known_devices()[device.name].values() if device.name in known_devices() else {}
    changed = [
        f"{field}={format_exact(value, FIELDS[field])}" for field, value in values.items() if usual.get(field) != value
    ]
    return f"({', '.join(changed)})" if changed else ""
