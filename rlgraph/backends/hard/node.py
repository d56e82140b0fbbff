"""The hard devices that a run asks for, as `--device hard:8x80GB` says them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rlgraph.catalog.clusters.units import format_quantity, parse_quantity
from rlgraph.errors import NO_SPAN, Diagnostic, UsageMistake

PREFIX = "hard:"
_TEXT = re.compile(r"(?:(?P<nodes>\d+)x)?(?P<devices>\d+)x(?P<memory>[^(]+?)\s*(?:\((?P<sizes>.*)\))?")
_SIZES = ("process", "communicator", "host")
_HINT = "`hard:8x80GB` are eight devices, `hard:2x8x80GB(process=1GB, communicator=700MB, host=1TB)` two nodes of eight"
_COMMUNICATOR = 688 << 20
"""Bytes of a communicator where nobody says them: NCCL's, of more than two ranks (nccl issue 964)."""


@dataclass(frozen=True)
class HardNodes:
    """Nodes with the same number of equal devices."""

    nodes: int
    per_node: int
    memory: int
    """Bytes of a device."""
    process: int | None
    """Bytes of a device that each process has beside its tensors; None: as its engine says."""
    communicator: int
    """Bytes of a device that a process has for each communicator that it has used."""
    host: int
    """Bytes of a node's host memory that processes may pin."""

    @property
    def devices(self) -> int:
        """How many devices there are."""
        return self.nodes * self.per_node

    def place_name(self, device: int) -> str:
        """Return how messages call a device, from its number among all: as CUDA does, and its node where there are
        several."""
        node, here = divmod(device, self.per_node)
        return f"GPU {here}" if self.nodes == 1 else f"GPU {here} of node {node}"


def is_hard(device: str | None) -> bool:
    """Return whether a device's name asks for hard devices."""
    return device is not None and device.startswith(PREFIX)


def read_hard_nodes(text: str) -> HardNodes:
    """Return the nodes of `hard:[NODESx]DEVICESxMEMORY(NAME=BYTES, ...)`. Raises UsageMistake."""
    match = _TEXT.fullmatch(text.removeprefix(PREFIX).strip())
    if match is None:
        raise _wrong(f"`{text}` is no number of devices with a memory")
    nodes, per_node = int(match["nodes"] or 1), int(match["devices"])
    if not nodes or not per_node:
        raise _wrong(f"`{text}` has no device")
    sizes: dict[str, int] = {}
    for item in filter(None, re.split(r"\s*,\s*", (match["sizes"] or "").strip())):
        name, equals, size = (part.strip() for part in item.partition("="))
        if name not in _SIZES or not equals:
            raise _wrong(f"`{item}` is none of {', '.join(f'`{known}=BYTES`' for known in _SIZES)}")
        sizes[name] = _bytes(size)
    memory = _bytes(match["memory"])
    if not memory:
        raise _wrong("a device without memory holds nothing")
    host = sizes.get("host", per_node * memory)
    return HardNodes(nodes, per_node, memory, sizes.get("process"), sizes.get("communicator", _COMMUNICATOR), host)


def short_bytes(size: float) -> str:
    """Return bytes for a message."""
    return format_quantity(size, "bytes")


def _bytes(text: str) -> int:
    if text == "0":
        return 0
    try:
        return int(parse_quantity(text, "bytes"))
    except ValueError as error:
        raise _wrong(str(error)) from None


def _wrong(message: str) -> UsageMistake:
    return UsageMistake(Diagnostic("E0749", message, NO_SPAN, _HINT))
