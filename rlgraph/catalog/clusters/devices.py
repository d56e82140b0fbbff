"""The devices that are known by name. `devices.toml` has their numbers and where each is from."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rlgraph.catalog.clusters.cluster import Device
from rlgraph.catalog.clusters.units import QuantityKind, parse

DTYPES = ("bfloat16", "float32", "float64")

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
    "link_latency": "time",
    "network_latency": "time",
}
"""What is said of a device, and the kind of its value."""

SHARES = {"dense": 0.8, "stream": 0.9}
"""What is assumed of a device where it says nothing: as of most in the table."""

OPTIONAL = ("bfloat16", "float64", "host_memory", *SHARES)
"""Without them the rate is that of float32, the host has as much memory as its devices, and a share is that of
`SHARES`."""

_NUMBERS = ("memory", "bandwidth", "link", "network", "host", "price", "host_memory", *SHARES)

OF_A_NODE = ("network", "host_memory")
"""What the devices of a node share: may be given for all of them."""

MAY_BE_ZERO = ("price", "link_latency", "network_latency")


@dataclass(frozen=True, slots=True)
class Listed:
    """A device and the latencies of the nodes it usually stands in."""

    device: Device
    link_latency: float
    network_latency: float
    title: str = ""
    aliases: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    def values(self) -> dict[str, float]:
        """What its table says, in base units; `FIELDS` has the names."""
        device = self.device
        numbers = {name: getattr(device, name) for name in _NUMBERS}
        return {
            **dict(device.flops),
            **numbers,
            "link_latency": self.link_latency,
            "network_latency": self.network_latency,
        }


def made(name: str, values: Mapping[str, float]) -> Listed:
    """A device from its values in base units; `FIELDS` without `OPTIONAL` have to be there."""
    flops = tuple((dtype, values[dtype]) for dtype in DTYPES if dtype in values)
    usual = {**SHARES, "host_memory": values["memory"]}
    numbers = {name: values[name] if name in values else usual[name] for name in _NUMBERS if name != "memory"}
    device = Device(name=name, memory=round(values["memory"]), flops=flops, **numbers)
    return Listed(device, values["link_latency"], values["network_latency"])


@cache
def known() -> Mapping[str, Listed]:
    """Every device of the table by its name."""
    tables = tomllib.loads(Path(__file__).with_name("devices.toml").read_text("utf-8"))
    return MappingProxyType({name: _listed(name, table) for name, table in tables.items()})


@cache
def names() -> Mapping[str, str]:
    """The name of each device by each name that it can be called, its own included."""
    found = {alias: name for name, listed in known().items() for alias in listed.aliases}
    return MappingProxyType(found | {name: name for name in known()})


def _listed(name: str, table: dict[str, Any]) -> Listed:
    values = {field: parse(str(table[field]), kind) for field, kind in FIELDS.items() if field in table}
    plain = made(name, values)
    told = (table["title"], tuple(table.get("aliases", ())), tuple(table["sources"]))
    return Listed(plain.device, plain.link_latency, plain.network_latency, *told)
