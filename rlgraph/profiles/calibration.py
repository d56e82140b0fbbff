"""Reads calibration files, which `rlgraph profile` writes; errors name the place that is wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import get_args

from rlgraph.backends.enginespec.rates import Rates, WorkKind
from rlgraph.catalog.clusters.cluster import cpu_or_gpu
from rlgraph.catalog.clusters.devices import DTYPES
from rlgraph.errors import ProgramError
from rlgraph.passes.cost.calibration import (
    SCALARS,
    VERSION,
    Calibration,
    HeldOutErrors,
    MeasuredDevice,
    constants_from_rates,
)
from rlgraph.passes.cost.constants import HostCosts, default_constants
from rlgraph.profiles.file_kinds import FileKind
from rlgraph.runs.planfiles.document import Document, JsonNode

KIND = FileKind(
    "calibration",
    "rlgraph_calibration",
    VERSION,
    {"E0950": "E0940", "version": "E0941", "E0952": "E0942", "E0953": "E0943"},
    "`rlgraph profile -o FILE` writes a calibration",
)

SECTIONS = ("machine", "device", "constants", "host", "rates", "errors")
SHARES = ("compute", "memory", "collective", "transfer")
"""The shares of a peak: more than 0, and also over 1, since caches are faster than the measured bandwidth."""
BYTES = ("reserved", "logit", "gradient", "stepped")
DISPATCH = ("whole_experts", "once_a_node", "hides_routed")
OPTIONAL = (
    *("hides", "attention", "adapted", "experts", "gradient", "stepped", "host", "host_layer", "host_row", "cached"),
    *("products", *DISPATCH),
)
"""The rates of an engine that are not measured, but that a file may give."""
FORMER = ("queues",)
"""Those that files of before may give: with `queues` what else was counted of a step was the host's."""
MOST_SHARE, MOST_SECONDS, MOST_BYTES, MOST_RATE = 100.0, 3600.0, 1e15, 1e19
"""The largest values that are accepted: a larger one is a typing error."""


def read_calibration(path: str | Path) -> Calibration:
    """Return the calibration in a file. Raise ProgramError with everything that is wrong with the file."""
    try:
        return _CalibrationReader(KIND.read_document(Path(path)), str(path)).read_calibration()
    except ProgramError as error:
        raise KIND.with_file_codes(error) from None


class _CalibrationReader:
    """Reads the parts of a calibration and reports what is wrong with them."""

    def __init__(self, document: Document, path: str) -> None:
        self.document, self.top, self.path = document, document.top, path

    def read_calibration(self) -> Calibration:
        """Return the calibration. Raise ProgramError with everything that is wrong."""
        if not self.top.check_fields(KIND.field, *SECTIONS, optional=("held_out",)):
            self.document.raise_errors()
        device = self.read_device(self.top.field("device"))
        rates = dict(self.read_rates(self.top.field("rates")))
        host = self.read_numbers(self.top.field("host"), tuple(member.name for member in fields(HostCosts)))
        scalars = self.read_numbers(self.top.field("constants"), SCALARS)
        machine = {name: node.read_text() for name, node in self.top.field("machine").object_entries()}
        errors = {
            name: self.read_number(node, 0.0, MOST_SHARE) for name, node in self.top.field("errors").object_entries()
        }
        held_out = {}
        if isinstance(self.top.value, dict) and "held_out" in self.top.value:
            for name, node in self.top.field("held_out").object_entries():
                held_out[name] = HeldOutErrors(
                    **self.read_numbers(node, tuple(member.name for member in fields(HeldOutErrors)))
                )
        self.document.raise_errors()
        constants = constants_from_rates(
            rates, HostCosts(**host), scalars, self.path, default_constants(cpu_or_gpu(device.name))
        )
        return Calibration(constants, device, machine, errors, held_out)

    def read_device(self, node: JsonNode) -> MeasuredDevice:
        """Return the measured device."""
        if not node.check_fields("name", "flops", "bandwidth"):
            return MeasuredDevice("", {}, 1.0)
        flops = node.field("flops")
        flops.check_fields("float32", optional=DTYPES)
        rates = {
            name: self.read_number(rate, 1.0, MOST_RATE) for name, rate in flops.object_entries() if name in DTYPES
        }
        return MeasuredDevice(
            node.field("name").read_text(), rates, self.read_number(node.field("bandwidth"), 1.0, MOST_RATE)
        )

    def read_rates(self, node: JsonNode) -> Iterator[tuple[tuple[str, WorkKind], Rates]]:
        """Yield the rates of each engine and kind of work."""
        for engine, kinds in node.object_entries():
            kinds.check_fields(optional=get_args(WorkKind))
            for kind, numbers in kinds.object_entries():
                if kind in get_args(WorkKind):
                    needed = tuple(member.name for member in fields(Rates) if member.name not in OPTIONAL)
                    read = self.read_numbers(numbers, needed, (*OPTIONAL, *FORMER))
                    yield (engine, kind), Rates(**_with_host(read))  # type: ignore[misc, arg-type]

    def read_numbers(
        self, node: JsonNode, names: tuple[str, ...], optional: tuple[str, ...] = ()
    ) -> Mapping[str, float]:
        """Return all of these numbers; missing ones are reported, and replaced by numbers that do no harm."""
        if not node.check_fields(*names, optional=optional):
            return dict.fromkeys(names, 1.0)
        given = [name for name, _ in node.object_entries() if name in optional]
        return {name: self.read_number(node.field(name), *_bounds(name)) for name in (*names, *given)}

    def read_number(self, node: JsonNode, least: float, most: float) -> float:
        """Return a number within bounds; a wrong one is reported, and replaced by one that does no harm."""
        value = node.value
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            node.add_error("E0953", f"{node.path_text} is no number")
        elif not least <= value <= most:
            # An integer may be larger than the largest float.
            shown = f"{value:g}" if abs(value) <= sys.float_info.max else "too large for a number"
            node.add_error("E0953", f"{node.path_text} is {shown}, and has to be {least:g} to {most:g}")
        else:
            return float(value)
        return least or 1.0


def _with_host(numbers: Mapping[str, float]) -> Mapping[str, float]:
    """Return rates with names of their own for the seconds of the host, where `queues` said that they are."""
    kept = {name: value for name, value in numbers.items() if name not in FORMER}
    if not numbers.get("queues"):
        return kept
    hosts = {"host": kept["block"], "host_layer": kept["layer"], "host_row": kept["row"]}
    return {**kept, **hosts, "block": 0.0, "layer": 0.0, "row": 0.0}


def _bounds(name: str) -> tuple[float, float]:
    """Return the least and the greatest value of a number."""
    if name in SHARES:
        return 1e-6, MOST_SHARE
    if name in BYTES:
        return 0.0, MOST_BYTES
    if name in OPTIONAL or name in FORMER:
        return 0.0, 1.0 if name in ("hides", *DISPATCH, *FORMER) else MOST_SHARE
    if name == "fragmentation":
        return 0.0, 0.9
    return 0.0, MOST_SECONDS
