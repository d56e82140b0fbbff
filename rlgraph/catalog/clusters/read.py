"""Reads a cluster from what the user gives: a line such as `16x8:a100-80gb`, or the path of a TOML file."""

from __future__ import annotations

from collections.abc import Mapping

from rlgraph.catalog.clusters.cluster import Cluster, NodeGroup
from rlgraph.catalog.clusters.devices import (
    FIELDS,
    MAY_BE_ZERO,
    OF_A_NODE,
    OPTIONAL,
    ListedDevice,
    device_names_by_alias,
    known_devices,
    make_device,
)
from rlgraph.catalog.clusters.text import (
    DescribedCluster,
    DescribedNodeGroup,
    PlacedWord,
    format_cluster,
    parse_cluster_text,
)
from rlgraph.catalog.clusters.toml_file import read_cluster_file
from rlgraph.catalog.clusters.units import QuantityKind, format_exact, parse_quantity
from rlgraph.errors import Diagnostic, ProgramError, did_you_mean, quoted_list

UNKNOWN_DEVICE = "E0921"
BAD_COUNT = "E0922"
BAD_VALUE = "E0923"
BAD_FIELD = "E0924"

MOST_DEVICES = 131_072
"""Several times the largest cluster that models were trained on."""


def read_cluster(text: str) -> Cluster:
    """Read a cluster from a line, or from a file if the text ends in `.toml`. `Cluster.text` gives the same cluster
    again, without the file. Raises ProgramError with a caret under the mistake."""
    request = read_cluster_file(text.strip()) if text.strip().endswith(".toml") else parse_cluster_text(text)
    islands = tuple(_island(group) for group in request.groups)
    _few_enough(request, islands)
    bandwidth, latency = _between(request, islands)
    return Cluster(islands, bandwidth, latency, format_cluster(islands, _between_text(islands, bandwidth, latency)))


def _island(group: DescribedNodeGroup) -> NodeGroup:
    nodes, per_node = _count(group.nodes, "nodes"), _count(group.per_node, "devices in a node")
    entry = _device(group.device, _values(group.options, per_node))
    network = _shared(group.network, "bandwidth", per_node) if group.network else entry.device.network
    return NodeGroup(nodes, per_node, entry.device, network, entry.link_latency, entry.network_latency)


def _count(word: PlacedWord, what: str) -> int:
    if not word.text.isdecimal():
        raise _wrong(BAD_COUNT, f"`{word.text}` is no number of {what}", word, "a whole number, at least 1")
    if len(word.text) > 9:
        raise _too_many(word)
    if not int(word.text):
        raise _wrong(BAD_COUNT, f"a cluster without {what}", word, "a whole number, at least 1")
    return int(word.text)


def _few_enough(request: DescribedCluster, islands: tuple[NodeGroup, ...]) -> None:
    total = 0
    for group, island in zip(request.groups, islands, strict=True):
        total += island.device_count
        if total > MOST_DEVICES:
            raise _too_many(
                PlacedWord("", group.nodes.span.span_to(group.per_node.span)), f"{total:,} devices are too many"
            )


def _too_many(word: PlacedWord, message: str = "these are too many devices") -> ProgramError:
    return _wrong(BAD_COUNT, message, word, f"a cluster has at most {MOST_DEVICES:,}")


def _values(options: tuple[tuple[PlacedWord, PlacedWord], ...], per_node: int) -> dict[str, float]:
    """Return the fields of a device in base units. per_node: how many devices share what a node has."""
    values = {}
    for name, value in options:
        if name.text not in FIELDS:
            hint = did_you_mean(name.text, FIELDS) or f"there are {_listing(FIELDS)}"
            raise _wrong(BAD_FIELD, f"a device has no field `{name.text}`", name, hint)
        if name.text in values:
            raise _wrong(BAD_FIELD, f"`{name.text}` is given twice", name, "keep one of them")
        kind = FIELDS[name.text]
        if name.text in OF_A_NODE:
            values[name.text] = _shared(value, kind, per_node)
        else:
            values[name.text] = _quantity(value, kind, positive=name.text not in MAY_BE_ZERO)
    return values


def _device(word: PlacedWord, values: Mapping[str, float]) -> ListedDevice:
    """Return a device of the table, changed by the given values, or a device of the user's own, which has all of
    them."""
    name = device_names_by_alias().get(word.text.lower(), word.text.lower())
    if name in known_devices():
        return (
            make_device(name, {**known_devices()[name].field_values(), **values}) if values else known_devices()[name]
        )
    if not values:
        advice = "one of your own is told with its fields, in parentheses or in a TOML file"
        message = f"there is no device `{word.text}`"
        raise _wrong(
            UNKNOWN_DEVICE,
            message,
            word,
            f"{did_you_mean(name, device_names_by_alias())} There are {_listing(known_devices())}; {advice}".lstrip(),
        )
    missing = [field for field in FIELDS if field not in values and field not in OPTIONAL]
    if missing:
        message = f"the device `{word.text}` is not in the table, and has no {_listing(missing)}"
        raise _wrong(
            BAD_FIELD,
            message,
            word,
            f"a device of your own needs all fields but {quoted_list(OPTIONAL, 'and')}",
        )
    return make_device(name, values)


def _between(request: DescribedCluster, islands: tuple[NodeGroup, ...]) -> tuple[float, float]:
    """Return bandwidth and latency between node groups; by default those of the groups' slowest network."""
    given = request.between or request.between_latency
    if given and len(islands) == 1:
        hint = "the network of its nodes is said with `@`, as in `4x8:h100-80gb@25GB/s`"
        raise _wrong(BAD_VALUE, "there is one group, and so nothing between groups", given, hint)
    bandwidth = min(island.network for island in islands)
    latency = max(island.network_latency for island in islands)
    if request.between:
        bandwidth = _shared(request.between, "bandwidth", max(island.per_node for island in islands))
    if request.between_latency:
        latency = _quantity(request.between_latency, "time", positive=False)
    return bandwidth, latency


def _between_text(islands: tuple[NodeGroup, ...], bandwidth: float, latency: float) -> str:
    if (bandwidth, latency) == _between(DescribedCluster(()), islands):
        return ""
    return f"{format_exact(bandwidth, 'bandwidth')}, {format_exact(latency, 'time')}"


def _shared(word: PlacedWord, kind: QuantityKind, per_node: int) -> float:
    """Return a device's part of a quantity that may be given for a whole node, with `/node`."""
    share = word.text.removesuffix("/node")
    devices = per_node if share != word.text else 1
    more = "" if share != word.text else ", for each device; with `/node` behind it for all devices of a node"
    return _quantity(PlacedWord(share, word.span), kind, positive=True, more=more) / devices


def _quantity(word: PlacedWord, kind: QuantityKind, positive: bool, more: str = "") -> float:
    """Return a quantity in its base unit. more: what the hint adds about the expected values."""
    try:
        value = parse_quantity(word.text, kind)
    except ValueError as error:
        message, _, hint = str(error).partition(": ")
        raise _wrong(BAD_VALUE, message, word, hint + more) from None
    if positive and not value:
        raise _wrong(BAD_VALUE, f"`{word.text}` is nothing", word, "it has to be more than 0")
    return value


def _listing(names: Mapping[str, object] | list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _wrong(code: str, message: str, word: PlacedWord, hint: str) -> ProgramError:
    return ProgramError(Diagnostic(code, message, word.span, hint))
