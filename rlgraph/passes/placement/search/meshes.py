"""Lists the meshes by which an engine can split one replica of a model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import product

from rlgraph.backends.enginespec.layout_checks import layout_problems
from rlgraph.backends.enginespec.registry import engine as spec_of
from rlgraph.catalog.models.families import ModelKind
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.mesh import AXES, Mesh, MeshAxis, make_mesh
from rlgraph.passes.placement.search.components import Component

_STAGES = 64
"""The most stages that are tried."""

_NODES = 8
"""The most nodes over which a replica's parameters are sharded, whatever its layers are split by."""


def pinned_axis_sizes(component: Component) -> tuple[tuple[str, int], ...]:
    """Return the sizes of a replica's axes that its schedule says."""
    return tuple((name, size) for name, size in component.pin.sizes if name != "dp") if component.pin else ()


@cache
def legal_replica_meshes(
    shape: Shape,
    engine: str,
    kind: ModelKind,
    per_node: int,
    said: tuple[tuple[str, int], ...] = (),
    tokens: int = 1,
    widest: int = 0,
) -> tuple[Mesh, ...]:
    """Return the meshes that an engine can split one replica of a model by. said: sizes of axes that are not searched
    for. tokens: the most ranks over which those of a row are split. widest: those over which columns are, where two
    nodes are too few."""
    if layout_problems(shape, engine, make_mesh(), kind):
        return ()
    axes = [axis for axis in AXES if axis.name in spec_of(engine).axes and axis.splits != "rows"]
    sizes = dict(said)
    if any(size > 1 and name not in [axis.name for axis in axes] for name, size in said):
        return ()
    # What is wrong with one axis does not depend on the others, if there are ranks along it.
    axis_sizes = [
        [
            (axis.name, size)
            for size in ([sizes[axis.name]] if axis.name in sizes else _sizes(axis, shape, per_node, tokens, widest))
            if not axis.spread or not layout_problems(shape, engine, make_mesh(**{axis.name: size}), kind)
        ]
        for axis in axes
    ]
    columns = spec_of(engine).columns
    meshes = (make_mesh(**dict(sizes)) for sizes in product(*axis_sizes))
    meshes = (
        split for split in meshes if split.axes == split.rank_axes or not layout_problems(shape, engine, split, kind)
    )
    unmixed = (split for split in meshes if sum(split.axis_size(axis) > 1 for axis in columns) < 2)
    most = max(widest, _NODES * per_node)
    return tuple(split for split in unmixed if said or split.axis_size("fsdp") * split.axis_size("tp") <= most)


def _sizes(axis: MeshAxis, shape: Shape, per_node: int, tokens: int, widest: int) -> Sequence[int]:
    """Return the sizes of an axis that are tried: numbers of stages that divide the layers, and powers of two that have
    no such number near above them; one part of each stage; else powers of two, over two nodes at most, but for models
    that are too large for that. Parameters are also sharded over whole nodes, up to eight. tokens, widest: as
    `legal_replica_meshes` has them."""
    if axis.splits == "layers":
        even = [size for size in range(1, shape.layers + 1) if shape.layers % size == 0]
        powers = [2**power for power in range(12)]
        uneven = [size for size in powers if not any(size <= other < 1.5 * size for other in even)]
        return [size for size in sorted({*even, *uneven}) if size <= min(shape.layers, _STAGES)]
    if axis.splits == "rounds":
        return [1]
    powers = [2**power for power in range(12) if 2**power <= max(widest, 2 * per_node)]
    if axis.splits == "tokens":
        return [power for power in powers if power <= tokens]
    if axis.splits == "shards":
        return sorted({*powers, *(per_node * nodes for nodes in (1, 2, 4, _NODES))})
    return powers
