"""Finds the adapters that an engine cannot hold, or not without loss."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from rlgraph.backends.enginespec.registry import embedded_engine
from rlgraph.backends.enginespec.registry import engine as spec_of
from rlgraph.catalog.clusters.cluster import DeviceKind
from rlgraph.catalog.models.shape import Shape
from rlgraph.errors import Diagnostic
from rlgraph.ir.graph import Program
from rlgraph.ir.schedule import PlacementLine, Schedule

_WIDE = '`dtype="float32"`'


def adapter_errors(
    model: str, engine: str, shape: Shape, dtype: str, kind: DeviceKind, pin: PlacementLine
) -> Iterator[Diagnostic]:
    """Yield the errors for adapters that an engine cannot hold as a schedule says, or not at all."""
    spec = spec_of(engine)
    if pin.adapters:
        for text in spec.adapter_faults(pin.adapters, shape):
            yield Diagnostic(
                "E0912", f"`{model}`: {engine} {text}", pin.option_span("adapters"), "leave `adapters` out"
            )
    elif shape.adapters and spec.adapters and not spec.adapter_ways(shape, dtype, kind):
        why = [text for way in spec.adapters for text in spec.adapter_problems(way, shape, dtype, kind)]
        other = f"`engine={embedded_engine().name}`"
        hint = f"write {_WIDE} of the model, or {other}" if spec.adapter_dtypes else f"write {other}"
        yield Diagnostic("E0912", f"`{model}`: {engine} {', and '.join(why)}", pin.option_span("engine"), hint)


def adapter_warnings(
    program: Program, schedule: Schedule, shapes: Mapping[str, object], kinds: Collection[DeviceKind]
) -> list[Diagnostic]:
    """Return warnings about adapters that a schedule has held in a way in which an engine rounds away what is learned.
    kinds: of the devices that there are."""
    warnings = []
    for line in schedule.placements:
        if line.engine is None or not line.adapters:
            continue
        for name in dict.fromkeys(work.model for work in line.work):
            spec, shape, dtype = spec_of(line.engine), shapes.get(name), program.dtype_of_model(program.model(name))
            lost = [text for kind in kinds if (text := spec.adapter_rounding(line.adapters, dtype, kind))]
            if lost and isinstance(shape, Shape):
                ways = (way for kind in kinds for way in spec.adapter_ways(shape, dtype, kind))
                exact = [f"`adapters={way}`" for way in dict.fromkeys(ways)]
                hint = f"write {' or '.join([*exact, f'{_WIDE} of the model'])}"
                warnings.append(
                    Diagnostic("W0518", f"`{name}`: {spec.name} {lost[0]}", line.option_span("adapters"), hint)
                )
    return warnings
