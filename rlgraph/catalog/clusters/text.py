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
from rlgraph.catalog.clusters.devices import FIELDS, ListedDevice, device_names_by_alias, known_devices
from rlgraph.catalog.clusters.units import format_exact
from rlgraph.errors import Diagnostic, ProgramError, Source, Span

BAD_TEXT = "E0920"

_COUNT = r"[+-]?\d+"
_NAME = r"[\w.-]+"
_QUANTITY = r"[+-]?[\d.]*(?:[eE][+-]?\d+)?\s*[\w$/]*"
_FORM = "a group is `NODESxDEVICES:NAME`, as in `4x8:h100-80gb`; groups are joined by `+`"


@dataclass(frozen=True, slots=True)
class PlacedWord:
    """A word of a cluster's description, and its place."""

    text: str
    span: Span


@dataclass(frozen=True, slots=True)
class DescribedNodeGroup:
    """A node group as it is described."""

    nodes: PlacedWord
    per_node: PlacedWord
    device: PlacedWord
    options: tuple[tuple[PlacedWord, PlacedWord], ...] = ()
    """Names of the device's fields, and their values."""
    network: PlacedWord | None = None


@dataclass(frozen=True, slots=True)
class DescribedCluster:
    """A cluster as it is described."""

    groups: tuple[DescribedNodeGroup, ...]
    between: PlacedWord | None = None
    between_latency: PlacedWord | None = None


def parse_cluster_text(text: str) -> DescribedCluster:
    """Read the cluster that a line describes. Raises ProgramError with a caret under what does not belong there."""
    return _Reader(Source("--cluster", " ".join(text.splitlines()))).parse_cluster()


def _one_node_hint(count: str, device: str) -> str:
    """Return how one node is described of which only devices are said: `8 h100`, `8:h100`, `8xH100`."""
    name = device.lstrip(": ")
    return f"for one node of {count} devices: `1x{count}:{name}`" if name.lower() in device_names_by_alias() else _FORM


class _Reader:
    """A recursive-descent parser of the line."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.text = source.text
        self.place = 0

    def parse_cluster(self) -> DescribedCluster:
        if not self.text.strip():
            raise self.make_error("there is no cluster in an empty text", 0, 0, _FORM)
        groups = [self.parse_group()]
        while self.accept_sign("+"):
            groups.append(self.parse_group())
        between = latency = None
        if self.accept_sign("~"):
            between = self.expect_word(_QUANTITY, "the bandwidth between groups", "as in `~ 10Gb/s`")
            if self.accept_sign(","):
                latency = self.expect_word(_QUANTITY, "the latency between groups", "as in `~ 10Gb/s, 5ms`")
        if self.rest_of_line():
            raise self.make_error(
                f"`{self.rest_of_line()}` does not belong here", self.place, len(self.text.rstrip()), _FORM
            )
        return DescribedCluster(tuple(groups), between, latency)

    def parse_group(self) -> DescribedNodeGroup:
        begin = self.skip_spaces()
        nodes = self.accept_pattern(_COUNT)
        per_node = (
            self.expect_word(_COUNT, "the number of devices in a node", _one_node_hint(nodes.text, self.rest_of_line()))
            if nodes and self.accept_sign("x", "X", "×")
            else None
        )
        if not nodes or not per_node:
            device_name = self.accept_pattern(rf"(:\s*)?{_NAME}")
            hint = _one_node_hint(nodes.text if nodes else "8", device_name.text if device_name else "")
            raise self.make_error("a group of nodes is expected here", begin, self.place, hint)
        if not self.accept_sign(":"):
            hint = f"as in `{nodes.text}x{per_node.text}:h100-80gb`"
            raise self.make_error("the device is missing", begin, self.place, hint)
        device = self.expect_word(_NAME, "the name of a device", _FORM)
        options = self.parse_options() if self.accept_sign("(") else ()
        network = (
            self.expect_word(_QUANTITY, "the bandwidth of the network", "as in `@25GB/s`")
            if self.accept_sign("@")
            else None
        )
        return DescribedNodeGroup(nodes, per_node, device, options, network)

    def parse_options(self) -> tuple[tuple[PlacedWord, PlacedWord], ...]:
        hint = "fields of a device stand in parentheses, as in `(memory=64GiB, price=2.5)`"
        options = []
        while True:
            name = self.expect_word(_NAME, "a field of the device", hint)
            self.expect_sign("=", hint)
            options.append((name, self.expect_word(_QUANTITY, f"the value of `{name.text}`", hint)))
            if not self.accept_sign(","):
                self.expect_sign(")", hint)
                return tuple(options)

    def skip_spaces(self) -> int:
        while self.place < len(self.text) and self.text[self.place].isspace():
            self.place += 1
        return self.place

    def accept_sign(self, *signs: str) -> bool:
        """Consume one of these signs if it is next, and return whether it was."""
        matches = self.text[self.skip_spaces() : self.place + 1] in signs
        self.place += matches
        return matches

    def expect_sign(self, sign: str, hint: str) -> None:
        if not self.accept_sign(sign):
            raise self.make_error(f"`{sign}` is expected here", self.place, self.place + 1, hint)

    def accept_pattern(self, pattern: str) -> PlacedWord | None:
        begin = self.skip_spaces()
        match = re.compile(pattern).match(self.text, begin)
        if not match or not match[0].strip():
            return None
        self.place = begin + len(match[0].rstrip())
        return PlacedWord(match[0].rstrip(), self.make_span(begin, self.place))

    def expect_word(self, pattern: str, what: str, hint: str) -> PlacedWord:
        word = self.accept_pattern(pattern)
        if not word:
            raise self.make_error(f"{what} is expected here", self.place, self.place + 1, hint)
        return word

    def rest_of_line(self) -> str:
        return self.text[self.skip_spaces() :].rstrip()

    def make_span(self, begin: int, end: int) -> Span:
        return Span(self.source, 1, begin + 1, 1, max(end, begin + 1) + 1)

    def make_error(self, message: str, begin: int, end: int, hint: str) -> ProgramError:
        return ProgramError(Diagnostic(BAD_TEXT, message, self.make_span(begin, end), hint))


def format_cluster(islands: Iterable[NodeGroup], between: str) -> str:
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
    values = ListedDevice(device, island.link_latency, island.network_latency).field_values()
    usual = known_devices()[device.name].field_values() if device.name in known_devices() else {}
    changed = [
        f"{field}={format_exact(value, FIELDS[field])}" for field, value in values.items() if usual.get(field) != value
    ]
    return f"({', '.join(changed)})" if changed else ""
