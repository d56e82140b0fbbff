"""Which splits of a model an engine can do, and what to say of one that it cannot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rlgraph.backends.enginespec.registry import engine as named
from rlgraph.backends.enginespec.registry import engines
from rlgraph.backends.enginespec.spec import EngineSpec, Misfits
from rlgraph.catalog.clusters.cluster import DeviceKind
from rlgraph.catalog.models.families import ModelKind
from rlgraph.catalog.models.shape import FAMILIES, Shape, UnknownFamily, UnsupportedModel, shape_of
from rlgraph.ir.mesh import Mesh

_WHAT = {"causal_lm": "log-probabilities", "value_lm": "values", "reward_lm": "scores"}


def problems(shape: Shape, engine: str, mesh: Mesh, kind: ModelKind = "causal_lm") -> list[str]:
    """Why an engine cannot lay out a model on a mesh, in the user's words and with the nearest sizes that it can; empty
    where it can."""
    spec = named(engine)
    found = [
        f"{engine} does not split along {axis}, but {axis}={size}: it can use {', '.join(spec.axes)}"
        for axis, size in mesh.axes
        if size > 1 and axis not in spec.axes
    ]
    found += _twice(spec, mesh)
    if shape.experts and not spec.experts:
        what = f"{engine} cannot lay out the experts of {shape.family} models here yet"
        return [*found, f"{what}: use {_use(_instead(spec, shape))}"]
    if shape.adapters and not spec.adapters:
        found.append(no_adapters(spec))
    if not spec.takes(kind):
        others = _use(each for each in engines().values() if each.takes(kind))
        found.append(f"{engine} {_does(spec)}: for a model that gives {_WHAT[kind]}, use {others}")
    for fault in spec.faults(shape):
        found.append(f"{engine} {fault}: use {_use(_instead(spec, shape))}")
    for axis, misfits in spec.misfits.items():
        found += _misfits(axis, mesh.length(axis), shape, misfits)
    return [*found, *_rounds(spec, shape, mesh)]


def _rounds(spec: EngineSpec, shape: Shape, mesh: Mesh) -> list[str]:
    """Of a mesh whose stages have several parts of a model each: it has to have as many stages, one behind the other,
    as there are parts."""
    stages, chunks = mesh.length("pp"), mesh.length("chunks")
    if chunks == 1 or "chunks" not in spec.axes:
        return []
    if stages == 1:
        return [f"chunks={chunks} are parts of the layers on each of several stages, and there is one: say `pp=`, too"]

    def misfits(shape: Shape, chunks: int) -> list[str]:
        return spec.misfits["pp"](shape, stages * chunks) if "pp" in spec.misfits else []

    return _misfits("chunks", chunks, shape, misfits, f" on pp={stages}") if not misfits(shape, 1) else []


def parts(spec: EngineSpec, shape: Shape, stages: int) -> list[int]:
    """Numbers of parts of the layers, more than one, that each of so many stages can have."""
    if stages == 1 or "chunks" not in spec.axes:
        return []
    sizes, misfits = range(2, shape.layers // stages + 1), spec.misfits.get("pp")
    return [each for each in sizes if misfits is None or not misfits(shape, stages * each)]


def _twice(spec: EngineSpec, mesh: Mesh) -> list[str]:
    """Of a mesh along several of whose axes layers would be split by columns."""
    axes = [axis for axis in spec.columns if mesh.length(axis) > 1]
    if len(axes) < 2:
        return []
    said, size = " and ".join(f"{axis}={mesh.length(axis)}" for axis in axes), spec.width(mesh)
    instead = " or ".join(f"{axis}={size}" for axis in axes)
    return [f"{spec.name} does not split along {said} at once: over {size} devices it does {instead}"]


def adapted(spec: EngineSpec, shape: Shape, dtype: str, kind: DeviceKind, said: str = "") -> tuple[str, ...]:
    """The ways among which there is a choice for a model's adapters beside weights of a dtype on a kind of device; of
    one that has none, or where an engine knows one way, the empty one. said: that of a schedule."""
    if said or shape.adapters is None or len(spec.adapters) < 2:
        return (said,)
    return spec.adapts(shape, dtype, kind)


def no_adapters(spec: EngineSpec) -> str:
    """What to say of an engine that cannot hold models with adapters."""
    able = (each for each in engines().values() if each.adapters and each.operations >= spec.operations)
    return f"{spec.name} cannot hold adapters here yet (`lora=`): use {_use(able)}"


def held(found: UnsupportedModel, engine: str) -> UnsupportedModel:
    """Why an engine cannot hold a model; where its family is not known, those are named that this engine can hold."""
    if not isinstance(found, UnknownFamily):
        return found
    return UnknownFamily(found.family, families(named(engine)))


def families(spec: EngineSpec) -> list[str]:
    """Those that an engine can hold, if only without a window."""
    plain = {name: shape_of({"model_type": name, "vocab_size": 1, "sliding_window": None}) for name in FAMILIES}
    return [name for name, shape in plain.items() if spec.experts >= bool(shape.experts) and not spec.faults(shape)]


_SIZES = 1 << 14
"""Up to which others are tried beside one that does not fit: no model has as many layers, heads or experts."""


def _misfits(axis: str, size: int, shape: Shape, misfits: Misfits, where: str = "") -> list[str]:
    """What is wrong with a size, in one sentence, with the sizes next to it that have no fault."""
    found = misfits(shape, size)
    if not found:
        return []
    below = next(other for other in range(min(size - 1, _SIZES), 0, -1) if not misfits(shape, other))
    above = next((other for other in range(size + 1, min(2 * size, _SIZES) + 1) if not misfits(shape, other)), None)
    nearest = f"{axis}={below}" if above is None else f"{axis}={below} or {axis}={above}"
    return [f"{axis}={size}{where} {' and '.join(found)}: the nearest that fits is {nearest}"]


def tensor_misfits(shape: Shape, tp: int, entire: bool = False) -> list[str]:
    """Of engines that give each tensor-parallel rank whole heads and columns. entire: but for experts, which are not
    split."""
    found, network = [], "the feed-forward network"
    if shape.heads % tp:
        found.append(f"does not divide the {shape.heads} attention heads")
    if shape.kv_heads % tp and tp % shape.kv_heads:
        found.append(f"neither divides the {shape.kv_heads} key-value heads nor is a multiple of them")
    if shape.ffn % tp and not entire:
        found.append(f"does not divide the {shape.ffn} columns of {'an expert' if shape.experts else network}")
    if shape.dense_ffn % tp:
        found.append(f"does not divide the {shape.dense_ffn} columns of {network}")
    if shape.shared_ffn % tp:
        found.append(f"does not divide the {shape.shared_ffn} columns of the shared expert")
    return found


def expert_misfits(shape: Shape, ep: int) -> list[str]:
    """Of engines that give each rank that shares experts out as many of them."""
    if ep > 1 and not shape.experts:
        return ["splits experts, of which this model has none"]
    return [f"does not divide the {shape.experts} experts"] if shape.experts % ep else []


def _instead(spec: EngineSpec, shape: Shape) -> Iterator[EngineSpec]:
    """Engines that can do all that one can, and a model that it cannot."""
    for each in engines().values():
        if each.operations >= spec.operations and each.experts >= bool(shape.experts) and not each.faults(shape):
            yield each


def _does(spec: EngineSpec) -> str:
    done = {"generates": spec.generates, "trains": spec.trains}
    return " and ".join(verb for verb, does in done.items() if does) or "does other work"


def _use(found: Iterable[EngineSpec]) -> str:
    """Engines of our own choice, the best first; others that were brought."""
    return " or ".join(each.name for each in sorted(found, key=lambda each: -each.preference))
