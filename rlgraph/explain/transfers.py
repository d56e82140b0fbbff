"""The transfers between the groups of a plan, for a person: weights after they changed, and rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from rlgraph.backends.enginespec.registry import engine as spec_of
from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.catalog.clusters.topology import tensor_sites_of_devices, topology_of_devices
from rlgraph.catalog.models.families import ModelKind
from rlgraph.catalog.models.shape import Shape
from rlgraph.errors import count_phrase
from rlgraph.explain.tables import align_columns, process_count_text
from rlgraph.ir.graph import Program
from rlgraph.ir.layout import LocalTensor
from rlgraph.ir.plan import HOST, Group, Plan
from rlgraph.ir.transfer import Transfer
from rlgraph.ir.types import TURN_TOKENS, Axis, Table, Tensor, Type
from rlgraph.passes.compilation.default_plan import PlannedProgram
from rlgraph.passes.placement.model_configs import model_config, weight_update_pairs
from rlgraph.passes.resharding.describe import describe_transfer
from rlgraph.passes.resharding.group_edges import GroupEdge, group_edges
from rlgraph.passes.resharding.reshard import plan_resharding

BUCKET = 256 << 20
"""The bytes of messages that a process may have at a time, besides the weights themselves."""

_BYTES = {"float": 4, "int": 8, "bool": 1}
_SENT = ("tokens", "logprobs", "version", "finished", "reward", "turns", "calls", "failed", TURN_TOKENS)
"""The columns of a table that are not computed from others."""


@dataclass(frozen=True)
class PlannedWeightTransfer:
    """A transfer of weights from one group to another."""

    title: str
    """The title, such as `weights of actor` or `update of ref from actor`."""
    model: str
    """The model that takes the weights."""
    source: str
    target: str
    moves: Transfer | str
    """The reason why the transfer is not known, in place of it."""
    assumed: str = ""
    """The dtype that its bytes are counted in, where neither the program nor a cluster's plan says one."""


def transfers_text(program: Program, placed: PlannedProgram) -> str:
    """Return a paragraph for the weights of each model and each group that follows it, then a line for each value."""
    plan = placed.plan
    parts = [_shown(sent, plan) for sent in weight_transfers(program, placed)]
    rows = [_row(edge, plan) for edge in group_edges(program, plan)]
    if rows:
        parts.append("rows\n" + "".join(f"  {line}\n" for line in align_columns("<<<<", rows)))
    return "\n".join(parts) or "nothing travels: everything runs in one group\n"


# Weights


def weight_transfers(program: Program, placed: PlannedProgram) -> list[PlannedWeightTransfer]:
    """Return all transfers of weights: those after a model was trained, then those of each `update`."""
    plan = placed.plan
    transfers = [
        PlannedWeightTransfer(
            f"weights of {model}",
            model,
            source,
            target,
            _moves(program, placed, model, source, target),
            _assumed(program, plan, model),
        )
        for model, source, target in plan.syncs()
    ]
    for target, source in dict.fromkeys(weight_update_pairs(program)):
        ends = plan.owner(source).name, plan.owner(target).name
        if ends[0] != ends[1]:
            moves = _moves(program, placed, source, *ends)
            assumed = _assumed(program, plan, source)
            transfers.append(PlannedWeightTransfer(f"update of {target} from {source}", target, *ends, moves, assumed))
    return transfers


def _assumed(program: Program, plan: Plan, model: str) -> str:
    """Return the dtype in which bytes are counted if neither the program nor a cluster says one; else nothing."""
    declared = program.model(model)
    named = plan.cluster or dict(program.original_model(declared).options).get("dtype")
    return "" if named else program.dtype_of_model(declared)


def _shown(sent: PlannedWeightTransfer, plan: Plan) -> str:
    """Return the paragraph for the weights that one group sends to another."""
    source, target, moves = plan.group(sent.source), plan.group(sent.target), sent.moves
    head = f"{sent.title}: {source.name} ({source.mesh}) -> {target.name} ({target.mesh})\n"
    if isinstance(moves, str):
        return f"{head}  its layout is not known: {moves}\n"
    places = [*_devices(plan, source), *_devices(plan, target)]
    sites = tensor_sites_of_devices(dict(enumerate(places)), read_cluster(plan.cluster)) if plan.cluster else None
    numbers = f"ranks of {source.name} from 0, those of {target.name} from {source.mesh.rank_count}"
    lines = [numbers, *describe_transfer(moves, sites=sites, timed=bool(plan.cluster)).splitlines()]
    if sent.assumed:
        lines.append(f"bytes are counted in {sent.assumed}: the program says no `dtype` of `{sent.model}`")
    return head + "".join(f"  {line}\n" for line in lines)


def _moves(program: Program, placed: PlannedProgram, model: str, source: str, target: str) -> Transfer | str:
    """Return the transfer of weights, or the reason why it is not known."""
    plan, shape = placed.plan, placed.shapes.get(model)
    if not isinstance(shape, Shape):
        return str(shape or "its configuration is not here")
    return plan_weight_transfer(
        plan,
        plan.group(source),
        plan.group(target),
        shape,
        cast(ModelKind, program.model(model).kind),
        model_config(program.model(model), shape, program).trained_item_bytes,
        model,
    )


def plan_weight_transfer(
    plan: Plan, source: Group, target: Group, shape: Shape, kind: ModelKind, itemsize: int, model: str = ""
) -> Transfer:
    """Return the transfer of a model's weights from one group to another, whose ranks are numbered after those of the
    first."""
    sides: list[dict[int, tuple[LocalTensor, ...]]] = []
    places: list[int] = []
    for group in (source, target):
        layout, mesh = spec_of(group.engine).transferred_tensors, group.mesh
        ranks = [
            mesh.mirrored_rank(rank, "pp") if plan.has_reversed_stages(model, group.name) else rank
            for rank in range(mesh.rank_count)
        ]
        sides.append({len(places) + at: layout(shape, mesh, rank, kind) for at, rank in enumerate(ranks)})
        places += _devices(plan, group)
    topology = topology_of_devices(dict(enumerate(places)), read_cluster(plan.cluster) if plan.cluster else None)
    return plan_resharding(sides[0], sides[1], itemsize=itemsize, topology=topology, bucket=BUCKET)


def _devices(plan: Plan, group: Group) -> list[int]:
    """Return the devices of the ranks of a group."""
    return [_device(plan, group, rank) for rank in range(group.mesh.rank_count)]


def _device(plan: Plan, group: Group, rank: int) -> int:
    """Return a rank's device in the plan's cluster; without a cluster, a number for each device of all pools."""
    before = 0
    if plan.cluster:
        return next(pool.first for pool in plan.pools if pool.name == group.pool) + group.devices[rank]
    for pool in plan.pools:
        if pool.name == group.pool:
            break
        before += pool.devices
    return before + group.devices[rank]


# Rows


def _row(edge: GroupEdge, plan: Plan) -> tuple[str, ...]:
    """Return the row of an edge in a table."""
    source, target = plan.group(edge.source), plan.group(edge.target)
    # One rank of each replica has the results, and all its ranks need their inputs.
    senders = _copies(source, tuple((rank,) for rank in source.result_ranks(edge.stages_reversed)))
    receivers = _copies(target, target.replica_ranks())
    return (
        edge.value,
        f"{source.name} -> {target.name}",
        f"{senders} -> {receivers}",
        ", ".join(value_size_texts([edge.type])),
    )


def _copies(group: Group, copies: tuple[tuple[int, ...], ...]) -> str:
    """Return the ranks of each replica (copy) as `4 copies: 0-1 | 2-3 | 4-5 | 6-7`: the ranks of each; those of copies
    of one rank are one list."""
    if group.name == HOST:
        return process_count_text(group.mesh.rank_count)
    count = "1 copy" if len(copies) == 1 else f"{len(copies)} copies"
    if all(len(copy) == 1 for copy in copies):
        return f"{count}: {_ranks([rank for copy in copies for rank in copy])}"
    return f"{count}: {' | '.join(map(_ranks, copies))}"


def _ranks(ranks: Sequence[int]) -> str:
    consecutive = len(ranks) > 1 and list(ranks) == list(range(ranks[0], ranks[-1] + 1))
    return f"{ranks[0]}-{ranks[-1]}" if consecutive else ", ".join(map(str, ranks))


def value_size_texts(kinds: Sequence[Type]) -> list[str]:
    """Return the bytes of values as far as their types tell: the number of tokens is known only in the run."""
    columns = [column for kind in kinds for column in _stored(kind)]
    totals: dict[str, int] = {}
    for column in columns:
        if column.dtype in _BYTES:
            unit = _unit(column.axis)
            totals[unit] = totals.get(unit, 0) + _BYTES[column.dtype]
    shown = [f"{count_phrase(size, 'byte')} {unit}" for unit, size in totals.items()]
    unsized = any(isinstance(kind, Table) for kind in kinds) or any(column.dtype not in _BYTES for column in columns)
    return [*shown, *(["columns of the data"] if unsized else [])]


def _stored(kind: Type) -> list[Tensor]:
    """Return the tensors that a value is made of."""
    if isinstance(kind, Table):
        extra = dict(kind.extra)
        return [column for name, column in kind.column_types().items() if name in extra or name in _SENT]
    return [kind] if isinstance(kind, Tensor) else []


def _unit(axis: Axis | None) -> str:
    """Return what there is one number for, as words."""
    if axis is None:
        return "in all"
    return f"a {axis.name}" if axis.inner else f"a row of {axis.name}"
