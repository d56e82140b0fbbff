"""A calibration holds what `rlgraph profile` measured on a machine: constants of the cost model, and a device's
rates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rlgraph.backends.enginespec.rates import Rates, WorkKind
from rlgraph.catalog.clusters.cluster import Cluster, Device
from rlgraph.passes.cost.constants import Constants, HostCosts

VERSION = 1

SCALARS = ("collective", "transfer", "sync", "fragmentation", "reserved")
"""The fields of `Constants` that the file has under `constants`."""


@dataclass(frozen=True, slots=True)
class MeasuredDevice:
    """The measured rates of a device: those of one process with its threads."""

    name: str
    """The name as in a cluster's text."""
    flops: Mapping[str, float]
    """FLOP/s of large matrix products by dtype."""
    bandwidth: float
    """Bytes a second from and to its memory."""

    def with_measured_rates(self, device: Device) -> Device:
        """Return the device with these rates if it has this name, else the device as it is."""
        if device.name != self.name:
            return device
        flops = tuple({**dict(device.flops), **self.flops}.items())
        # Measured rates of engines have all that is less than these, and what kernels take to begin.
        return replace(
            device,
            flops=flops,
            bandwidth=self.bandwidth,
            dense=1.0,
            stream=1.0,
            weight_stream=1.0,
            cache_stream=1.0,
            product_latency=0.0,
            attention_latency=0.0,
        )


@dataclass(frozen=True, slots=True)
class HeldOutErrors:
    """Relative errors on the work of models that constants were not fitted to: each model is predicted by constants
    fitted to the others."""

    median: float
    worst: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """Constants and device rates that were measured on a machine, with the errors of the fit."""

    constants: Constants
    device: MeasuredDevice
    machine: Mapping[str, str] = field(default_factory=dict)
    """A description in words of what it was measured on."""
    errors: Mapping[str, float] = field(default_factory=dict)
    """The median relative error of the constants on the data that they were fitted to, for each `ENGINE.KIND`."""
    held_out: Mapping[str, HeldOutErrors] = field(default_factory=dict)
    """The errors on models held out of the fit, for each `ENGINE.KIND`, where several models were measured."""

    def with_measured_rates(self, cluster: Cluster) -> Cluster:
        """Return the cluster with the measured rates."""
        islands = tuple(
            replace(island, device=self.device.with_measured_rates(island.device)) for island in cluster.islands
        )
        return replace(cluster, islands=islands)

    def to_text(self) -> str:
        """Return the text of the file; the same calibration has the same text."""
        rates: dict[str, dict[str, Any]] = {}
        for (engine, kind), fitted in sorted(self.constants.rates.items()):
            rates.setdefault(engine, {})[kind] = _short(asdict(fitted))
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
            document["held_out"] = {name: _short(asdict(errors)) for name, errors in self.held_out.items()}
        return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def constants_from_rates(
    rates: Mapping[tuple[str, WorkKind], Rates],
    host: HostCosts,
    scalars: Mapping[str, float],
    source: str,
    base: Constants,
) -> Constants:
    """Return constants with the measured rates; engines and kinds that were not measured keep those of `base`."""
    plain: dict[str, Any] = {name: value for name, value in scalars.items() if name != "reserved"}
    reserved = int(scalars["reserved"]) if "reserved" in scalars else base.reserved
    # Measured rates already include what is done beside matrix products, and transfers that of each piece.
    all_rates = {**base.rates, **rates}
    return replace(
        base,
        rates=all_rates,
        host=host,
        reserved=reserved,
        source=source,
        traffic=0.0,
        piece=0.0,
        section=0.0,
        process=base.process,
        communicator=base.communicator,
        **plain,
    )


def _short(numbers: Mapping[str, float]) -> dict[str, float]:
    """Return the numbers rounded to four significant digits."""
    return {name: _digits(value) for name, value in numbers.items()}


def _digits(value: float) -> float:
    """Return the value rounded to four significant digits: more were not measured."""
    return float(f"{value:.4g}")
