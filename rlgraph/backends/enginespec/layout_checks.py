"""Says which splits of a model an engine can do, and what to report of one that it cannot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rlgraph.backends.enginespec.registry import engine as spec_of
from rlgraph.backends.enginespec.registry import engines_by_name
from rlgraph.backends.enginespec.spec import EngineSpec, Misfits
from rlgraph.catalog.clusters.cluster import DeviceKind
from rlgraph.catalog.models.config_shape import FAMILIES, shape_of
from rlgraph.catalog.models.families import ModelKind
from rlgraph.catalog.models.shape import Shape, UnknownFamily, UnsupportedModel
from rlgraph.ir.mesh import Mesh

_RESULTS = {"causal_lm": "log-probabilities", "value_lm": "values", "reward_lm": "scores"}


def layout_problems(shape: Shape, engine: str, mesh: Mesh, kind: ModelKind = "causal_lm") -> list[str]:
    """Return why an engine cannot lay out a model on a mesh, in the user's words and with the nearest sizes that it
    can; the list is empty where it can."""
    spec = spec_of(engine)
    faults = [
        f"{engine} does not split along {axis}, but {axis}={size}: it can use {', '.join(spec.axes)}"
        for axis, size in mesh.axes
        if size > 1 and axis not in spec.axes
    ]
    faults += _column_conflicts(spec, mesh)
    if shape.experts and not spec.experts:
        lacking = f"{engine} cannot lay out the experts of {shape.family} models here yet"
        return [*faults, f"{lacking}: use {_listed(_alternatives(spec, shape))}"]
    if shape.adapters and not spec.adapters:
        faults.append(no_adapters_message(spec))
    if not spec.accepts_kind(kind):
        others = _listed(candidate for candidate in engines_by_name().values() if candidate.accepts_kind(kind))
        faults.append(f"{engine} {_does(spec)}: for a model that gives {_RESULTS[kind]}, use {others}")
    for reason in spec.faults(shape):
        faults.append(f"{engine} {reason}: use {_listed(_alternatives(spec, shape))}")
    for axis, misfits in spec.misfits.items():
        faults += _misfits(axis, mesh.axis_size(axis), shape, misfits)
    return [*faults, *_chunk_misfits(spec, shape, mesh)]


def _chunk_misfits(spec: EngineSpec, shape: Shape, mesh: Mesh) -> list[str]:
    """Return what is wrong with a mesh whose pipeline stages have several parts (chunks) of a model each: each part has
    to have a layer."""
    stages, chunks = mesh.axis_size("pp"), mesh.axis_size("chunks")
    if chunks == 1 or "chunks" not in spec.axes:
        return []
    if stages == 1:
        return [f"chunks={chunks} are parts of the layers on each of several stages, and there is one: say `pp=`, too"]

    def empty_parts(shape: Shape, chunks: int) -> list[str]:
        parts = stages * chunks
        return [f"makes {parts} parts of {shape.layers} layers"] if chunks > 1 and parts > shape.layers else []

    return _misfits("chunks", chunks, shape, empty_parts, f" on pp={stages}")


def model_chunk_counts(spec: EngineSpec, shape: Shape, stages: int) -> list[int]:
    """Return the numbers of parts of the layers, more than one, that a search tries for each of so many stages: those
    with which all parts have as many layers, since the others wait for the longest."""
    if stages == 1 or "chunks" not in spec.axes:
        return []
    return [chunks for chunks in range(2, shape.layers // stages + 1) if shape.layers % (stages * chunks) == 0]


def _column_conflicts(spec: EngineSpec, mesh: Mesh) -> list[str]:
    """Return what is wrong with a mesh that would split layers by columns along several of its axes."""
    axes = [axis for axis in spec.columns if mesh.axis_size(axis) > 1]
    if len(axes) < 2:
        return []
    splits, size = " and ".join(f"{axis}={mesh.axis_size(axis)}" for axis in axes), spec.column_rank_count(mesh)
    instead = " or ".join(f"{axis}={size}" for axis in axes)
    return [f"{spec.name} does not split along {splits} at once: over {size} devices it does {instead}"]


def adapter_choices(spec: EngineSpec, shape: Shape, dtype: str, kind: DeviceKind, chosen: str = "") -> tuple[str, ...]:
    """Return the ways among which there is a choice for holding a model's adapters beside weights of a dtype on a kind
    of device. A model that has none, or an engine that knows one way, has only the empty one. chosen: the way that
    a schedule names."""
    if chosen or shape.adapters is None or len(spec.adapters) < 2:
        return (chosen,)
    return spec.adapter_ways(shape, dtype, kind)


def no_adapters_message(spec: EngineSpec) -> str:
    """Return the message for an engine that cannot hold models with adapters."""
    able = (other for other in engines_by_name().values() if other.adapters and other.operations >= spec.operations)
    return f"{spec.name} cannot hold adapters here yet (`lora=`): use {_listed(able)}"


def explain_unsupported(error: UnsupportedModel, engine: str) -> UnsupportedModel:
    """Return why an engine cannot hold a model; where its family is not known, the error names those that this engine
    can hold."""
    if not isinstance(error, UnknownFamily):
        return error
    return UnknownFamily(error.family, supported_families(spec_of(engine)))


def supported_families(spec: EngineSpec) -> list[str]:
    """Return the model families that an engine can hold, if only without a sliding window."""
    plain = {name: shape_of({"model_type": name, "vocab_size": 1, "sliding_window": None}) for name in FAMILIES}
    return [name for name, shape in plain.items() if spec.experts >= bool(shape.experts) and not spec.faults(shape)]


_SIZES = 1 << 14
"""The largest size tried in place of one that does not fit: no model has as many layers, heads or experts."""


def _misfits(axis: str, size: int, shape: Shape, misfits: Misfits, where: str = "") -> list[str]:
    """Return what is wrong with a size, in one sentence, with the sizes next to it that have no fault."""
    faults = misfits(shape, size)
    if not faults:
        return []
    below = next(near for near in range(min(size - 1, _SIZES), 0, -1) if not misfits(shape, near))
    above = next((near for near in range(size + 1, min(2 * size, _SIZES) + 1) if not misfits(shape, near)), None)
    nearest = f"{axis}={below}" if above is None else f"{axis}={below} or {axis}={above}"
    return [f"{axis}={size}{where} {' and '.join(faults)}: the nearest that fits is {nearest}"]


def tensor_parallel_misfits(shape: Shape, tp: int, entire: bool = False) -> list[str]:
    """Return the misfits of `tp` for engines that give each tensor-parallel rank whole heads and columns. entire:
    experts are not split."""
    faults, network = [], "the feed-forward network"
    if shape.heads % tp:
        faults.append(f"does not divide the {shape.heads} attention heads")
    if shape.kv_heads % tp and tp % shape.kv_heads:
        faults.append(f"neither divides the {shape.kv_heads} key-value heads nor is a multiple of them")
    if shape.ffn % tp and not entire:
        faults.append(f"does not divide the {shape.ffn} columns of {'an expert' if shape.experts else network}")
    if shape.dense_ffn % tp:
        faults.append(f"does not divide the {shape.dense_ffn} columns of {network}")
    if shape.shared_ffn % tp:
        faults.append(f"does not divide the {shape.shared_ffn} columns of the shared expert")
    return faults


def expert_parallel_misfits(shape: Shape, ep: int) -> list[str]:
    """Return the misfits of `ep` for engines that give each expert-parallel rank the same number of experts."""
    if ep > 1 and not shape.experts:
        return ["splits experts, of which this model has none"]
    return [f"does not divide the {shape.experts} experts"] if shape.experts % ep else []


def _alternatives(spec: EngineSpec, shape: Shape) -> Iterator[EngineSpec]:
    """Yield the engines that can do all that this one can, and hold a model that it cannot."""
    for other in engines_by_name().values():
        if other.operations >= spec.operations and other.experts >= bool(shape.experts) and not other.faults(shape):
            yield other


def _does(spec: EngineSpec) -> str:
    verbs = {"generates": spec.generates, "trains": spec.trains}
    return " and ".join(verb for verb, applies in verbs.items() if applies) or "does other work"


def _listed(specs: Iterable[EngineSpec]) -> str:
    """Return the names of engines for a message: of our own the preferred ones first, then those of other packages."""
    return " or ".join(spec.name for spec in sorted(specs, key=lambda spec: -spec.preference))
