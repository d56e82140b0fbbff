"""Reads clusters from a TOML file, each word with its place for diagnostics.

    between = "10Gb/s"                 # between node groups: for each device; with "/node" for all of a node
    between_latency = "5ms"

    [[island]]
    nodes = 4
    per_node = 8
    device = "my-gpu"
    network = "200Gb/s/node"           # what `@` is in a line

    [device.my-gpu]                    # a device of your own, or other numbers for one of the table
    memory = "64GiB"

Strings are as in a line; numbers are in bytes, bytes per second, FLOP/s, seconds and US dollars per hour.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rlgraph.catalog.clusters.devices import FIELDS, device_names_by_alias
from rlgraph.catalog.clusters.text import DescribedCluster, DescribedNodeGroup, PlacedWord
from rlgraph.catalog.clusters.units import BASE, QuantityKind
from rlgraph.errors import Source
from rlgraph.errors.source_files import read_source
from rlgraph.errors.toml_text import TomlText

BAD_FIELD = "E0924"
UNREADABLE = "E0925"
_HINT = "a cluster is the path of a TOML file or a line such as `4x8:h100-80gb`"

_TOP = ("between", "between_latency", "island", "device")
_ISLAND = ("nodes", "per_node", "device", "network")
_NEEDED = "each `[[island]]` has `nodes`, `per_node` and `device`"
_KINDS: Mapping[str, QuantityKind] = {**FIELDS, "between": "bandwidth", "between_latency": "time"}


def read_cluster_file(path: str) -> DescribedCluster:
    """Read the cluster that a file describes. Raises ProgramError if the file cannot be read, is not TOML, or has
    unknown fields."""
    file = _File(read_source(path, UNREADABLE, _HINT))
    file.check_known_fields(file.content, _TOP)
    islands = file.read_tables("island")
    devices = file.content.get("device", {})
    if not islands:
        raise file.make_error(BAD_FIELD, "there is no island in the file", _NEEDED)
    if not isinstance(devices, dict) or not all(isinstance(table, dict) for table in devices.values()):
        raise file.make_error(
            BAD_FIELD, "`device` is no table of devices", "write `[device.NAME]`", file.key_span("device")
        )
    for name, table in devices.items():
        file.check_device(name, table)
    devices_by_name = {name.lower(): (name, table) for name, table in devices.items()}
    groups = tuple(file.read_group(number, island, devices_by_name) for number, island in enumerate(islands))
    between, latency = (file.optional_word(name, file.content, ("", 0)) for name in ("between", "between_latency"))
    return DescribedCluster(groups, between, latency)


class _File(TomlText):
    """A cluster's file, read piece by piece."""

    def __init__(self, source: Source) -> None:
        super().__init__(source, UNREADABLE, BAD_FIELD)

    def read_tables(self, name: str) -> list[dict[str, Any]]:
        tables = self.content.get(name, [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise self.make_error(
                BAD_FIELD, f"`{name}` is no list of tables", f"write `[[{name}]]`", self.key_span(name)
            )
        return tables

    def check_device(self, name: str, table: Mapping[str, Any]) -> None:
        self.check_known_fields(table, FIELDS, (f"device.{name}", 0))
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
            hint = "it has letters, digits, `-`, `_` and `.`"
            raise self.make_error(
                BAD_FIELD, f"`{name}` is no name of a device", hint, self.key_span("", f"device.{name}")
            )

    def read_group(
        self, number: int, island: Mapping[str, Any], devices: Mapping[str, tuple[str, Mapping[str, Any]]]
    ) -> DescribedNodeGroup:
        """Return an `[[island]]`, with the fields that the file has for its device."""
        where = ("island", number)
        self.check_known_fields(island, _ISLAND, where)
        nodes, per_node, device = (self.required_word(name, island, where) for name in ("nodes", "per_node", "device"))
        alias = device.text.lower()
        same_device = [
            name
            for name in devices
            if device_names_by_alias().get(name, name) == device_names_by_alias().get(alias, alias)
        ]
        options = [self.read_options(*devices[name]) for name in same_device]
        return DescribedNodeGroup(
            nodes, per_node, device, sum(options, ()), self.optional_word("network", island, where)
        )

    def read_options(self, name: str, table: Mapping[str, Any]) -> tuple[tuple[PlacedWord, PlacedWord], ...]:
        where = (f"device.{name}", 0)
        return tuple(
            (PlacedWord(key, self.key_span(key, *where)), self.required_word(key, table, where)) for key in table
        )

    def required_word(self, name: str, table: Mapping[str, Any], where: tuple[str, int]) -> PlacedWord:
        word = self.optional_word(name, table, where)
        if word is None:
            raise self.make_error(BAD_FIELD, f"the island has no `{name}`", _NEEDED, self.key_span("", *where))
        return word

    def optional_word(self, name: str, table: Mapping[str, Any], where: tuple[str, int]) -> PlacedWord | None:
        """Return a value as it would be in a line; a number gets the base unit of its field."""
        if name not in table:
            return None
        value = table[name]
        kind = _KINDS.get(name)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        text = f"{value!r}{BASE[kind]}" if number and kind else str(value)
        return PlacedWord(text, self.key_span(name, *where))
