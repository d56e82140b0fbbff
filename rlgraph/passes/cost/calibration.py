"""What `rlgraph profile` measured on a machine: constants of the cost model, and a device's rates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rlgraph.backends.enginespec.rates import Rates, WorkKind
from rlgraph.catalog.clusters.cluster import Cluster, Device
from rlgraph.passes.cost.constants import Constants, Host

VERSION = 1

SCALARS = ("collective", "transfer", "sync", "fragmentation", "reserved")
"""Of `Constants`, in the file's `constants`."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A device's own rates: those of one process with its threads."""

    name: str
    """As in a cluster's text."""
    flops: Mapping[str, float]
    """FLOP/s of large matrix products by dtype."""
    bandwidth: float
    """Bytes a second from and to its memory."""

    def on(self, device: Device) -> Device:
        """The device with these rates, if it is one of these."""
        if device.name != self.name:
            return device
        flops = tuple({**dict(device.flops), **self.flops}.items())
        return replace(device, flops=flops, bandwidth=self.bandwidth, dense=1.0, stream=1.0)


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Errors, relative, on the work of models that constants were not fitted to: of each model by those fitted to the
    others."""

    median: float
    worst: float


@dataclass(frozen=True, slots=True)
class Calibration:
    constants: Constants
    device: Measured
    machine: Mapping[str, str] = field(default_factory=dict)
    """What it was measured on, in words."""
    errors: Mapping[str, float] = field(default_factory=dict)
    """For `ENGINE.KIND` the median error of the constants on what they were fitted to, relative."""
    held_out: Mapping[str, HeldOut] = field(default_factory=dict)
    """For `ENGINE.KIND`, where several models were measured."""

    def on(self, cluster: Cluster) -> Cluster:
        """The cluster with the rates that were measured."""
        islands = tuple(replace(island, device=self.device.on(island.device)) for island in cluster.islands)
        return replace(cluster, islands=islands)

    def to_text(self) -> str:
        """The file; the same calibration has the same text."""
        rates: dict[str, dict[str, Any]] = {}
        for (engine, kind), found in sorted(self.constants.rates.items()):
            rates.setdefault(engine, {})[kind] = _short(asdict(found))
        document = {
            "rlgraph_calibration": VERSION,
            "machine": dict(self.machine),
            "device": {
                "name": self.device.name,
                "flops": _short(self.device.flops),
                "bandwidth": _digits(self.device.bandwidth),
            },
            "constants": {name: getattr(self.constants, name) for name in SCALARS}
            | {"sync": _digits(self.constants.sync)},
            "host": _short(asdict(self.constants.host)),
            "rates": rates,
            "errors": _short(self.errors),
        }
        if self.held_out:
            document["held_out"] = {name: _short(asdict(found)) for name, found in self.held_out.items()}
        return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def constants_of(
    rates: Mapping[tuple[str, WorkKind], Rates], host: Host, scalars: Mapping[str, float], source: str, base: Constants
) -> Constants:
    """Engines and kinds that were not measured keep those of `base`."""
    plain = {name: value for name, value in scalars.items() if name != "reserved"}
    known = int(scalars["reserved"]) if "reserved" in scalars else base.reserved
    # What is done beside matrix products was measured with them, and tensors with the transfers that they are of.
    known_rates = {**base.rates, **rates}
    return replace(
        base,
        rates=known_rates,
        host=host,
        reserved=known,
        source=source,
        traffic=0.0,
        tensor=0.0,
        process=base.process,
        communicator=base.communicator,
        **plain,
    )


def _short(numbers: Mapping[str, float]) -> dict[str, float]:
    return {name: _digits(value) for name, value in numbers.items()}


def _digits(value: float) -> float:
    """Four that count: more were not measured."""
    return float(f"{value:.4g}")
