"""The table of devices that are known by name. `devices.toml` has their numbers and the source of each."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rlgraph.catalog.clusters.cluster import Device
from rlgraph.catalog.clusters.units import QuantityKind, parse_quantity

DTYPES = ("float8", "bfloat16", "float32", "float64")

FIELDS: Mapping[str, QuantityKind] = {
    **dict.fromkeys(DTYPES, "rate"),
    "memory": "bytes",
    "bandwidth": "bandwidth",
    "link": "bandwidth",
    "network": "bandwidth",
    "host": "bandwidth",
    "host_memory": "bytes",
    "price": "price",
    "dense": "share",
    "stream": "share",
    "attention": "share",
    "plain_attention": "share",
    "weight_stream": "share",
    "cache_stream": "share",
    "product_latency": "time",
    "attention_latency": "time",
    "link_latency": "time",
    "network_latency": "time",
}
"""The fields of a device, and the kind of quantity of each."""

USUAL = {
    **{"dense": 0.8, "stream": 0.9, "attention": 0.6, "plain_attention": 0.6, "weight_stream": 0.8},
    **{"cache_stream": 0.85, "product_latency": 5e-6, "attention_latency": 2e-5},
}
"""Defaults of a device that does not give these fields: those of most devices in the table."""

OPTIONAL = ("float8", "bfloat16", "float64", "host_memory", *USUAL)
"""Fields that may be left out. Then the rate is that of float32, the host has as much memory as its devices, and a
share or latency of its kernels is that of `USUAL`."""

_NUMBERS = ("memory", "bandwidth", "link", "network", "host", "price", "host_memory", *USUAL)

OF_A_NODE = ("network", "host_memory")
"""Fields that the devices of a node share, and that may be given for the whole node."""

MAY_BE_ZERO = ("price", "link_latency", "network_latency", "product_latency", "attention_latency")


@dataclass(frozen=True, slots=True)
class ListedDevice:
    """A device of the table, with the latencies of the nodes that it usually is in."""

    device: Device
    link_latency: float
    network_latency: float
    title: str = ""
    aliases: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    def field_values(self) -> dict[str, float]:
        """Return its fields in base units, by the names of `FIELDS`."""
        device = self.device
        numbers = {name: getattr(device, name) for name in _NUMBERS}
        return {
            **dict(device.flops),
            **numbers,
            "link_latency": self.link_latency,
            "network_latency": self.network_latency,
        }


def make_device(name: str, values: Mapping[str, float]) -> ListedDevice:
    """Make a device from its fields in base units; all of `FIELDS` but those in `OPTIONAL` are required."""
    flops = tuple((dtype, values[dtype]) for dtype in DTYPES if dtype in values)
    defaults = {**USUAL, "host_memory": values["memory"]}
    numbers = {name: values[name] if name in values else defaults[name] for name in _NUMBERS if name != "memory"}
    device = Device(name=name, memory=round(values["memory"]), flops=flops, **numbers)
    return ListedDevice(device, values["link_latency"], values["network_latency"])


@cache
def known_devices() -> Mapping[str, ListedDevice]:
    """Return every device of the table by its name."""
    tables = tomllib.loads(Path(__file__).with_name("devices.toml").read_text("utf-8"))
    return MappingProxyType({name: _listed(name, table) for name, table in tables.items()})


@cache
def device_names_by_alias() -> Mapping[str, str]:
    """Return the name of each device by its aliases and by the name itself."""
    by_alias = {alias: name for name, listed in known_devices().items() for alias in listed.aliases}
    return MappingProxyType(by_alias | {name: name for name in known_devices()})


def _listed(name: str, table: dict[str, Any]) -> ListedDevice:
    values = {field: parse_quantity(str(table[field]), kind) for field, kind in FIELDS.items() if field in table}
    unlabelled = make_device(name, values)
    labels = (table["title"], tuple(table.get("aliases", ())), tuple(table["sources"]))
    return ListedDevice(unlabelled.device, unlabelled.link_latency, unlabelled.network_latency, *labels)
